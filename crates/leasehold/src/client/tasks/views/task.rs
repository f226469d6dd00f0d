//! JSON view of a task and its events.

use serde::Serialize;

use crate::model::{Asked, Payload, Progress, Task, TaskEvent, TaskState, Timestamp};

/// A task.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    /// Id of the task.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// Queue of the task.
    pub queue: String,
    /// Current state of the task: scheduled, blocked, pending, running, succeeded, failed or
    /// aborted.
    #[cfg_attr(feature = "openapi", schema(example = "running"))]
    pub state: String,
    /// Payload of the task: any JSON value.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// Priority among the tasks that are ready to run.
    pub priority: i32,
    /// Earliest time at which the task may run.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub run_at: String,
    /// Idempotency key: identifies the task when a caller adds it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Lock that the worker must hold while the task runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Number of attempts that have begun and count.
    pub attempt: u32,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Delay after the first failed attempt; the delay doubles with each further failure.
    pub backoff_seconds: f64,
    /// Fencing token of the newest lease; monotonically increasing.
    pub token: u64,
    /// Version, incremented by every change that a caller made to the task.
    pub version: u64,
    /// Number of consecutive leases that expired after their worker had started the task.
    pub expiries: u32,
    /// Whether a worker must run no other task beside this one, because its leases expired
    /// repeatedly.
    pub runs_alone: bool,
    /// Worker that holds the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub worker: Option<String>,
    /// Worker that held the task last, if no worker holds it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub last_worker: Option<String>,
    /// Start time of the current or last lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub leased_at: Option<String>,
    /// Expiry time of the lease unless the worker sends a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub lease_expires_at: Option<String>,
    /// Progress that the handler reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// Result of the task: any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub result: Option<Payload>,
    /// Error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Cancellation request, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelView>,
    /// Creation time of the task.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub created_at: String,
    /// Time of the last change, not counting heartbeats.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub updated_at: String,
    /// Time at which the task finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub finished_at: Option<String>,
    /// Whether the task is archived: it is listed only on request.
    pub archived: bool,
    /// Attempts that did not finish the task and interventions by operators, oldest first.
    pub events: Vec<TaskEventView>,
}

/// Progress of a task.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressView {
    /// Amount of work that is done.
    pub done: u64,
    /// Total amount of work, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Description of the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Request to cancel a task.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelView {
    /// Identity of the requester.
    pub by: String,
    /// Reason that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the request.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// Event of a task that did not finish it.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct TaskEventView {
    /// Time of the event.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
    /// Kind of the event: failed, expired, snoozed, returned, asked, retried or updated.
    pub kind: String,
    /// Number of the attempt during or after which the event happened.
    pub attempt: u32,
    /// Fencing token of the task at the event.
    pub token: u64,
    /// Worker of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub worker: Option<String>,
    /// Start time of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub leased_at: Option<String>,
    /// Identity of the operator, if an operator caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Reason of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Formats a timestamp with microsecond precision.
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
