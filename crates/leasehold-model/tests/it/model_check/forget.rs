//! Deletion of the lock while it is idle, and its creation afterwards; and a clock that is set back
//! in between.

use leasehold_model::LockRecord;

use super::coverage::Situation;
use super::properties::Property;
use super::state::State;
use super::system::{Action, System};

impl System {
    pub(super) fn forget_actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Before the first grant there is nothing to delete.
        if state.left.deletions > 0 && !state.is_forgotten && state.record.token.get() > 0 {
            actions.push(Action::Forget);
        }
        if state.left.clock_resets > 0 && state.now > self.config.start() {
            actions.push(Action::SetBack);
        }
    }

    /// Runs one pass. A lock in use must not be deleted, whatever the rules say.
    pub(super) fn forget(&self, state: &mut State) {
        state.left.deletions -= 1;
        let idle = self.config.lasting(self.config.idle);
        let (floor, goes) = (self.rules.forget)(&state.record, state.floor, state.now, idle);
        state.broken.check(Property::FloorNeverFalls, floor >= state.floor);
        state.floor = floor;
        if !goes {
            self.coverage.record(Situation::NotDeleted);
            return;
        }
        let LockRecord { holders, waiters, .. } = &state.record;
        state.broken.check(Property::UsedLockIsNotDeleted, holders.is_empty() && waiters.is_empty());
        self.coverage.record(Situation::Deleted);
        state.record = LockRecord::new(state.record.name.clone());
        state.is_forgotten = true;
    }

    /// The lock exists again if the step has changed it; otherwise it is still deleted.
    pub(super) fn made(&self, state: &mut State, changed: bool) {
        if state.is_forgotten && changed {
            state.is_forgotten = false;
            self.coverage.record(Situation::CreatedAgain);
        }
    }

    /// Sets the clock back to its start. The times in the lock's record stay as they are.
    pub(super) fn set_back(&self, state: &mut State) {
        state.left.clock_resets -= 1;
        state.now = self.config.start();
    }
}
