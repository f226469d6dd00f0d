//! An issue and its comments as a task.

use super::labels::FAILED;
use super::made::{Made, plain};
use super::record::Record;
use crate::model::{Cancel, Holder, Metadata, QueueName, Reason, Task, TaskOp, TaskState, Timestamp, Ttl};
use crate::store::github::answers::Issue;
use crate::store::github::view::{GRACE, View};

/// A task as it was seen.
#[derive(Debug, Clone)]
pub(super) struct Sight {
    /// As it stands: what was asked of it and what people did to its issue included.
    pub(super) task: Task,
    /// As the issue alone says it.
    pub(super) plain: Task,
    /// When it was seen.
    pub(super) now: Timestamp,
    /// Where its record left it; none if there is no record.
    written: Option<TaskState>,
    /// Somebody has it, or may.
    pub(super) alive: bool,
    /// The claim under which it runs.
    pub(super) held: Option<Held>,
}

/// What a worker says of itself with its claim.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) facts: Metadata,
    pub(super) ttl: Ttl,
    /// Its last sign of life.
    pub(super) seen: Timestamp,
}

/// What people are called who have closed an issue: that they did is all that is known.
const SOMEBODY: &str = "somebody who closed the issue";

impl Sight {
    /// None if the issue is no task of this queue.
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
            // It came then, whenever it is seen.
            sight.task.apply(&TaskOp::Promote, due);
        }
        Some(sight)
    }

    /// What people did to the issue, as far as nobody works on it.
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
            // Somebody has decided it by hand: there is no rule for what nobody has worked on.
            let state = if issue.is_closed() { TaskState::Succeeded } else { TaskState::Failed };
            (self.task.state, self.task.lease_expires_at) = (state, None);
            self.task.begun = false;
            self.task.finished_at = Some(closed_at);
        }
    }

    /// Whether its lease has run out, so that anybody may end it.
    pub(super) fn has_lapsed(&self) -> bool {
        self.task.state == TaskState::Running && !self.alive && self.task.has_expired(self.now)
    }

    /// Whether its issue does not yet look as its record wants it: whoever wrote that has died, or somebody wants it tried again.
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

    /// What is to be written of the task when it has changed.
    pub(super) fn record(&self, task: &Task) -> Record {
        Record::of(task, &self.plain)
    }
}

/// Whether a person has closed it as done; they may also not have said why.
fn is_done(issue: &Issue) -> bool {
    issue.state_reason.as_deref().is_none_or(|reason| reason == "completed")
}

/// Whoever closes an issue wants it stopped.
pub(super) fn closed() -> Cancel {
    Cancel {
        by: Holder::new(SOMEBODY).expect("a short text"),
        reason: Reason::new("the issue was closed").ok(),
    }
}
