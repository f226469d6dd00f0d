//! Accounting of attempts: which leased tasks start at once, which are prefetched, and which run alone.
//!
//! A worker prefetches short tasks beyond its free slots. The attempt of such a task counts only
//! once the worker reports that it has started the task. A worker that dies between the start and
//! that report leaves an attempt that ran but does not count. Therefore only a task that was never
//! leased before is prefetched (this happens at most once per task), and never a task with a single
//! attempt.
//!
//! A task with a lock waits for that lock under its lease, perhaps for hours. Its worker reports the
//! start once it has the lock, and starts the task only when the store has stored the report. So a
//! worker that dies while the task waits uses none of its attempts.
//! See `docs/decisions/0027-when-an-attempt-counts.md`.

use super::{LeaseTasks, RetryPolicy, Task, TaskState};
use crate::Token;

impl Task {
    /// Number of consecutive expired leases after which a task runs alone.
    pub const ALONE_AFTER: u32 = 2;

    /// Maximum pause after the first expired lease, in microseconds; a task with a lease of 5 s is
    /// available again after 6 s.
    const FIRST_PAUSE: u64 = 500_000;

    /// Returns whether a worker must not run other tasks beside this one. The task may have crashed
    /// its workers, so it is isolated to keep it from failing other tasks: after
    /// [`Task::ALONE_AFTER`] consecutive expired leases, or after one if the next attempt is the last.
    pub fn runs_alone(&self) -> bool {
        let used = self.attempt - u32::from(self.state == TaskState::Running);
        self.expiries >= Self::ALONE_AFTER || (self.expiries > 0 && used + 1 >= self.retries.attempts)
    }

    /// Returns whether a worker may lease this task before it can start it.
    pub fn may_be_fetched_ahead(&self) -> bool {
        self.token == Token::default() && self.retries.attempts > 1
    }

    /// Returns the pause after a started attempt whose lease expired, in microseconds. The first
    /// pause is short because the usual cause is a worker restart. The pause differs per task, so
    /// that the tasks of one worker do not return at the same time.
    pub(super) fn pause_after_expiry(&self) -> u64 {
        if self.expiries > 1 {
            return self.retries.pause(self.id, self.attempt);
        }
        let longest = self.retries.initial_delay.as_micros().min(Self::FIRST_PAUSE);
        RetryPolicy::jitter(self.id, self.attempt, longest)
    }
}

impl LeaseTasks {
    /// Returns whether the response, which has `given` tasks so far, includes the next queued task
    /// and, if so, whether the task counts as begun. `None` ends the response. The response also
    /// ends after a task that runs alone.
    pub fn gives(&self, task: &Task, given: usize) -> Option<bool> {
        let starts_later = self.waits_for_locks && task.lock.is_some();
        if task.runs_alone() {
            return (given == 0).then_some(self.idle && !starts_later);
        }
        let begins = given < self.begin as usize;
        (begins || task.may_be_fetched_ahead()).then_some(begins && !starts_later)
    }
}
