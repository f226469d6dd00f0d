//! After a change is written: the issue is closed, labelled or opened as its task wants it. Whoever dies before that leaves it to the
//! next one who lists the queue.

use serde_json::json;

use super::desk::Desk;
use super::labels::FAILED;
use super::sight::Sight;
use crate::Result;
use crate::model::{Task, TaskState, Timestamp};
use crate::store::github::answers::{Issue, IssueEvent};

impl Desk {
    /// Makes the issue look as the task stands. That it stands so is written already: if this fails, somebody does it later.
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

    /// An open issue whose task is over: either nobody has closed it yet, which is done here; or somebody has opened it again, who
    /// wants it done again. Says whether it is that.
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

    /// Before a task is tried again by hand, its issue looks so: if we die in between, it is as if a person had done it there.
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
