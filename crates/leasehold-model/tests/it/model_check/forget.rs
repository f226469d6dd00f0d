//! Forgetting the lock while it is idle, and making it again; and a clock that is set back in between.

use leasehold_model::LockRecord;

use super::facts::Fact;
use super::promises::Promise;
use super::state::State;
use super::system::{Action, System};

impl System {
    pub(super) fn forget_actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Before the first grant there is nothing to forget.
        if state.left.forgets > 0 && !state.is_forgotten && state.record.token.get() > 0 {
            actions.push(Action::Forget);
        }
        if state.left.set_backs > 0 && state.now > self.config.start() {
            actions.push(Action::SetBack);
        }
    }

    /// One pass. What is used must not go, whatever the rules say.
    pub(super) fn forget(&self, state: &mut State) {
        state.left.forgets -= 1;
        let idle = self.config.lasting(self.config.idle);
        let (floor, goes) = (self.rules.forget)(&state.record, state.floor, state.now, idle);
        state.broken.keep(Promise::FloorNeverFalls, floor >= state.floor);
        state.floor = floor;
        if !goes {
            self.facts.note(Fact::NotForgotten);
            return;
        }
        let LockRecord { holders, waiters, .. } = &state.record;
        state.broken.keep(Promise::WhatIsUsedIsNotForgotten, holders.is_empty() && waiters.is_empty());
        self.facts.note(Fact::Forgotten);
        state.record = LockRecord::new(state.record.name.clone());
        state.is_forgotten = true;
    }

    /// The lock is there again if the step has changed it; else it is still forgotten.
    pub(super) fn made(&self, state: &mut State, changed: bool) {
        if state.is_forgotten && changed {
            state.is_forgotten = false;
            self.facts.note(Fact::MadeAgain);
        }
    }

    /// To where it began. What the lock remembers of the time stays as it is.
    pub(super) fn set_back(&self, state: &mut State) {
        state.left.set_backs -= 1;
        state.now = self.config.start();
    }
}
