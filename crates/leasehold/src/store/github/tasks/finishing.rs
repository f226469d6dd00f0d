//! Update of the issue after a change of its task is written: the client closes, labels or reopens
//! the issue to match the task. If the client dies before that, the next client that lists the
//! queue does it.

use serde_json::json;

use super::desk::Desk;
use super::labels::FAILED;
use super::sight::Sight;
use crate::Result;
use crate::model::{Task, TaskState, Timestamp};
use crate::store::github::answers::{Issue, IssueEvent};

impl Desk {
    /// Updates the issue to match the task. The state of the task is already written: if this
    /// fails, another client does it later.
    pub(super) async fn finish(&self, number: u64, task: &Task, is_closed: bool) {
        if let Err(error) = self.try_finish(number, task, is_closed).await {
            tracing::warn!(issue = number, state = %task.state, %error, "an issue could not be brought up to date; whoever comes next does it");
        }
    }

    async fn try_finish(&self, number: u64, task: &Task, is_closed: bool) -> Result<()> {
        let api = &self.protocol.api;
        let reason = match task.state {
            TaskState::Succeeded => "completed",
            TaskState::Aborted => "not_planned",
            TaskState::Failed if !is_closed => return api.add_label(number, FAILED).await,
            _ => return Ok(()),
        };
        if !is_closed {
            api.edit_issue(number, json!({ "state": "closed", "state_reason": reason })).await?;
        }
        Ok(())
    }

    /// Handles an open issue whose task has ended. Either no client has closed or labelled it yet,
    /// and this call does; or a person has reopened it, or removed the label of failure, to have
    /// the task run again. Returns `true` in the second case.
    pub(super) async fn finish_or_try_again(&self, issue: &Issue, sight: &Sight) -> Result<bool> {
        let over_since = sight.task.finished_at.unwrap_or_default();
        let events = self.protocol.api.events(issue.number).await?;
        if events.iter().any(|event| wants_it_again(event, sight.task.state, over_since)) {
            return Ok(true);
        }
        tracing::info!(issue = issue.number, state = %sight.task.state, "an issue is brought up to date that somebody has left");
        self.finish(issue.number, &sight.task, false).await;
        Ok(false)
    }

    /// Reopens the issue before its task is retried by hand: if the process dies in between, it is
    /// as if a person had reopened the issue.
    pub(super) async fn reopen(&self, issue: &Issue) -> Result<()> {
        let api = &self.protocol.api;
        if issue.is_closed() {
            api.edit_issue(issue.number, json!({ "state": "open" })).await?;
        }
        if issue.has_label(FAILED) {
            api.remove_label(issue.number, FAILED).await?;
        }
        Ok(())
    }
}

fn wants_it_again(event: &IssueEvent, state: TaskState, over_since: Timestamp) -> bool {
    let is_it = match state {
        TaskState::Failed => event.event == "unlabeled" && event.label() == Some(FAILED),
        _ => event.event == "reopened",
    };
    is_it && event.created_at >= over_since
}
