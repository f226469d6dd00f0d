//! One step of the rules, looked at from outside: what the auditor sees, what it checks, what it remembers.
//!
//! Nothing here calls the rules: what may happen to a task is worked out anew, from the promises.

use leasehold_model::{Task, TaskAnswer, TaskId, TaskState, TaskTable, Timestamp};

use super::config::task_id;
use super::memory::{Known, Memory};
use super::promises::Broken;
use super::rules::{Answer, Op};
use super::state::State;
use super::system::System;
use super::{audit_table, audit_task};

/// One operation, and the table before and after it.
pub(super) struct Step<'a> {
    pub(super) system: &'a System,
    /// The world just after; what the auditor remembers is still from before.
    pub(super) state: &'a State,
    pub(super) before: &'a TaskTable,
    pub(super) op: &'a Op,
    pub(super) answer: &'a Answer,
}

/// One task in a step in which it was there before and after.
pub(super) struct Pair<'a> {
    pub(super) number: usize,
    pub(super) before: &'a Task,
    pub(super) after: &'a Task,
    pub(super) known: &'a Known,
}

impl Pair<'_> {
    /// Whether it waited for a runner that is gone.
    pub(super) fn is_abandoned(&self, now: Timestamp) -> bool {
        let waits = !self.before.state.is_terminal() && self.before.state != TaskState::Running;
        waits && self.known.wanted.is_some_and(|end| end <= now)
    }
}

/// What the step broke, and what is remembered from here on.
pub(super) fn audit(step: &Step) -> (Broken, Memory) {
    let mut broken = Broken::default();
    audit_task::check(step, &mut broken);
    let memory = step.state.memory.clone().after(step);
    audit_table::check(step, &memory, &mut broken);
    step.system.facts.note_step(step);
    (broken, memory)
}

impl Step<'_> {
    pub(super) fn now(&self) -> Timestamp {
        self.state.now
    }

    pub(super) fn after(&self) -> &TaskTable {
        &self.state.table
    }

    /// The task that the operation is about, if it is about one that is there.
    pub(super) fn named(&self) -> Option<TaskId> {
        match self.op {
            Op::Enqueue(new) => Some(new.id),
            Op::Beat(_, held, _) => Some(held.id),
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

    /// Whether nothing at all has changed.
    pub(super) fn changed_nothing(&self) -> bool {
        self.before == self.after()
    }

    /// Whether somebody who wanted a change was told that it is made.
    pub(super) fn is_done(&self) -> bool {
        *self.answer == Answer::Changed(Some(TaskAnswer::Done))
    }

    /// Whether a worker was given this task.
    pub(super) fn is_leased(&self, pair: &Pair) -> bool {
        matches!(self.answer, Answer::Leased(leased) if leased.iter().any(|task| task.id == pair.after.id))
    }

    /// Whether the lease of this task has run out, or its runner is gone.
    fn has_run_out(&self, pair: &Pair) -> bool {
        pair.known.lapsed(self.now()) || pair.is_abandoned(self.now())
    }

    /// Whether this step may do more with this task than let its time or its lock come.
    pub(super) fn is_about(&self, pair: &Pair) -> bool {
        match (self.op, self.answer) {
            // A lease ends what has run out before it looks at what is in line.
            (Op::Lease(_), Answer::Leased(leased)) => {
                self.has_run_out(pair) || leased.iter().any(|task| task.id == pair.after.id)
            }
            (Op::Recover, _) => self.has_run_out(pair),
            _ => self.named() == Some(pair.after.id),
        }
    }
}
