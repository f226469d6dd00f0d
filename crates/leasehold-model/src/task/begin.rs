//! When an attempt counts: which tasks of an answer are started at once, which are fetched ahead, and which run alone.
//!
//! A worker fetches short tasks ahead of its free slots. The attempt of such a task counts only once the worker says that it
//! has started it. A worker that dies between the start and that message leaves an attempt that ran and does not count, so
//! only a task that was never leased before is fetched ahead (this happens at most once to a task), and never one with a
//! single attempt. See `docs/decisions/0027-when-an-attempt-counts.md`.

use super::{LeaseTasks, Retries, Task, TaskState};
use crate::Token;

impl Task {
    /// After so many leases in a row that ran out, a task runs alone.
    pub const ALONE_AFTER: u32 = 2;

    /// Longest pause after the first lease that ran out, in microseconds; a lease of 5 s is available again after 6 s.
    const FIRST_PAUSE: u64 = 500_000;

    /// Whether a worker must run nothing else beside this task. The task may be what crashed its workers, so it is kept
    /// from failing others: after [`Task::ALONE_AFTER`] lost leases in a row, or after one if its next attempt is the last.
    pub fn runs_alone(&self) -> bool {
        let used = self.attempt - u32::from(self.state == TaskState::Running);
        self.expiries >= Self::ALONE_AFTER || (self.expiries > 0 && used + 1 >= self.retries.attempts)
    }

    /// Whether a worker may lease this task before it can start it.
    pub fn may_be_fetched_ahead(&self) -> bool {
        self.token == Token::default() && self.retries.attempts > 1
    }

    /// Pause after a started attempt whose lease ran out, in microseconds. The first one is short: mostly a worker was
    /// restarted. It differs from task to task, so that tasks of one worker do not come back together.
    pub(super) fn pause_after_expiry(&self) -> u64 {
        if self.expiries > 1 {
            return self.retries.pause(self.id, self.attempt);
        }
        let longest = self.retries.first.as_micros().min(Self::FIRST_PAUSE);
        Retries::jitter(self.id, self.attempt, longest)
    }
}

impl LeaseTasks {
    /// Whether the next task in line is given as part of an answer that has `given` tasks so far, and if so, whether it
    /// counts as begun. `None` ends the answer. After a task that runs alone the answer ends as well.
    pub fn gives(&self, task: &Task, given: usize) -> Option<bool> {
        if task.runs_alone() {
            return (given == 0).then_some(self.idle);
        }
        let begins = given < self.begin as usize;
        (begins || task.may_be_fetched_ahead()).then_some(begins)
    }
}
