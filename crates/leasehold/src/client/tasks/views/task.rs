//! A task as JSON, and what happened to it.

use serde::Serialize;

use crate::model::{Asked, Payload, Progress, Task, TaskEvent, TaskState, Timestamp};

/// One task.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// Where it stands: scheduled, blocked, pending, running, succeeded, failed or aborted.
    #[cfg_attr(feature = "openapi", schema(example = "running"))]
    pub state: String,
    /// What it is about: any JSON value.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// Its weight among those that could run.
    pub priority: i32,
    /// Not before this time.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub run_at: String,
    /// What makes it the same task when it is added again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// It runs only while its worker holds this lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// How many attempts have begun that count.
    pub attempt: u32,
    /// How often it is tried.
    pub max_attempts: u32,
    /// The pause after the first failed attempt; each one after it is twice as long.
    pub backoff_seconds: f64,
    /// The token of its newest lease: it only rises.
    pub token: u64,
    /// Counts every change that somebody made to it.
    pub version: u64,
    /// How many leases in a row ran out after their worker had started the task.
    pub expiries: u32,
    /// Whether its worker must run nothing else beside it, because leases of it ran out again and again.
    pub runs_alone: bool,
    /// The worker that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub worker: Option<String>,
    /// The worker that had it last, if none has it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub last_worker: Option<String>,
    /// Since when that worker has or had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub leased_at: Option<String>,
    /// Until when it has it, unless it gives a sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub lease_expires_at: Option<String>,
    /// How far it has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// What came of it: any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub result: Option<Payload>,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Who wants it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelView>,
    /// When it was added.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub created_at: String,
    /// When it changed last; signs of life aside.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub updated_at: String,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub finished_at: Option<String>,
    /// Put away: not listed unless asked for.
    pub archived: bool,
    /// Attempts that did not end it and steps that people took, oldest first.
    pub events: Vec<TaskEventView>,
}

/// How far a task has come.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressView {
    /// So much is done…
    pub done: u64,
    /// …of so much, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// What is being done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Who wants a task stopped.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelView {
    /// Who.
    pub by: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// Something that happened to a task and did not end it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskEventView {
    /// When.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
    /// What: failed, expired, snoozed, returned, asked, retried or updated.
    pub kind: String,
    /// In which attempt, or after it.
    pub attempt: u32,
    /// Under which token.
    pub token: u64,
    /// By which worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub worker: Option<String>,
    /// When that attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub leased_at: Option<String>,
    /// By whom, if a person stepped in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
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
            expiries: task.expiries,
            runs_alone: task.runs_alone() && !task.state.is_terminal(),
            worker: text(task.worker.as_ref().filter(|_| task.state == TaskState::Running)),
            last_worker: text(task.worker.as_ref().filter(|_| task.state != TaskState::Running)),
            leased_at: task.leased_at.map(exact),
            lease_expires_at: task.lease_expires_at.map(exact),
            progress: task.progress.as_ref().map(ProgressView::from),
            result: task.result.clone(),
            error: text(task.error.as_ref()),
            cancel: task.cancel.as_ref().map(CancelView::from),
            created_at: exact(task.created_at),
            updated_at: exact(task.updated_at),
            finished_at: task.finished_at.map(exact),
            archived: task.archived,
            events: task.events.iter().map(TaskEventView::from).collect(),
        }
    }
}

impl From<&Progress> for ProgressView {
    fn from(progress: &Progress) -> Self {
        Self { done: progress.done, of: progress.of, note: text(progress.note.as_ref()) }
    }
}

impl From<&Asked> for CancelView {
    fn from(asked: &Asked) -> Self {
        Self { by: asked.by.to_string(), reason: text(asked.reason.as_ref()), at: exact(asked.at) }
    }
}

impl From<&TaskEvent> for TaskEventView {
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
