//! What can be asked of a task or a queue, and what is answered.

use serde::{Deserialize, Serialize};

use super::{Fingerprint, Note, Payload, Progress, Retries, Task, TaskId, TaskState, WorkerId};
use crate::{Asked, Holder, LockName, Priority, QueueName, Reason, TaskKey, Timestamp, Token, Ttl};

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
    /// It is added only if at most so many others of its queue have or await its lock: are pending, running or blocked. None:
    /// however many. Its key is looked at first, and a task that is not added takes no key. Without a lock it means nothing.
    #[serde(default)]
    pub room: Option<u32>,
    /// What the key stands for, if that is not the whole payload.
    #[serde(default)]
    pub fingerprint: Option<Fingerprint>,
    /// What earlier versions would have stored as its fingerprint, if that is not the one of the whole payload.
    #[serde(default)]
    pub old_fingerprint: Option<Fingerprint>,
    /// The caller runs it itself, and renews this deadline with [`TaskOp::Want`] while it waits: if the deadline passes before
    /// the task runs, its runner is gone and recovery fails it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Ttl>,
}

impl NewTask {
    /// A plain one.
    pub fn new(id: TaskId, queue: QueueName, payload: Payload) -> Self {
        let (when, priority, reuse, retries) = Default::default();
        let (key, lock, room, fingerprint, old_fingerprint, wanted) = (None, None, None, None, None, None);
        Self {
            id,
            queue,
            payload,
            when,
            priority,
            key,
            reuse,
            lock,
            retries,
            room,
            fingerprint,
            old_fingerprint,
            wanted,
        }
    }

    /// What tells whether it is meant to be the same as another with its key. Without a key nobody asks.
    pub fn fingerprint(&self) -> Fingerprint {
        let of_payload = || self.key.as_ref().map_or(Fingerprint::NONE, |_| self.payload.fingerprint());
        self.fingerprint.unwrap_or_else(of_payload)
    }

    /// What earlier versions would have stored for it.
    pub fn old_fingerprint(&self) -> Fingerprint {
        self.old_fingerprint.unwrap_or_else(|| Fingerprint::of_old(self.payload.as_str().as_bytes()))
    }

    /// What is answered if the task `owner` has its key and stands in this state. None if the key may be used anew; then it
    /// does not matter what the earlier task was about.
    pub fn keyed_answer(
        &self,
        owner: TaskId,
        state: TaskState,
        fingerprint: Fingerprint,
    ) -> Option<Enqueued> {
        if self.reuse.allows(state) {
            return None;
        }
        let same = fingerprint == self.fingerprint() || fingerprint == self.old_fingerprint();
        Some(if same { Enqueued::Duplicate(owner) } else { Enqueued::KeyReused(owner) })
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
    /// A task with its key is there and keeps it, but it is about something else. Nothing was added.
    KeyReused(TaskId),
    /// More tasks of its queue have or await its lock than it wanted to be with. Nothing was added. This one is the head of the
    /// lock in that queue: it runs, or is next to run.
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
    /// How many tasks the worker starts at once: the first of the answer. They count as begun with the lease. The others
    /// are fetched ahead.
    #[serde(default = "all")]
    pub begin: u32,
    /// Whether the worker has no other task, so that it starts a task that [runs alone](Task::runs_alone) at once, too.
    #[serde(default = "yes")]
    pub idle: bool,
}

impl LeaseTasks {
    /// A request of a worker that starts all tasks of the answer at once.
    pub const fn new(worker: WorkerId, queues: Vec<QueueName>, max: u32, ttl: Ttl) -> Self {
        Self { worker, queues, max, ttl, begin: all(), idle: yes() }
    }
}

/// Clients from before fetch-ahead was told say nothing: each of their leases counts as an attempt.
const fn all() -> u32 {
    u32::MAX
}

const fn yes() -> bool {
    true
}

impl LeaseTasks {
    /// An answer is full when the payloads in it have this many bytes together, whatever `max` says: a worker whose
    /// connection is slow must be able to read the answer within the time of a call. It always has a task if there is one.
    pub const FULL: usize = 1 << 20;

    /// Whether an answer with these tasks is full.
    pub fn is_full(&self, tasks: &[Task]) -> bool {
        tasks.len() >= self.max as usize || tasks.iter().map(Task::bytes).sum::<usize>() >= Self::FULL
    }
}

/// What a worker got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// The tasks, next first, as they are now: running, with their tokens. Fewer than asked for if there were no more, or if
    /// the answer was [full](LeaseTasks::FULL) before.
    pub tasks: Vec<Task>,
    /// If there were no more: when the next one that waits for its time is due, and what time it is.
    pub next_due: Option<(Timestamp, Timestamp)>,
    /// The answer ended before a task that is in line and must not be fetched ahead, or that runs alone: ask again when a
    /// slot is free.
    #[serde(default)]
    pub more: bool,
    /// How many leases had run out and were ended before the tasks were picked, of any queue.
    #[serde(default)]
    pub expired: u32,
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
    /// The worker has started the task. From then on the attempt counts, even if the lease runs out.
    #[serde(default)]
    pub begun: bool,
}

impl HeldTask {
    /// A heartbeat for a task that the worker has started.
    pub const fn new(id: TaskId, token: Token) -> Self {
        Self { id, token, progress: None, begun: true }
    }
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
    /// The worker has to stop before it is done: somebody else, at once, in the task's old place. Does not count as an attempt.
    Return,
    /// Its lock is held, and the worker waits for too many locks already: later. Does not count as an attempt, and is no event.
    Defer(Ttl),
    /// It was stopped: because somebody wanted it, or for this reason.
    Abort(Option<Note>),
}

impl Verdict {
    /// About how much there is to send and to store.
    pub fn bytes(&self) -> usize {
        64 + match self {
            Self::Done(Some(result)) => result.as_str().len(),
            Self::Retry(note, _) | Self::Fail(note) | Self::Abort(Some(note)) => note.as_str().len(),
            Self::Done(None) | Self::Abort(None) | Self::Snooze(_) | Self::Defer(_) | Self::Return => 0,
        }
    }
}

/// The answer to the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// It is settled, and where the task stands now. Also when it is sent again after a lost answer.
    Now(TaskState),
    /// No lease with that token: somebody else has had the task since, or it was recovered. Nothing was changed.
    Lost,
    /// The engine could not decide in time, because another transaction holds this task or the head of its lock. Nothing was
    /// changed: to be sent again later.
    Busy,
}

/// One operation on one task that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskOp {
    /// A worker takes it.
    Lease {
        /// Which worker.
        worker: WorkerId,
        /// How long the lease lasts without a heartbeat.
        ttl: Ttl,
        /// Whether the worker starts it at once.
        begun: bool,
    },
    /// A worker gives a sign of life.
    Beat(HeldTask, Ttl),
    /// A worker ends its attempt.
    Settle(Settle),
    /// Its lease may have run out, or the deadline of its runner.
    Expire,
    /// Its time may have come.
    Promote,
    /// It becomes the head of its lock in its queue.
    Unblock,
    /// Another task becomes the head of its lock in its queue.
    Block,
    /// The runner that it was added for still waits for it: its deadline is this long from now.
    Want(Ttl),
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
    /// …and these had no attempt left, or waited for a runner that is gone.
    pub failed: u32,
    /// These were to be stopped anyway.
    pub aborted: u32,
    /// Tasks whose time had come.
    pub promoted: u32,
}

impl Recovered {
    /// How many leases and deadlines of runners had run out.
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
