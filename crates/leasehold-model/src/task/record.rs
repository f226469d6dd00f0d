//! One task as it is stored, and what happened to it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Note, Payload, Progress, Retries, TaskId, WorkerId};
use crate::ask::is_default;
use crate::queue::rank;
use crate::{Asked, Holder, LockName, Priority, QueueName, TaskKey, Timestamp, Token};

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Its queue.
    pub queue: QueueName,
    /// What it is about.
    #[serde(default)]
    pub payload: Payload,
    /// Where it stands.
    pub state: TaskState,
    /// Its weight among those that could run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Not before this time.
    pub run_at: Timestamp,
    /// Since when it could run, or could but for its lock. Those that could run go by this, moved ahead by priority.
    pub ready_at: Timestamp,
    /// What makes it the same task when it is added again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TaskKey>,
    /// What it was added with, for that comparison.
    pub fingerprint: Fingerprint,
    /// It runs only while it holds this lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockName>,
    /// How many attempts have begun that count; while the task is leased, the number of this attempt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Whether the worker that has it has started it. While it has not, the attempt does not count. Never set without a lease.
    #[serde(default, skip_serializing_if = "is_default")]
    pub begun: bool,
    /// How many leases in a row ran out after their worker had started the task: workers that crashed with it, or lost the
    /// store.
    #[serde(default, skip_serializing_if = "is_default")]
    pub expiries: u32,
    /// How often it is tried.
    pub retries: Retries,
    /// Rises with every lease, and when a lease is ended by somebody else than its worker.
    #[serde(default)]
    pub token: Token,
    /// Counts every change that somebody made to it: not signs of life, nor that its time came or its lock became free.
    pub version: u64,
    /// Who has it, or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Since when that worker has or had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<Timestamp>,
    /// Until when it has it, unless it gives a sign of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Timestamp>,
    /// How far it has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::values::present")]
    pub result: Option<Payload>,
    /// Why it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Note>,
    /// Who wants it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Asked>,
    /// When it was added.
    pub created_at: Timestamp,
    /// When it changed last; signs of life aside.
    pub updated_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Put away: not shown unless asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub archived: bool,
    /// The process that added it is to run it, and waits for it: if this time passes before it runs, that process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_until: Option<Timestamp>,
    /// Attempts that did not end it and steps that people took, oldest first; the newest [`Task::MAX_EVENTS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskEvent>,
}

/// The tasks of one queue with one lock: at most one of them, the head, is pending or running. Between queues the lock itself
/// decides.
pub type Chain = (LockName, QueueName);

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// Waits for its time.
    Scheduled,
    /// Waits until no other task of its queue with its lock runs or is about to.
    Blocked,
    /// Could run, and waits for a worker.
    Pending,
    /// A worker has it.
    Running,
    /// Done.
    Succeeded,
    /// Given up.
    Failed,
    /// Stopped because somebody wanted it.
    Aborted,
}

impl TaskState {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::Scheduled,
        Self::Blocked,
        Self::Pending,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Aborted,
    ];

    /// The word for it.
    pub const fn word(self) -> &'static str {
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

    /// Whether it is over.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Aborted)
    }

    /// Whether a task in this state is the head of its lock in its queue: the others of that queue wait for it.
    pub const fn takes_lock(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl std::str::FromStr for TaskState {
    type Err = crate::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words = || Self::ALL.map(Self::word).join(", ");
        let found = Self::ALL.into_iter().find(|state| state.word() == text);
        found.ok_or_else(|| crate::Invalid(format!("'{text}' is not a state; the states are {}", words())))
    }
}

/// Something that happened to a task and did not end it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskEvent {
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: TaskEventKind,
    /// In which attempt, or after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Under which token.
    #[serde(default, skip_serializing_if = "is_default")]
    pub token: Token,
    /// By which worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// When that attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<Timestamp>,
    /// By whom, if a person stepped in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Holder>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Note>,
}

/// What happened to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskEventKind {
    /// An attempt failed.
    Failed,
    /// A lease ran out: its worker was gone, or too slow to say that it was there.
    Expired,
    /// The worker put it off.
    Snoozed,
    /// The worker gave it back unfinished.
    Returned,
    /// Somebody wants it stopped.
    Asked,
    /// Somebody wants it tried again.
    Retried,
    /// Somebody changed it.
    Updated,
}

impl fmt::Display for TaskEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Snoozed => "snoozed",
            Self::Returned => "returned",
            Self::Asked => "asked",
            Self::Retried => "retried",
            Self::Updated => "updated",
        })
    }
}

impl Task {
    /// So many events are kept.
    pub const MAX_EVENTS: usize = 50;

    /// How many bytes its payload has.
    pub fn bytes(&self) -> usize {
        self.payload.as_str().len()
    }

    /// Those that could run go in this order, the smallest first: by rank, then by due time, then by id.
    pub fn order(&self) -> (i64, Timestamp, TaskId) {
        (rank(self.priority, self.ready_at), self.run_at, self.id)
    }

    /// Whether its lease has run out at `now`.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.state == TaskState::Running && self.lease_expires_at.is_some_and(|end| end <= now)
    }

    /// Whether it waits for a runner that is gone at `now`.
    pub fn is_abandoned(&self, now: Timestamp) -> bool {
        let waits = matches!(self.state, TaskState::Scheduled | TaskState::Blocked | TaskState::Pending);
        waits && self.wanted_until.is_some_and(|end| end <= now)
    }

    /// When recovery has to look at it: the end of its lease, or of its runner's deadline.
    pub fn deadline(&self) -> Option<Timestamp> {
        match self.state {
            TaskState::Running => self.lease_expires_at,
            TaskState::Scheduled | TaskState::Blocked | TaskState::Pending => self.wanted_until,
            TaskState::Succeeded | TaskState::Failed | TaskState::Aborted => None,
        }
    }

    /// The tasks that it takes turns with: those of its queue with its lock.
    pub fn chain(&self) -> Option<Chain> {
        self.lock.clone().map(|lock| (lock, self.queue.clone()))
    }

    /// Whether it waits for a time that has come at `now`.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.state == TaskState::Scheduled && self.run_at <= now
    }
}
