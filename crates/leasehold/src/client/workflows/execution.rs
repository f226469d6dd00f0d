//! JSON views of an execution and of a workflow's lock, with times in RFC 3339.

use serde::Serialize;

use crate::client::locks::{LockStatus, rfc3339, rfc3339_option};
use crate::model::{
    Counts, ExecutionId, ExecutionInput, ExecutionSpec, Holder, Metadata, Pause, Payload, Progress,
    StopRequest, Task, TaskEventKind, TaskKey, TaskState, Timestamp, Token, Ttl, WorkerId, WorkflowName,
};

/// One run of a workflow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Execution {
    /// Id of the execution.
    pub id: ExecutionId,
    /// Workflow of the execution.
    pub workflow: WorkflowName,
    /// Current state of the execution. A queued execution is blocked.
    pub state: TaskState,
    /// Reason of the end, if the execution has failed or was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Input that the execution was started with.
    #[serde(serialize_with = "plain")]
    pub input: ExecutionInput,
    /// Result of the execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// Progress that the handler reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Idempotency key of the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<TaskKey>,
    /// Number of this execution among those with the same key, starting at 1.
    pub attempt: u32,
    /// Earlier execution whose key this one has taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<ExecutionId>,
    /// Maximum run time.
    #[serde(
        serialize_with = "seconds",
        rename = "maxRuntimeSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_runtime: Option<Ttl>,
    /// Caller that started the execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// Other metadata about the start.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Fencing token of the run; zero until the execution runs.
    pub token: Token,
    /// Version, incremented by every change.
    pub version: u64,
    /// Worker that runs the execution, or ran it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Caller that requested the execution to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_by: Option<Holder>,
    /// Creation time of the execution.
    #[serde(serialize_with = "rfc3339")]
    pub created_at: Timestamp,
    /// Start time of the run.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Expiry time of the lease unless the worker sends a heartbeat.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// Time at which the execution finished.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl Execution {
    pub(super) fn of(task: Task) -> Self {
        let ExecutionSpec { input, attempt, retry_of, max_runtime, key, mut metadata } =
            ExecutionSpec::of(&task);
        let started_by = metadata.get(ExecutionSpec::STARTED_BY).map(str::to_owned);
        metadata.remove(ExecutionSpec::STARTED_BY);
        let name = task.queue.as_str();
        let workflow = WorkflowName::of_queue(&task.queue).or_else(|| WorkflowName::new(name).ok());
        Self {
            id: task.id.into(),
            workflow: workflow.expect("the task belongs to the queue of a workflow"),
            state: task.state,
            reason: reason(&task),
            input,
            result: task.result,
            progress: task.progress,
            key: task.key.or(key),
            attempt,
            retry_of,
            max_runtime,
            started_by,
            metadata,
            token: task.token,
            version: task.version,
            worker: task.worker,
            cancel_requested_by: task.cancel.map(|asked| asked.by),
            created_at: task.created_at,
            started_at: task.leased_at,
            lease_expires_at: task.lease_expires_at,
            finished_at: task.finished_at,
        }
    }
}

fn reason(task: &Task) -> Option<String> {
    let expired = task.events.last().is_some_and(|event| event.kind == TaskEventKind::Expired);
    match (task.state, &task.error, &task.cancel) {
        (TaskState::Failed, ..) if expired => Some("lease expired".to_owned()),
        (TaskState::Failed | TaskState::Aborted, Some(error), _) if !expired => Some(error.to_string()),
        (TaskState::Aborted, _, Some(StopRequest { by, reason, .. })) => Some(match reason {
            Some(reason) => format!("{reason} (by {by})"),
            None => format!("by {by}"),
        }),
        _ => None,
    }
}

/// Lock of a workflow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WorkflowLock {
    /// Workflow of the lock.
    pub workflow: WorkflowName,
    /// Whether a start would find the lock taken.
    pub is_locked: bool,
    /// Execution that runs or is next to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Holder of the lock itself: the execution, once it runs, or a holder that is not an
    /// execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Time since which the lock is held.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub locked_since: Option<Timestamp>,
    /// Expiry time of the lock unless it is renewed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether the holding execution is not running; the next start, or a sweep, takes the lock
    /// away.
    pub is_stale: bool,
    /// Newest token of the lock.
    pub token: Token,
    /// Number of queued executions.
    pub queued: u64,
    /// Time of the store at which the lock was read.
    #[serde(serialize_with = "rfc3339")]
    pub now: Timestamp,
}

impl WorkflowLock {
    /// Creates the view from the lock itself, the task that has the lock among the workflow's
    /// tasks, and whether the lock's holder is an execution that is not running.
    pub(super) fn of(
        workflow: WorkflowName,
        lock: LockStatus,
        head: Option<&Task>,
        idle: bool,
        queued: u64,
    ) -> Self {
        let expired = head.is_some_and(|head| head.has_expired(lock.now));
        let is_held = lock.is_locked && !idle;
        Self {
            workflow,
            is_locked: is_held || head.is_some_and(|_| !expired),
            execution_id: head.map(|head| head.id.into()),
            locked_since: lock
                .locked_since
                .or_else(|| head.map(|head| head.leased_at.unwrap_or(head.ready_at))),
            expires_at: lock.expires_at.or_else(|| head.and_then(|head| head.lease_expires_at)),
            is_stale: lock.is_stale || idle || expired,
            holder: lock.holder,
            token: lock.token,
            queued,
            now: lock.now,
        }
    }
}

/// A workflow and its executions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkflowStatus {
    /// Name of the workflow.
    pub workflow: WorkflowName,
    /// Number of executions in each state.
    pub counts: Counts,
    /// Pause of the workflow, during which no execution is begun.
    pub paused: Option<Pause>,
}

/// Serializes JSON input as its value, and other input as a string.
fn plain<S: serde::Serializer>(input: &ExecutionInput, serializer: S) -> Result<S::Ok, S::Error> {
    match input {
        ExecutionInput::Json(json) => json.serialize(serializer),
        ExecutionInput::Text(text) => serializer.serialize_str(text),
    }
}

#[expect(clippy::ref_option, reason = "serde's shape")]
fn seconds<S: serde::Serializer>(ttl: &Option<Ttl>, serializer: S) -> Result<S::Ok, S::Error> {
    ttl.map(|ttl| ttl.as_duration().as_secs_f64()).serialize(serializer)
}
