//! A task as JSON: names in camelCase, times in RFC 3339, the payload as the value that it is.

use leasehold::model::{Asked, Payload, Progress, Task, TaskEvent, Timestamp};
use serde::Serialize;

/// One task.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskView {
    id: String,
    queue: String,
    state: String,
    payload: Payload,
    priority: i32,
    run_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<String>,
    attempt: u32,
    max_attempts: u32,
    backoff_seconds: f64,
    token: u64,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Payload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelView>,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    archived: bool,
    events: Vec<EventView>,
}

/// Who wants it stopped.
#[derive(Debug, Clone, Serialize)]
struct CancelView {
    by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    at: String,
}

/// Something that happened to it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventView {
    at: String,
    kind: String,
    attempt: u32,
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// To the microsecond.
pub(super) fn exact(time: Timestamp) -> String {
    format!("{time:#}")
}

fn text(value: Option<&impl ToString>) -> Option<String> {
    value.map(ToString::to_string)
}

impl From<&Task> for TaskView {
    fn from(task: &Task) -> Self {
        Self {
            id: task.id.to_string(),
            queue: task.queue.to_string(),
            state: task.state.to_string(),
            payload: task.payload.clone(),
            priority: task.priority.get(),
            run_at: exact(task.run_at),
            key: text(task.key.as_ref()),
            lock: text(task.lock.as_ref()),
            attempt: task.attempt,
            max_attempts: task.retries.attempts,
            backoff_seconds: task.retries.first.as_duration().as_secs_f64(),
            token: task.token.get(),
            version: task.version,
            worker: text(task.worker.as_ref()),
            leased_at: task.leased_at.map(exact),
            lease_expires_at: task.lease_expires_at.map(exact),
            progress: task.progress.clone(),
            result: task.result.clone(),
            error: text(task.error.as_ref()),
            cancel: task.cancel.as_ref().map(CancelView::from),
            created_at: exact(task.created_at),
            updated_at: exact(task.updated_at),
            finished_at: task.finished_at.map(exact),
            archived: task.archived,
            events: task.events.iter().map(EventView::from).collect(),
        }
    }
}

impl From<&Asked> for CancelView {
    fn from(asked: &Asked) -> Self {
        Self { by: asked.by.to_string(), reason: text(asked.reason.as_ref()), at: exact(asked.at) }
    }
}

impl From<&TaskEvent> for EventView {
    fn from(event: &TaskEvent) -> Self {
        Self {
            at: exact(event.at),
            kind: event.kind.to_string(),
            attempt: event.attempt,
            token: event.token.get(),
            worker: text(event.worker.as_ref()),
            leased_at: event.leased_at.map(exact),
            by: text(event.by.as_ref()),
            why: text(event.why.as_ref()),
        }
    }
}
