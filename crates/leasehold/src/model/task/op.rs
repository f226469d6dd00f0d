//! What can be asked of a task or a queue, and what is answered.

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Note, Payload, Progress, Retries, Task, TaskId, TaskState, WorkerId};
use crate::model::{Asked, Holder, LockName, Priority, QueueName, Reason, TaskKey, Timestamp, Token, Ttl};

/// A task to be added.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewTask {
    /// Its id, made by the caller: adding it again after a lost answer adds nothing.
    pub id: TaskId,
    /// Where to.
    pub queue: QueueName,
    /// What it is about.
    pub payload: Payload,
    /// When it may run.
    #[serde(default)]
    pub when: When,
    /// Its weight among those that could run.
    #[serde(default)]
    pub priority: Priority,
    /// What makes it the same task when it is added again.
    #[serde(default)]
    pub key: Option<TaskKey>,
    /// When the key of an earlier task may be used anew.
    #[serde(default)]
    pub reuse: Reuse,
    /// It runs only while it holds this lock.
    #[serde(default)]
    pub lock: Option<LockName>,
    /// How often it is tried.
    #[serde(default)]
    pub retries: Retries,
    /// It is added only if at most so many others have or await its lock: are pending, running or blocked. None: however
    /// many. Its key is looked at first, and a task that is not added takes no key. Without a lock it means nothing.
    #[serde(default)]
    pub room: Option<u32>,
    /// What the key stands for, if that is not the whole payload.
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
}

impl NewTask {
    /// A plain one.
    pub fn new(id: TaskId, queue: QueueName, payload: Payload) -> Self {
        let (when, priority, reuse, retries) = Default::default();
        let (key, lock, room, fingerprint) = (None, None, None, None);
        Self { id, queue, payload, when, priority, key, reuse, lock, retries, room, fingerprint }
    }

    /// What tells whether it is meant to be the same as another with its key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint.unwrap_or_else(|| self.payload.fingerprint())
    }
}

/// When a task may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// Not before this time.
    At(Timestamp),
    /// After so long, from the moment it is added.
    In(Ttl),
}

/// When the key of an earlier task may be used anew, by a new task that then has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reuse {
    /// As long as the earlier task is known, the key means that task.
    #[default]
    Never,
    /// When the earlier one has failed.
    Failed,
    /// When the earlier one is over, however it ended.
    Finished,
}

/// What came of adding a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enqueued {
    /// It is there now.
    Added(TaskId),
    /// A task with its key and its fingerprint is there already: this one.
    Duplicate(TaskId),
    /// A task with its key is there, but it is about something else. Nothing was added.
    KeyReused(TaskId),
    /// More tasks have or await its lock than it wanted to be with. Nothing was added. This one has the lock: it runs, or is
    /// next to run.
    NoRoom(TaskId),
}

impl Enqueued {
    /// The task that there is.
    pub const fn id(self) -> TaskId {
        match self {
            Self::Added(id) | Self::Duplicate(id) | Self::KeyReused(id) | Self::NoRoom(id) => id,
        }
    }
}

/// A worker asks for tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseTasks {
    /// Who asks.
    pub worker: WorkerId,
    /// From which queues. All are one line: the order of tasks counts, not that of the queues.
    pub queues: Vec<QueueName>,
    /// At most so many.
    pub max: u32,
    /// How long each lease lasts without a sign of life.
    pub ttl: Ttl,
}

/// What a worker got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// The tasks, next first, as they are now: running, with their tokens.
    pub tasks: Vec<Task>,
    /// If there were fewer than asked for: when the next one that waits for its time is due, and what time it is.
    pub next_due: Option<(Timestamp, Timestamp)>,
}

/// A lease that a worker says it still has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeldTask {
    /// On which task.
    pub id: TaskId,
    /// By which token.
    pub token: Token,
    /// How far it has come, if that is news.
    pub progress: Option<Progress>,
}

/// The answer to a sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beat {
    /// The lease goes on. Somebody may want the task stopped.
    Kept(Option<Asked>),
    /// No lease with that token.
    Lost,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settle {
    /// Of which task.
    pub id: TaskId,
    /// By which token.
    pub token: Token,
    /// How it ended.
    pub verdict: Verdict,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Done.
    Done(#[serde(with = "super::values::maybe_payload")] Option<Payload>),
    /// It failed: try again if attempts are left, after the usual pause or after this one.
    Retry(Note, Option<Ttl>),
    /// It failed, and trying again is no use.
    Fail(Note),
    /// Not now: later. Does not count as an attempt.
    Snooze(Ttl),
    /// The worker has to stop before it is done: somebody else, at once. Does not count as an attempt.
    Return,
    /// It was stopped: because somebody wanted it, or for this reason.
    Abort(Option<Note>),
}

/// The answer to the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// It is settled, and where the task stands now. Also when it is sent again after a lost answer.
    Now(TaskState),
    /// No lease with that token: somebody else has had the task since, or it was recovered. Nothing was changed.
    Lost,
}

/// One operation on one task that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskOp {
    /// A worker takes it.
    Lease(WorkerId, Ttl),
    /// A worker gives a sign of life.
    Beat(HeldTask, Ttl),
    /// A worker ends its attempt.
    Settle(Settle),
    /// Its lease may have run out.
    Expire,
    /// Its time may have come.
    Promote,
    /// Its lock has become free.
    Unblock,
    /// Somebody wants it stopped.
    Cancel(Cancel),
    /// Somebody wants it tried again.
    Retry(Retry),
    /// Somebody changes it.
    Update(Change),
}

/// Stop it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cancel {
    /// Who wants it.
    pub by: Holder,
    /// Why.
    pub reason: Option<Reason>,
}

/// Try it again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retry {
    /// Who wants it.
    pub by: Holder,
}

/// A change to a task, if it is still as the caller saw it. What is `None` stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Change {
    /// The version that the caller saw.
    pub expected: u64,
    /// Who changes it.
    pub by: Option<Holder>,
    /// What it is about; not while it runs or when it is over.
    #[serde(with = "super::values::maybe_payload")]
    pub payload: Option<Payload>,
    /// Its weight; not when it is over.
    pub priority: Option<Priority>,
    /// Not before this time; not while it runs or when it is over.
    pub run_at: Option<Timestamp>,
    /// How often it is tried; not when it is over, and not less often than it was tried already.
    pub retries: Option<Retries>,
    /// Put away, or taken out again; only when it is over.
    pub archived: Option<bool>,
}

/// The answer to an operation on one task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskAnswer {
    /// Done as asked.
    Done,
    /// To a sign of life.
    Beat(Beat),
    /// To the end of an attempt.
    Settled(Settled),
    /// It stands where this makes no sense; nothing was changed.
    Refused(TaskState),
    /// It is not as the caller saw it; its version is this.
    VersionConflict(u64),
}

/// What a recovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Recovered {
    /// Leases that had run out: these tasks can run again…
    pub returned: u32,
    /// …and these had no attempt left.
    pub failed: u32,
    /// These were to be stopped anyway.
    pub aborted: u32,
    /// Tasks whose time had come.
    pub promoted: u32,
}

impl Recovered {
    /// How many leases had run out.
    pub const fn expired(&self) -> u32 {
        self.returned + self.failed + self.aborted
    }
}

/// Which finished tasks to put away or to forget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Of this queue; else of all.
    pub queue: Option<QueueName>,
    /// That ended like this; else however.
    pub state: Option<TaskState>,
    /// That ended before this time.
    pub before: Timestamp,
    /// At most so many.
    pub limit: u32,
}
