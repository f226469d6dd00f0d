//! JSON views of tasks, queues, workers and schedules: names in camelCase, times in RFC 3339, a
//! payload as its JSON value. The binary and the server write the same views.

use std::collections::BTreeMap;

use serde::Serialize;

#[cfg(feature = "schedules")]
use crate::model::{MisfirePolicy, Schedule};
use crate::model::{
    Payload, Progress, QueueStatus, Retention, StopRequest, Task, TaskEvent, TaskState, Timestamp, Ttl,
    WorkerStatus,
};

/// A task.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
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
    /// Maximum run time of one attempt. A worker that runs the task must end an attempt that runs longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
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
#[non_exhaustive]
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
#[non_exhaustive]
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
#[non_exhaustive]
pub struct TaskEventView {
    /// Time of the event.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
    /// Kind of the event: failed, expired, snoozed, returned, `cancel_requested`, retried or updated.
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

/// Returns a time as it is in all JSON for users.
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
            backoff_seconds: task.retries.initial_delay.as_duration().as_secs_f64(),
            timeout_seconds: task.timeout.map(|timeout| timeout.as_duration().as_secs_f64()),
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

impl From<&StopRequest> for CancelView {
    fn from(asked: &StopRequest) -> Self {
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

/// A queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct QueueView {
    /// Name of the queue.
    pub queue: String,
    /// Number of tasks in each state.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<&'static str, u64>,
    /// Number of tasks that have not finished.
    pub open: u64,
    /// Whether the queue is paused: workers lease no tasks from it.
    pub paused: bool,
    /// Details of the pause, if the queue is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseView>,
}

/// Pause of a queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct PauseView {
    /// Identity of the operator who paused the queue.
    pub by: String,
    /// Reason that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time at which the queue was paused.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// Retention of finished tasks, in seconds; `null` keeps them forever.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RetentionView {
    /// Retention of succeeded tasks.
    pub succeeded_seconds: Option<f64>,
    /// Retention of failed tasks.
    pub failed_seconds: Option<f64>,
    /// Retention of aborted tasks.
    pub aborted_seconds: Option<f64>,
}

impl From<&Retention> for RetentionView {
    fn from(retention: &Retention) -> Self {
        let seconds = |keep: Option<Ttl>| keep.map(|keep| keep.as_duration().as_secs_f64());
        Self {
            succeeded_seconds: seconds(retention.succeeded),
            failed_seconds: seconds(retention.failed),
            aborted_seconds: seconds(retention.aborted),
        }
    }
}

impl From<&QueueStatus> for QueueView {
    fn from(status: &QueueStatus) -> Self {
        let count = |state: TaskState| (state.as_str(), status.counts.get(state));
        Self {
            queue: status.queue.to_string(),
            counts: TaskState::ALL.into_iter().map(count).collect(),
            open: status.counts.open(),
            paused: status.paused.is_some(),
            pause: status.paused.as_ref().map(|pause| PauseView {
                by: pause.by.to_string(),
                reason: pause.reason.as_ref().map(ToString::to_string),
                at: exact(pause.at),
            }),
        }
    }
}

/// A worker.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WorkerView {
    /// Id of the worker, new for every start.
    #[cfg_attr(feature = "openapi", schema(format = Uuid))]
    pub id: String,
    /// Host that the worker runs on.
    pub host: String,
    /// Process id of the worker on its host.
    pub pid: u32,
    /// Queues that the worker leases tasks from.
    pub queues: Vec<String>,
    /// Number of tasks that the worker runs now.
    pub busy: u32,
    /// Maximum number of tasks that the worker runs at once.
    pub slots: u32,
    /// State of the worker: `alive`, `draining` if it only finishes its running tasks, or `dead` if
    /// it has missed its heartbeats for too long.
    #[cfg_attr(feature = "openapi", schema(example = "alive"))]
    pub state: &'static str,
    /// Time of the first heartbeat.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub started_at: String,
    /// Time of the last heartbeat.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub seen_at: String,
    /// Version of leasehold that the worker runs.
    pub version: String,
}

impl WorkerView {
    /// Creates the view as of this time of the store.
    pub fn new(worker: &WorkerStatus, now: Timestamp) -> Self {
        let info = &worker.info;
        Self {
            id: info.id.to_string(),
            host: info.host.clone(),
            pid: info.pid,
            queues: info.queues.iter().map(ToString::to_string).collect(),
            busy: info.busy,
            slots: info.slots,
            state: state(worker, now),
            started_at: exact(worker.started_at),
            seen_at: exact(worker.seen_at),
            version: info.version.clone(),
        }
    }
}

fn state(worker: &WorkerStatus, now: Timestamp) -> &'static str {
    match worker {
        _ if worker.is_dead(now) => "dead",
        _ if worker.info.draining => "draining",
        _ => "alive",
    }
}

/// A schedule.
#[cfg(feature = "schedules")]
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ScheduleView {
    /// Name of the schedule.
    pub name: String,
    /// Cron expression of the ticks.
    #[cfg_attr(feature = "openapi", schema(example = "0 3 * * *"))]
    pub cron: String,
    /// Time zone of the cron expression.
    #[cfg_attr(feature = "openapi", schema(example = "Europe/Berlin"))]
    pub zone: String,
    /// Queue that the tasks are added to.
    pub queue: String,
    /// Payload of the tasks: any JSON value.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// Policy for ticks at which no process was running: add a task for `all` of them, for the
    /// `last`, or for `none`.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "all"))]
    pub missed: MisfirePolicy,
    /// Maximum delay of a task after its tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<f64>,
    /// Priority of the tasks.
    pub priority: i32,
    /// Lock of the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// Maximum number of attempts of each task.
    pub max_attempts: u32,
    /// Maximum run time of one attempt at a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Whether the schedule is paused: its ticks add no tasks.
    pub paused: bool,
    /// Next ticks; empty while the schedule is paused.
    #[cfg_attr(feature = "openapi", schema(example = json!(["2030-01-01T02:00:00Z"])))]
    pub next: Vec<String>,
}

#[cfg(feature = "schedules")]
impl ScheduleView {
    /// Creates the view with at most this many next ticks.
    pub fn new(schedule: &Schedule, now: Timestamp, next: usize) -> Self {
        Self {
            name: schedule.name.to_string(),
            cron: schedule.cron.to_string(),
            zone: schedule.zone.to_string(),
            queue: schedule.queue.to_string(),
            payload: schedule.payload.clone(),
            missed: schedule.missed,
            jitter_seconds: schedule.jitter.map(|jitter| jitter.as_duration().as_secs_f64()),
            priority: schedule.priority.get(),
            lock: schedule.lock.as_ref().map(ToString::to_string),
            max_attempts: schedule.retries.attempts,
            timeout_seconds: schedule.timeout.map(|timeout| timeout.as_duration().as_secs_f64()),
            paused: schedule.paused,
            next: schedule.ahead(now, next).iter().map(ToString::to_string).collect(),
        }
    }
}
