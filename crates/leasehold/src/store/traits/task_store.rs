//! Interface that an engine implements to provide tasks.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Cursor, Page};
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, LockName, NewTask, Pause,
    Payload, QueueName, QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp,
    TaskState, Timestamp, Ttl, WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::QueueSubscription;

/// Tasks on an engine. Each call behaves like the method of [`TaskTable`](crate::model::TaskTable)
/// with the same name, at the engine's own time.
///
/// **Atomic**: each task of a call changes completely or not at all, together with the counts, its
/// key and its lock. A call over several tasks need not be one step; but
/// [`enqueue`](TaskStore::enqueue) adds all of its tasks or none.
///
/// **Failure**: an error means that the result is unknown. Resending the same call is safe for the
/// [repeatable](crate::store::protocol::TaskCall::is_repeatable) calls: tasks are added by their id, and a
/// settlement that was made returns the same result again. A lease is not repeatable: the store never
/// resends it by itself once it may have begun. A worker that gets an error queries the store for the
/// tasks that it holds; a task that no worker claims in this way is recovered when its lease expires.
///
/// **Bounded**: every call ends by itself within seconds, with an error if necessary, and its cost
/// does not depend on the number of tasks that it does not concern.
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Adds tasks, and wakes workers that wait for them.
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>>;

    /// Leases the next tasks to a worker. Promotes due tasks first.
    async fn lease(&self, request: &LeaseTasks) -> Result<Leased>;

    /// Processes the heartbeat of a worker for all its leases at once; the results are in their
    /// order.
    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>>;

    /// Deregisters a worker: it is no longer listed.
    async fn deregister(&self, worker: WorkerId) -> Result<()>;

    /// Ends attempts; the results are in their order. The same task does not appear twice in one
    /// call. A task that cannot be settled for now does not delay the others: its result is
    /// [`Busy`](Settled::Busy).
    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>>;

    /// Applies an administrative operation, [`Cancel`](TaskOp::Cancel), [`Retry`](TaskOp::Retry) or
    /// [`Update`](TaskOp::Update), or the operation of the runner that waits for a task,
    /// [`RenewRunner`](TaskOp::RenewRunner), and returns the task in its new state. `None` if the task does not
    /// exist.
    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>>;

    /// Ends up to `limit` expired leases and expired deadlines of runners, and promotes due tasks.
    /// Safe at any time and with any number of concurrent callers.
    async fn recover(&self, limit: u32) -> Result<Recovered>;

    /// Returns one task.
    async fn get(&self, id: TaskId) -> Result<Option<Task>>;

    /// Returns the task with this key.
    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>>;

    /// Lists tasks, the newest first, one page at a time.
    async fn list(&self, query: &ListTasks) -> Result<Page<Task>>;

    /// Lists the queues with their counts, by name. Reads counters: the cost does not grow with the
    /// number of tasks.
    async fn queues(&self) -> Result<Vec<QueueStatus>>;

    /// Returns one queue with its counts. An engine that does not know all its queues finds the queue
    /// by this name.
    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        Ok(self.queues().await?.into_iter().find(|status| status.queue == *queue))
    }

    /// Pauses or resumes a queue; returns whether the queue exists.
    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool>;

    /// Lists the workers with a heartbeat in the last hour, oldest first.
    async fn workers(&self) -> Result<Vec<WorkerStatus>>;

    /// Archives finished tasks, the oldest first; returns their number.
    async fn archive(&self, which: &FinishedFilter) -> Result<u64>;

    /// Deletes finished tasks, the oldest first; returns their number.
    async fn purge(&self, which: &FinishedFilter) -> Result<u64>;

    /// Returns the engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Subscribes a worker without tasks to wake-ups for these queues. Call it before the lease that
    /// returns no task, so that no wake-up is missed. A wake-up is a hint, as with locks: polling is
    /// the contract.
    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription;
}

/// Query for [`TaskStore::list`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListTasks {
    /// Queue of the tasks to list.
    pub queue: Option<QueueName>,
    /// State of the tasks to list.
    pub state: Option<TaskState>,
    /// Lock of the tasks to list.
    pub lock: Option<LockName>,
    /// Worker that holds the tasks to list, or held them last.
    pub worker: Option<WorkerId>,
    /// Whether archived tasks are listed too.
    pub archived: bool,
    /// Whether payloads are omitted (`null`): for callers that need the list of tasks but not their
    /// content.
    pub brief: bool,
    /// Position after which the page starts, from an earlier page.
    pub after: Option<Cursor>,
    /// Maximum number of tasks; 0 means 100.
    pub limit: u32,
}

setters!(ListTasks {
    /// Lists only tasks of this queue.
    queue: Option<QueueName>,
    /// Lists only tasks in this state.
    state: Option<TaskState>,
    /// Lists only tasks with this lock.
    lock: Option<LockName>,
    /// Lists only tasks that this worker holds, or held last.
    worker: Option<WorkerId>,
    /// Sets whether archived tasks are listed too.
    archived: bool,
    /// Sets whether payloads are omitted.
    brief: bool,
    /// Starts the page after this position of an earlier page.
    after: Option<Cursor>,
    /// Limits the number of tasks of the page; 0 means 100.
    limit: u32,
});

impl ListTasks {
    /// Returns a task in the form in which it is listed.
    pub(crate) fn shown(&self, mut task: Task) -> Task {
        if self.brief {
            task.payload = Payload::default();
        }
        task
    }

    /// Whether the query matches a task.
    pub fn wants(&self, task: &Task) -> bool {
        self.queue.as_ref().is_none_or(|queue| task.queue == *queue)
            && self.state.is_none_or(|state| task.state == state)
            && self.lock.as_ref().is_none_or(|lock| task.lock.as_ref() == Some(lock))
            && self.worker.is_none_or(|worker| task.worker == Some(worker))
            && (self.archived || !task.archived)
    }
}
