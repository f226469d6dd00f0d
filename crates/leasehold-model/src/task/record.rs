//! Stored record of a task, and its events.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Message, Payload, Progress, RetryPolicy, TaskId, WorkerId};
use crate::lock::record::rank;
use crate::lock::request::is_default;
use crate::{Holder, LockName, Priority, QueueName, StopRequest, TaskKey, Timestamp, Token, Ttl};

/// Task record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Queue of the task.
    pub queue: QueueName,
    /// Payload of the task.
    #[serde(default)]
    pub payload: Payload,
    /// Current state of the task.
    pub state: TaskState,
    /// Priority of the task among the tasks that are ready to run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Earliest time at which the task may run.
    pub run_at: Timestamp,
    /// Time since which the task has been ready to run, or blocked only by its lock. Ready tasks
    /// are ordered by this time, moved ahead by priority.
    pub ready_at: Timestamp,
    /// Key that identifies the task when it is added again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TaskKey>,
    /// Fingerprint that the task was added with, for the comparison with tasks of the same key.
    pub fingerprint: Fingerprint,
    /// Lock that the task holds while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockName>,
    /// Number of started attempts that count; while the task is leased, the number of the current attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Whether the worker that leased the task has started it. Until then the attempt does not
    /// count. Never set without a lease.
    #[serde(default, skip_serializing_if = "is_default")]
    pub begun: bool,
    /// Number of consecutive leases that expired after their worker had started the task: workers
    /// that crashed with it, or lost the connection to the store.
    #[serde(default, skip_serializing_if = "is_default")]
    pub expiries: u32,
    /// Retry policy of the task.
    pub retries: RetryPolicy,
    /// Maximum run time of one attempt; the worker ends an attempt that runs longer, and the attempt
    /// has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Ttl>,
    /// Fencing token. Rises with every lease, and whenever a lease is ended by anything other than
    /// its worker.
    #[serde(default)]
    pub token: Token,
    /// Number of explicit changes to the task. Heartbeats do not count, nor does the task becoming
    /// due or its lock becoming free.
    pub version: u64,
    /// Worker that leased the task last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Time at which that worker leased the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<Timestamp>,
    /// Time at which the lease expires unless the worker sends a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// Progress of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Result of the task.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::values::present")]
    pub result: Option<Payload>,
    /// Error of the last failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Message>,
    /// Request to cancel the task, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<StopRequest>,
    /// Time at which the task was added.
    pub created_at: Timestamp,
    /// Time of the last change, not counting heartbeats.
    pub updated_at: Timestamp,
    /// Time at which the task finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Whether the task is archived: not listed unless requested.
    #[serde(default, skip_serializing_if = "is_default")]
    pub archived: bool,
    /// Deadline of the process that added the task and waits to run it: if this time passes before
    /// the task runs, that process is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_deadline: Option<Timestamp>,
    /// Attempts that did not finish the task, and interventions of operators, oldest first; the
    /// newest [`Task::MAX_EVENTS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskEvent>,
}

/// Tasks of one queue with one lock: at most one of them, the head, is pending or running. Between
/// queues, the lock itself decides.
pub type Chain = (LockName, QueueName);

/// Sort key of tasks that are ready to run.
pub(super) type TaskOrder = (i64, Timestamp, TaskId);

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Not due yet.
    Scheduled,
    /// Waits until no other task of its queue with its lock is running or next to run.
    Blocked,
    /// Ready to run; waits for a worker.
    Pending,
    /// Leased by a worker.
    Running,
    /// Finished successfully.
    Succeeded,
    /// Finished without success; will not be retried.
    Failed,
    /// Stopped because its cancellation was requested, or by its worker.
    Aborted,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Blocked,
        Self::Pending,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Aborted,
    ];

    /// Returns the name of the state.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Blocked => "blocked",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Returns whether the state is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Aborted)
    }

    /// Returns whether a task in this state is the head of its lock in its queue, so that the other
    /// tasks of that queue wait for it.
    pub const fn takes_lock(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for TaskState {
    type Err = crate::ValidationError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words = || Self::ALL.map(Self::as_str).join(", ");
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| {
            crate::ValidationError::new(
                crate::ValueKind::State,
                format!("'{text}' is not a state; the states are {}", words()),
            )
        })
    }
}

/// Event of a task that did not finish it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of the event.
    pub kind: TaskEventKind,
    /// Attempt in or after which the event occurred.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Token of the task at the event.
    #[serde(default, skip_serializing_if = "is_default")]
    pub token: Token,
    /// Worker of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Time at which the attempt was leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<Timestamp>,
    /// Operator that caused the event, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Holder>,
    /// Error or reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Message>,
}

/// Kind of a task event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskEventKind {
    /// An attempt failed.
    Failed,
    /// A lease expired: its worker was dead or its heartbeat was late.
    Expired,
    /// The worker postponed the task.
    Snoozed,
    /// The worker returned the task unfinished.
    Returned,
    /// A caller requested the cancellation of the task.
    CancelRequested,
    /// A caller requested a retry of the task.
    Retried,
    /// A caller changed the task.
    Updated,
}

impl fmt::Display for TaskEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Task {
    /// Maximum number of events that a task stores.
    pub const MAX_EVENTS: usize = 50;

    /// Returns the size of the payload in bytes.
    pub fn bytes(&self) -> usize {
        self.payload.as_str().len()
    }

    /// Returns the sort key of ready tasks, the smallest first: by rank, then by due time, then by id.
    pub fn order(&self) -> TaskOrder {
        (rank(self.priority, self.ready_at), self.run_at, self.id)
    }

    /// Returns whether the lease has expired at `now`.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.state == TaskState::Running && self.lease_expires_at.is_some_and(|end| end <= now)
    }

    /// Returns whether the task waits for a runner that is dead at `now`.
    pub fn is_abandoned(&self, now: Timestamp) -> bool {
        let waits = matches!(self.state, TaskState::Scheduled | TaskState::Blocked | TaskState::Pending);
        waits && self.runner_deadline.is_some_and(|end| end <= now)
    }

    /// Returns the time at which recovery has to process the task: the end of its lease, or of its
    /// runner's deadline.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.state {
            TaskState::Running => self.lease_expires_at,
            TaskState::Scheduled | TaskState::Blocked | TaskState::Pending => self.runner_deadline,
            TaskState::Succeeded | TaskState::Failed | TaskState::Aborted => None,
        }
    }

    /// Returns the chain of the task: the tasks of its queue with its lock, which run one at a time.
    pub fn chain(&self) -> Option<Chain> {
        self.lock.clone().map(|lock| (lock, self.queue.clone()))
    }

    /// Returns whether the task is scheduled and due at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.state == TaskState::Scheduled && self.run_at <= now
    }
}
