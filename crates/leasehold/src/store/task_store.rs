//! What an engine has to do so that tasks can stand on it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Arrivals, Cursor, Page};
use crate::Result;
use crate::model::{
    Beat, Enqueued, Finished, HeldTask, LeaseTasks, Leased, LockName, NewTask, Pause, Payload, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp,
    Ttl, WorkerId, WorkerInfo, WorkerStatus,
};

/// Tasks on an engine. What each call does is what [`TaskTable`](crate::model::TaskTable) does in its method of the
/// same name, at the engine's own time.
///
/// **Atomic**: each task of a call changes whole or not at all, together with the counts, its key and its lock. A call
/// over several tasks need not be one step; but [`enqueue`](TaskStore::enqueue) adds all of its tasks or none.
///
/// **Failure**: an error means that the answer is not known. Sending the same call again is safe for those that are
/// [repeatable](super::protocol::TaskCall::is_repeatable): tasks are added by their id, and a settlement that was made is
/// answered as before. A lease is not: the store never sends it again by itself once it may have begun. A worker that
/// gets an error asks the store which tasks it has; what nobody asks for comes back when its lease runs out.
///
/// **Bounded**: every call ends by itself within seconds, with an error if it must, and costs the same however many
/// tasks there are that it is not about.
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Adds tasks, and wakes workers that wait for them.
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>>;

    /// Gives a worker what is next. Puts in line what is due before that.
    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased>;

    /// Takes the signs of life of a worker for all its leases at once; the answers are in their order.
    async fn heartbeat(&self, worker: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Vec<Beat>>;

    /// A worker says good-bye: it is no longer listed.
    async fn leave(&self, worker: WorkerId) -> Result<()>;

    /// Ends attempts; the answers are in their order. The same task does not appear twice in one call. A task that cannot be
    /// settled for now does not keep the others waiting: its answer is [`Busy`](Settled::Busy).
    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>>;

    /// Applies an operation that is made by hand, [`Cancel`](TaskOp::Cancel), [`Retry`](TaskOp::Retry) or
    /// [`Update`](TaskOp::Update), or by the runner that waits for a task, [`Want`](TaskOp::Want), and gives the task as it is after it. Nothing if there is no such task.
    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>>;

    /// Ends up to `limit` leases and deadlines of runners that have run out, and puts in line what is due. Safe at any time and with any number
    /// of others who do the same.
    async fn recover(&self, limit: u32) -> Result<Recovered>;

    /// One task.
    async fn get(&self, id: TaskId) -> Result<Option<Task>>;

    /// The task that has this key.
    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>>;

    /// Tasks, the newest first, a page at a time.
    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>>;

    /// The queues with their counts, by name. From counters: the cost does not grow with the tasks.
    async fn queues(&self) -> Result<Vec<QueueStatus>>;

    /// One queue with its counts. An engine that does not know of all its queues finds it by this name.
    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        Ok(self.queues().await?.into_iter().find(|status| status.queue == *queue))
    }

    /// Pauses a queue or lets it go on; says whether there is such a queue.
    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool>;

    /// The workers that were heard of in the last hour, oldest first.
    async fn workers(&self) -> Result<Vec<WorkerStatus>>;

    /// Puts finished tasks away, the oldest first; says how many.
    async fn archive(&self, which: &Finished) -> Result<u64>;

    /// Forgets finished tasks, the oldest first; says how many.
    async fn purge(&self, which: &Finished) -> Result<u64>;

    /// The engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Wake-ups for a worker that found nothing to do in these queues. Call it before the lease that finds nothing, so
    /// that none is missed. A wake-up is a hint, as with locks: polling is the contract.
    fn arrivals(&self, queues: &[QueueName]) -> Arrivals;
}

/// Which tasks to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ListTasks {
    /// Of this queue.
    pub queue: Option<QueueName>,
    /// In this state.
    pub state: Option<TaskState>,
    /// With this lock.
    pub lock: Option<LockName>,
    /// That this worker has, or had last.
    pub worker: Option<WorkerId>,
    /// Also those that were put away.
    pub archived: bool,
    /// Without their payloads: each is `null`. For those who need to know which tasks there are, not what they are about.
    #[serde(default)]
    pub brief: bool,
    /// After this place of an earlier page.
    pub after: Option<Cursor>,
    /// At most so many; 0 means 100.
    pub limit: u32,
}

impl ListTasks {
    /// A task as it is listed.
    pub(crate) fn shown(&self, mut task: Task) -> Task {
        if self.brief {
            task.payload = Payload::default();
        }
        task
    }

    /// Whether a task is one of those.
    pub fn wants(&self, task: &Task) -> bool {
        self.queue.as_ref().is_none_or(|queue| task.queue == *queue)
            && self.state.is_none_or(|state| task.state == state)
            && self.lock.as_ref().is_none_or(|lock| task.lock.as_ref() == Some(lock))
            && self.worker.is_none_or(|worker| task.worker == Some(worker))
            && (self.archived || !task.archived)
    }
}
