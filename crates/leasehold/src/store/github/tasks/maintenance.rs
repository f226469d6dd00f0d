//! Recovery, which expires the leases of dead workers; and updates of issues to match their tasks. A
//! client writes a change of a task first, and then closes, labels or reopens the issue. If the client
//! dies in between, the next client that lists the queue updates the issue.

use serde_json::json;

use super::context::{Context, CreatedIssues, holder};
use super::issue_body::{IssueBody, IssueStage};
use super::labels::FAILED;
use super::lease::brief_request;
use super::lease_order::NextStep;
use super::task_view::TaskView;
use crate::Result;
use crate::error::Error;
use crate::model::{QueueName, Recovered, Task, TaskOp, TaskState, Timestamp, Token, Ttl};
use crate::store::github::api::{Issue, IssueEvent};
use crate::store::github::locks::{UpdatedClaim, View, is_lock};

/// Age from which a candidate is closed: far beyond the time in which it could become a task.
const ABANDONED_AFTER: Ttl = Ttl::from_secs(600);
/// Maximum number of candidates that one call closes.
const MAX_CLOSED: usize = 10;

impl Context {
    /// Expires up to `limit` leases whose time has elapsed. Also closes candidates that were abandoned.
    pub(super) async fn recover(&self, limit: u32) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let created = self.created_issues("open").await?;
        self.close_abandoned(&created).await;
        for queue in self.queues_of(&created) {
            let listed = self.protocol.api.list_issues(queue.as_str(), "open").await?;
            for issue in listed.value {
                if recovered.expired() >= limit {
                    return Ok(recovered);
                }
                // An issue without comments has no lease.
                if issue.comments == 0 || is_lock(&issue) {
                    continue;
                }
                match self.recover_issue(&queue, &issue, listed.now, &mut recovered).await {
                    // A task that cannot be recovered must not block the recovery of others.
                    Err(error) if !error.is_retryable() => {
                        tracing::warn!(issue = issue.number, %error, "failed to recover a task");
                    }
                    result => result?,
                }
            }
        }
        Ok(recovered)
    }

    async fn recover_issue(
        &self,
        queue: &QueueName,
        issue: &Issue,
        now: Timestamp,
        recovered: &mut Recovered,
    ) -> Result<()> {
        let Some(task_view) = self.read_cached(queue, issue, now).await? else { return Ok(()) };
        if task_view.is_lease_expired() {
            self.expire(queue, issue, recovered).await?;
        } else if matches!(NextStep::of(&task_view, issue), NextStep::UpdateIssue)
            && !self.is_update_refused(issue)
        {
            // The next lease call decides whether a person wants the task again.
            self.update_issue_or_retry(issue, &task_view).await?;
        }
        Ok(())
    }

    /// Closes candidates whose client has died, or could not withdraw them: to people they look like tasks.
    async fn close_abandoned(&self, created: &CreatedIssues) {
        let is_abandoned = |(issue, body): &&(Issue, IssueBody)| {
            body.state == IssueStage::Candidate
                && issue.created_at.plus(ABANDONED_AFTER) <= created.now
                && !self.is_update_refused(issue)
        };
        let abandoned: Vec<_> = created.issues.iter().filter(is_abandoned).take(MAX_CLOSED).collect();
        for (issue, _) in abandoned {
            let change = json!({ "state": "closed", "state_reason": "not_planned" });
            if let Err(error) = self.protocol.api.edit_issue(issue.number, change, None).await {
                tracing::warn!(issue = issue.number, %error, "failed to close an issue that did not become a task");
                self.record_failed_update(issue, &error);
            }
        }
    }

    /// Expires one lease, unless another client is changing the task.
    async fn expire(&self, queue: &QueueName, issue: &Issue, recovered: &mut Recovered) -> Result<()> {
        let update = |view: &View, _: Token| {
            let task_view = self.task_view(queue, issue, view).filter(TaskView::is_lease_expired)?;
            let mut task = task_view.task.clone();
            task.apply(&TaskOp::Expire, task_view.now);
            let record = task_view.record(&task);
            Some((task, Some(UpdatedClaim { record, holds: false })))
        };
        if let (true, Some(task)) = self.claim(issue.number, brief_request(holder()), update, true).await? {
            recovered.count(task.state);
            self.update_issue(issue.number, &task, issue.is_closed()).await;
        }
        Ok(())
    }

    /// Updates the issue to match the task. The state of the task is already written: if this
    /// fails, another client does it later.
    pub(super) async fn update_issue(&self, number: u64, task: &Task, is_closed: bool) {
        if let Err(error) = self.try_update_issue(number, task, is_closed).await {
            log_failed_update(number, task, &error);
        }
    }

    async fn try_update_issue(&self, number: u64, task: &Task, is_closed: bool) -> Result<()> {
        let api = &self.protocol.api;
        let reason = match task.state {
            TaskState::Succeeded => "completed",
            TaskState::Aborted => "not_planned",
            TaskState::Failed if !is_closed => return api.add_label(number, FAILED).await,
            _ => return Ok(()),
        };
        if !is_closed {
            api.edit_issue(number, json!({ "state": "closed", "state_reason": reason }), None).await?;
        }
        Ok(())
    }

    /// Handles an open issue whose task has ended. Either no client has closed or labelled it yet,
    /// and this call does; or a person has reopened it, or removed the label of failure, to have
    /// the task run again. Returns `true` in the second case.
    pub(super) async fn update_issue_or_retry(&self, issue: &Issue, task_view: &TaskView) -> Result<bool> {
        let finished_at = task_view.task.finished_at.unwrap_or_default();
        let events = self.protocol.api.events(issue.number).await?;
        if events.iter().any(|event| requests_retry(event, task_view.task.state, finished_at)) {
            return Ok(true);
        }
        tracing::info!(issue = issue.number, state = %task_view.task.state, "updating an issue that another client did not finish");
        if let Err(error) = self.try_update_issue(issue.number, &task_view.task, false).await {
            log_failed_update(issue.number, &task_view.task, &error);
            self.record_failed_update(issue, &error);
        }
        Ok(false)
    }

    /// Reopens the issue before its task is retried by hand: if the process dies in between, it is
    /// as if a person had reopened the issue.
    pub(super) async fn reopen(&self, issue: &Issue) -> Result<()> {
        let api = &self.protocol.api;
        if issue.is_closed() {
            api.edit_issue(issue.number, json!({ "state": "open" }), None).await?;
        }
        if issue.has_label(FAILED) {
            api.remove_label(issue.number, FAILED).await?;
        }
        Ok(())
    }
}

fn log_failed_update(number: u64, task: &Task, error: &Error) {
    tracing::warn!(issue = number, state = %task.state, %error, "failed to update an issue; the next client that lists the queue does it");
}

fn requests_retry(event: &IssueEvent, state: TaskState, finished_at: Timestamp) -> bool {
    let is_request = match state {
        TaskState::Failed => event.event == "unlabeled" && event.label() == Some(FAILED),
        _ => event.event == "reopened",
    };
    is_request && event.created_at >= finished_at
}
