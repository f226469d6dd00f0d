//! View of an issue and its comments as a task.

use super::issue_body::{IssueBody, task_from_issue};
use super::labels::FAILED;
use super::record::Record;
use crate::model::{Cancel, Holder, Metadata, QueueName, Reason, Task, TaskOp, TaskState, Timestamp, Ttl};
use crate::store::github::api::Issue;
use crate::store::github::locks::{GRACE, View};

#[derive(Debug, Clone)]
pub(super) struct TaskView {
    /// Current task, including cancellation requests and what people did to its issue.
    pub(super) task: Task,
    /// Task according to the issue alone.
    pub(super) issue_task: Task,
    pub(super) now: Timestamp,
    /// State in the task's record; `None` if there is no record.
    written: Option<TaskState>,
    /// Whether a worker holds the task, or may hold it.
    pub(super) is_held: bool,
    /// Claim under which the task runs.
    pub(super) claim: Option<WorkerClaim>,
}

#[derive(Debug, Clone)]
pub(super) struct WorkerClaim {
    pub(super) metadata: Metadata,
    pub(super) ttl: Ttl,
    pub(super) last_heartbeat: Timestamp,
}

/// Name for a person who has closed an issue: nothing else is known of that person.
const CLOSED_BY: &str = "the person who closed the issue";

impl TaskView {
    /// Creates the view; `None` if the issue is not a task of this queue.
    pub(super) fn new(
        issue: &Issue,
        body: Option<&IssueBody>,
        queue: &QueueName,
        view: &View,
    ) -> Option<Self> {
        let (known, now) = (view.task(), view.now);
        let queue = known.map_or(queue, |known| &known.record.queue);
        let issue_task = task_from_issue(issue, queue, body)?;
        let mut task = known.map_or_else(|| issue_task.clone(), |known| known.record.task(&issue_task));
        let written = known.map(|_| task.state);
        let running = task.state == TaskState::Running;
        if let Some(expires_at) = known.and_then(|known| known.expires_at()).filter(|_| running) {
            task.lease_expires_at = Some(expires_at);
        }
        let is_held = running && task.lease_expires_at.is_none_or(|ends| now < ends.plus(GRACE));
        if let Some(asked) = view.release_request(task.token) {
            task.apply(&TaskOp::Cancel(Cancel { by: asked.by, reason: asked.reason }), asked.at);
        }
        let claim = known.and_then(|known| {
            let (held, last_heartbeat) = (known.held?, known.edited_at);
            Some(WorkerClaim { metadata: held.metadata.clone(), ttl: held.ttl, last_heartbeat })
        });
        let mut task_view = Self { task, issue_task, now, written, is_held, claim };
        task_view.apply_issue_state(issue);
        let due = task_view.task.run_at;
        if task_view.task.is_due(now) {
            // The task became pending at that time, no matter when it is read.
            task_view.task.apply(&TaskOp::Promote, due);
        }
        Some(task_view)
    }

    /// Applies what people did to the issue. While a worker holds the task, closing the issue only
    /// requests its cancellation.
    fn apply_issue_state(&mut self, issue: &Issue) {
        if self.task.state.is_terminal() {
            return;
        }
        let closed_at = issue.closed_at.unwrap_or(issue.updated_at);
        if issue.is_closed() && (self.is_held || !issue.is_completed()) {
            self.task.apply(&TaskOp::Cancel(closing_cancel()), closed_at);
            if self.task.state == TaskState::Running && !self.is_held {
                (self.task.state, self.task.lease_expires_at) = (TaskState::Aborted, None);
                self.task.begun = false;
                self.task.finished_at = Some(closed_at);
            }
        } else if issue.is_closed() || (issue.has_label(FAILED) && !self.is_held) {
            // A person has decided the state by hand: no rule covers a task that no worker has run.
            let state = if issue.is_closed() { TaskState::Succeeded } else { TaskState::Failed };
            (self.task.state, self.task.lease_expires_at) = (state, None);
            self.task.begun = false;
            self.task.finished_at = Some(closed_at);
        }
    }

    /// Whether the task's lease has expired, so that any client may end it.
    pub(super) fn is_lease_expired(&self) -> bool {
        self.task.state == TaskState::Running && !self.is_held && self.task.has_expired(self.now)
    }

    /// Whether the issue does not match the task's record yet: the client that wrote the record has
    /// died, or a person wants the task to be retried.
    pub(super) fn is_issue_outdated(&self, issue: &Issue) -> bool {
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
        Record::of(task, &self.issue_task)
    }
}

/// Returns the cancellation request of a person who closes an issue.
fn closing_cancel() -> Cancel {
    Cancel {
        by: Holder::new(CLOSED_BY).expect("the text is short"),
        reason: Reason::new("the issue was closed").ok(),
    }
}
