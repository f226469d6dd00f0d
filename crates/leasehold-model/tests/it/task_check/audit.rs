//! Audit of one step of the rules from outside: what it compares, what it checks, what it
//! remembers.
//!
//! Nothing here calls the rules: what may happen to a task is computed independently, from the
//! properties.

use leasehold_model::{Task, TaskAnswer, TaskId, TaskState, TaskTable, Timestamp};

use super::config::task_id;
use super::memory::{Known, Memory};
use super::properties::Broken;
use super::rules::{Op, Response};
use super::state::State;
use super::system::System;
use super::{audit_table, audit_task};

/// One operation, and the table before and after it.
pub(super) struct Step<'a> {
    pub(super) system: &'a System,
    /// State just after the step; its audit memory is still from before.
    pub(super) state: &'a State,
    pub(super) before: &'a TaskTable,
    pub(super) op: &'a Op,
    pub(super) response: &'a Response,
}

/// One task in a step, if it existed before and after it.
pub(super) struct Pair<'a> {
    pub(super) number: usize,
    pub(super) before: &'a Task,
    pub(super) after: &'a Task,
    pub(super) known: &'a Known,
}

impl Pair<'_> {
    /// Whether the task waited for a runner that is dead.
    pub(super) fn is_abandoned(&self, now: Timestamp) -> bool {
        let waits = !self.before.state.is_terminal() && self.before.state != TaskState::Running;
        waits && self.known.runner_deadline.is_some_and(|end| end <= now)
    }
}

/// Returns the properties that the step broke, and the audit memory after it.
pub(super) fn audit(step: &Step) -> (Broken, Memory) {
    let mut broken = Broken::default();
    audit_task::check(step, &mut broken);
    let memory = step.state.memory.clone().after(step);
    audit_table::check(step, &memory, &mut broken);
    step.system.coverage.record_step(step);
    (broken, memory)
}

impl Step<'_> {
    pub(super) fn now(&self) -> Timestamp {
        self.state.now
    }

    pub(super) fn after(&self) -> &TaskTable {
        &self.state.table
    }

    /// Returns the task that the operation names, if it exists.
    pub(super) fn named(&self) -> Option<TaskId> {
        match self.op {
            Op::Enqueue(new) => Some(new.id),
            Op::Heartbeat(_, held, _) => Some(held.id),
            Op::Settle(settle) => Some(settle.id),
            Op::Change(id, _) => Some(*id),
            Op::Lease(_) | Op::Recover => None,
        }
    }

    pub(super) fn named_before(&self) -> Option<&Task> {
        self.named().and_then(|id| self.before.get(id))
    }

    pub(super) fn named_pair(&self) -> Option<Pair<'_>> {
        self.pairs().find(|pair| Some(pair.after.id) == self.named())
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = Pair<'_>> {
        let pair = |(number, known)| {
            let id = task_id(number);
            let (before, after) = (self.before.get(id)?, self.after().get(id)?);
            Some(Pair { number, before, after, known })
        };
        self.state.memory.tasks.iter().enumerate().filter_map(pair)
    }

    /// Whether nothing has changed.
    pub(super) fn changed_nothing(&self) -> bool {
        self.before == self.after()
    }

    /// Whether the response says that the change is made.
    pub(super) fn is_done(&self) -> bool {
        *self.response == Response::Changed(Some(TaskAnswer::Done))
    }

    /// Whether a worker was given this task.
    pub(super) fn is_leased(&self, pair: &Pair) -> bool {
        matches!(self.response, Response::Leased(leased) if leased.iter().any(|task| task.id == pair.after.id))
    }

    /// Whether the lease of this task has expired, or its runner is dead.
    fn has_expired(&self, pair: &Pair) -> bool {
        pair.known.has_expired(self.now()) || pair.is_abandoned(self.now())
    }

    /// Whether this step may change this task in other ways than making it due or giving it its
    /// lock.
    pub(super) fn is_about(&self, pair: &Pair) -> bool {
        match (self.op, self.response) {
            // A lease call ends expired leases before it selects tasks.
            (Op::Lease(_), Response::Leased(leased)) => {
                self.has_expired(pair) || leased.iter().any(|task| task.id == pair.after.id)
            }
            (Op::Recover, _) => self.has_expired(pair),
            _ => self.named() == Some(pair.after.id),
        }
    }
}
