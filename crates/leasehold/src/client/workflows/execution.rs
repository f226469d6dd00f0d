//! An execution, and a workflow's lock, as people and programs see them: as JSON with times in RFC 3339.

use serde::Serialize;

use crate::client::status::{LockStatus, rfc3339, rfc3339_option};
use crate::model::{
    Asked, Brief, Counts, ExecutionId, Holder, Input, Metadata, Pause, Payload, Progress, Task,
    TaskEventKind, TaskKey, TaskState, Timestamp, Token, Ttl, WorkerId, WorkflowName,
};

/// One run of a workflow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    /// Its id.
    pub id: ExecutionId,
    /// Of which workflow.
    pub workflow: WorkflowName,
    /// Where it stands. One that waits for its turn is blocked.
    pub state: TaskState,
    /// How it came to that, if it has failed or was stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it was started with.
    #[serde(serialize_with = "plain")]
    pub input: Input,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
    /// How far it has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What makes it the same start when it comes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<TaskKey>,
    /// Which try of its key it is, from 1.
    pub attempt: u32,
    /// The failed execution whose key it has taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<ExecutionId>,
    /// How long it may run.
    #[serde(
        serialize_with = "seconds",
        rename = "maxRuntimeSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_runtime: Option<Ttl>,
    /// The caller that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_by: Option<String>,
    /// Other facts about its start.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub facts: Metadata,
    /// The fencing token of its run: zero until it is run.
    pub token: Token,
    /// Counts its changes.
    pub version: u64,
    /// Who runs it, or ran it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Who wants it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<Holder>,
    /// When it was started.
    #[serde(serialize_with = "rfc3339")]
    pub created_at: Timestamp,
    /// Since when it runs.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Until when its worker has it, unless that gives a sign of life.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// When it ended.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

impl Execution {
    /// The execution that a task of a workflow's queue is.
    pub(super) fn of(task: Task) -> Self {
        let Brief { input, attempt, retry_of, max_runtime, key, mut facts } = Brief::of(&task);
        let started_by = facts.get(Brief::STARTED_BY).map(str::to_owned);
        facts.remove(Brief::STARTED_BY);
        let name = task.queue.as_str();
        let workflow = WorkflowName::of_queue(&task.queue).or_else(|| WorkflowName::new(name).ok());
        Self {
            id: task.id.into(),
            workflow: workflow.expect("who asks has seen that it is a workflow's"),
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
            facts,
            token: task.token,
            version: task.version,
            worker: task.worker,
            asked_by: task.cancel.map(|asked| asked.by),
            created_at: task.created_at,
            started_at: task.leased_at,
            lease_expires_at: task.lease_expires_at,
            finished_at: task.finished_at,
        }
    }
}

/// How a task came to its end, in a few words.
fn reason(task: &Task) -> Option<String> {
    let expired = task.events.last().is_some_and(|event| event.kind == TaskEventKind::Expired);
    match (task.state, &task.error, &task.cancel) {
        (TaskState::Failed, ..) if expired => Some("lease expired".to_owned()),
        (TaskState::Failed | TaskState::Aborted, Some(error), _) if !expired => Some(error.to_string()),
        (TaskState::Aborted, _, Some(Asked { by, reason, .. })) => Some(match reason {
            Some(reason) => format!("{reason} (by {by})"),
            None => format!("by {by}"),
        }),
        _ => None,
    }
}

/// The lock of a workflow.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowLock {
    /// Of which workflow.
    pub workflow: WorkflowName,
    /// Whether a start would find it taken.
    pub is_locked: bool,
    /// The execution that runs or is next to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Who holds the lock itself: the execution, once it runs, or somebody who is no execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Since when.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub locked_since: Option<Timestamp>,
    /// Until when, unless renewed.
    #[serde(serialize_with = "rfc3339_option", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether whoever has it is not at work: the next start, or a sweep, takes it away.
    pub is_stale: bool,
    /// The newest token of the lock.
    pub token: Token,
    /// How many executions wait for their turn.
    pub queued: u64,
    /// The store's time of this look.
    #[serde(serialize_with = "rfc3339")]
    pub now: Timestamp,
}

impl WorkflowLock {
    /// From the lock itself, the task that has it among tasks, and whether the lock's holder is an execution that is not
    /// running.
    pub(super) fn of(
        workflow: WorkflowName,
        lock: LockStatus,
        head: Option<&Task>,
        idle: bool,
        queued: u64,
    ) -> Self {
        let expired = head.is_some_and(|head| head.has_expired(lock.now));
        let stranger = lock.is_locked && !idle;
        Self {
            workflow,
            is_locked: stranger || head.is_some_and(|_| !expired),
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
pub struct WorkflowStatus {
    /// Its name.
    pub workflow: WorkflowName,
    /// Its executions.
    pub counts: Counts,
    /// Whether none is begun for now.
    pub paused: Option<Pause>,
}

/// As the value that it is; a text that is none as a text.
fn plain<S: serde::Serializer>(input: &Input, serializer: S) -> Result<S::Ok, S::Error> {
    match input {
        Input::Json(json) => json.serialize(serializer),
        Input::Text(text) => serializer.serialize_str(text),
    }
}

#[expect(clippy::ref_option, reason = "serde's shape")]
fn seconds<S: serde::Serializer>(ttl: &Option<Ttl>, serializer: S) -> Result<S::Ok, S::Error> {
    ttl.map(|ttl| ttl.as_duration().as_secs_f64()).serialize(serializer)
}
