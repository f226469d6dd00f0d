//! Text of an issue that a program has created for a task, and the task according to its issue.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::labels;
use crate::model::{
    Fingerprint, NewTask, Payload, Priority, QueueName, RetryPolicy, Task, TaskId, TaskKey, Ttl,
    ValidationError, ValueKind, When,
};
use crate::store::github::api::{Issue, User};
use crate::store::github::markup::{embed_json, extract_json};

const BEGIN: &str = "<!-- leasehold:task ";
/// Maximum size of an issue's text, for which GitHub allows at most 65,536 characters.
const MAX_TEXT: usize = 60 << 10;
/// Maximum size of a payload in a title, and in the text for people.
const MAX_TITLE: usize = 80;
const MAX_SHOWN: usize = 2000;

/// Hidden JSON in the text of an issue that was created for a task. Part of the stored format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IssueBody {
    pub(super) id: TaskId,
    pub(super) queue: QueueName,
    pub(super) state: IssueStage,
    /// Kept as text, so that it stays exactly as it was written.
    payload: String,
    pub(super) fingerprint: Fingerprint,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<TaskKey>,
    #[serde(default)]
    when: When,
    #[serde(default)]
    priority: Priority,
    #[serde(default)]
    retries: RetryPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<Ttl>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum IssueStage {
    /// Candidate: its creator checks whether there is another one.
    Candidate,
    /// Task.
    Settled,
}

impl IssueBody {
    /// Creates the hidden JSON for a new task. Fails if the payload is too large for an issue.
    pub(super) fn new(new: &NewTask) -> Result<Self, ValidationError> {
        let body = Self {
            id: new.id,
            queue: new.queue.clone(),
            state: IssueStage::Candidate,
            payload: new.payload.as_str().to_owned(),
            fingerprint: new.fingerprint(),
            key: new.key.clone(),
            when: new.when,
            priority: new.priority,
            retries: new.retries,
            timeout: new.timeout,
        };
        if body.text().len() > MAX_TEXT {
            return Err(ValidationError::new(
                ValueKind::Payload,
                format!(
                    "a payload of {} bytes does not fit into an issue of GitHub: store it elsewhere, and put its address into the task",
                    body.payload.len()
                ),
            ));
        }
        Ok(body)
    }

    /// Parses the text of an issue; `None` if the issue was not created for a task.
    pub(super) fn parse(issue: &Issue) -> Option<Self> {
        extract_json::<Self>(BEGIN, issue.body.as_deref()?)?.ok()
    }

    pub(super) fn title(&self) -> String {
        let payload = &self.payload[..self.payload.floor_char_boundary(MAX_TITLE)];
        format!("{}: {payload}", self.queue).replace(char::is_control, " ")
    }

    pub(super) fn text(&self) -> String {
        let payload = &self.payload[..self.payload.floor_char_boundary(MAX_SHOWN)];
        let payload = payload.replace("```", "'''").replace("<!--", "<! --");
        format!(
            "A task for `{}`, added by [leasehold](https://github.com/leasehold/leasehold). Close the issue to cancel the task; assign yourself to do it yourself.\n\n\
             ```json\n{payload}\n```\n\n{}",
            self.queue.as_str().replace('`', "'").replace("<!--", "<! --"),
            embed_json(BEGIN, self)
        )
    }

    pub(super) fn settled(&self) -> Self {
        Self { state: IssueStage::Settled, ..self.clone() }
    }

    /// Returns the same without its key, which another task takes over.
    pub(super) fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    fn new_task(&self) -> NewTask {
        NewTask {
            when: self.when,
            priority: self.priority,
            key: self.key.clone(),
            retries: self.retries,
            timeout: self.timeout,
            fingerprint: Some(self.fingerprint),
            ..NewTask::new(self.id, self.queue.clone(), Payload::new(&self.payload).unwrap_or_default())
        }
    }
}

/// Returns the task according to an issue alone, without its comments. `None` if the issue is only
/// a candidate, or cannot be a task.
pub(super) fn task_from_issue(issue: &Issue, queue: &QueueName, body: Option<&IssueBody>) -> Option<Task> {
    if let Some(body) = body {
        return (body.state == IssueStage::Settled).then(|| Task::new(&body.new_task(), issue.created_at));
    }
    let labels: Vec<_> = issue.labels().collect();
    let payload = json!({
        "number": issue.number,
        "title": issue.title,
        "body": issue.body.as_deref().unwrap_or_default(),
        "labels": labels,
        "url": issue.html_url,
        "author": issue.user.as_ref().map(|user: &User| user.login.as_str()),
    });
    let new = NewTask {
        priority: labels::urgency(issue).1,
        retries: labels::retries(issue),
        ..NewTask::new(TaskId::numbered(issue.number)?, queue.clone(), Payload::of(&payload).ok()?)
    };
    Some(Task::new(&new, issue.created_at))
}
