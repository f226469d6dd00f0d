//! View of an issue and its comments as a task.

use super::labels::FAILED;
use super::made::{Made, plain};
use super::record::Record;
use crate::model::{Cancel, Holder, Metadata, QueueName, Reason, Task, TaskOp, TaskState, Timestamp, Ttl};
use crate::store::github::answers::Issue;
use crate::store::github::view::{GRACE, View};

/// Task as it was read.
#[derive(Debug, Clone)]
pub(super) struct Sight {
    /// Current task, including cancellation requests and what people did to its issue.
    pub(super) task: Task,
    /// Task according to the issue alone.
    pub(super) plain: Task,
    /// Time of the read.
    pub(super) now: Timestamp,
    /// State in the task's record; `None` if there is no record.
    written: Option<TaskState>,
    /// Whether a worker holds the task, or may hold it.
    pub(super) alive: bool,
    /// Claim under which the task runs.
    pub(super) held: Option<Held>,
}

/// Information about a worker in its claim.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) facts: Metadata,
    pub(super) ttl: Ttl,
    /// Time of the last heartbeat.
    pub(super) seen: Timestamp,
}

/// Name for a person who has closed an issue: nothing else is known of that person.
const SOMEBODY: &str = "somebody who closed the issue";

impl Sight {
    /// Creates the view; `None` if the issue is not a task of this queue.
    pub(super) fn new(issue: &Issue, made: Option<&Made>, queue: &QueueName, view: &View) -> Option<Self> {
        let (known, now) = (view.task(), view.now);
        let queue = known.map_or(queue, |known| known.record.queue());
        let plain = plain(issue, queue, made)?;
        let mut task = known.map_or_else(|| plain.clone(), |known| known.record.task(&plain));
        let written = known.map(|_| task.state);
        let running = task.state == TaskState::Running;
        if let Some(ends) = known.and_then(|known| known.ends()).filter(|_| running) {
            task.lease_expires_at = Some(ends);
        }
        let alive = running && task.lease_expires_at.is_none_or(|ends| now < ends.plus(GRACE));
        if let Some(asked) = view.asked(task.token) {
            task.apply(&TaskOp::Cancel(Cancel { by: asked.by, reason: asked.reason }), asked.at);
        }
        let held = known.and_then(|known| {
            known.held.map(|claim| Held { facts: claim.metadata.clone(), ttl: claim.ttl, seen: known.seen })
        });
        let mut sight = Self { task, plain, now, written, alive, held };
        sight.see_people(issue);
        let due = sight.task.run_at;
        if sight.task.is_due(now) {
            // The task became pending at that time, no matter when it is read.
            sight.task.apply(&TaskOp::Promote, due);
        }
        Some(sight)
    }

    /// Applies what people did to the issue. While a worker holds the task, closing the issue only
    /// requests its cancellation.
    fn see_people(&mut self, issue: &Issue) {
        if self.task.state.is_terminal() {
            return;
        }
        let closed_at = issue.closed_at.unwrap_or(issue.updated_at);
        if issue.is_closed() && (self.alive || !is_done(issue)) {
            self.task.apply(&TaskOp::Cancel(closed()), closed_at);
            if self.task.state == TaskState::Running && !self.alive {
                (self.task.state, self.task.lease_expires_at) = (TaskState::Aborted, None);
                self.task.begun = false;
                self.task.finished_at = Some(closed_at);
            }
        } else if issue.is_closed() || (issue.has_label(FAILED) && !self.alive) {
            // A person has decided the state by hand: no rule covers a task that no worker has run.
            let state = if issue.is_closed() { TaskState::Succeeded } else { TaskState::Failed };
            (self.task.state, self.task.lease_expires_at) = (state, None);
            self.task.begun = false;
            self.task.finished_at = Some(closed_at);
        }
    }

    /// Whether the task's lease has expired, so that any client may end it.
    pub(super) fn has_lapsed(&self) -> bool {
        self.task.state == TaskState::Running && !self.alive && self.task.has_expired(self.now)
    }

    /// Whether the issue does not match the task's record yet: the client that wrote the record has
    /// died, or a person wants the task to be retried.
    pub(super) fn is_unfinished(&self, issue: &Issue) -> bool {
        let state = self.task.state;
        let by_record = self.written.is_some_and(|written| written == state || !written.is_terminal());
        match state {
            TaskState::Succeeded => self.written == Some(state) && !issue.is_closed(),
            TaskState::Aborted => by_record && !issue.is_closed(),
            TaskState::Failed => {
                self.written == Some(state) && !issue.is_closed() && !issue.has_label(FAILED)
            }
            _ => false,
        }
    }

    /// Returns the record to write after a change of the task.
    pub(super) fn record(&self, task: &Task) -> Record {
        Record::of(task, &self.plain)
    }
}

/// Whether a person has closed the issue as completed; the reason may also be missing.
fn is_done(issue: &Issue) -> bool {
    issue.state_reason.as_deref().is_none_or(|reason| reason == "completed")
}

/// Returns the cancellation request of a person who closes an issue.
pub(super) fn closed() -> Cancel {
    Cancel {
        by: Holder::new(SOMEBODY).expect("a short text"),
        reason: Reason::new("the issue was closed").ok(),
    }
}
