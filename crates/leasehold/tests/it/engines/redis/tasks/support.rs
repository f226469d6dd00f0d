//! Helpers of the tests of tasks on Redis.

use leasehold::model::{
    AttemptResult, LeaseTasks, Leased, NewTask, Payload, QueueName, Settle, Task, TaskId, TaskState, Ttl,
    WorkerId,
};
use leasehold::store::{Store, TaskStore};
use uuid::Uuid;

pub(super) fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

pub(super) fn new_task() -> NewTask {
    NewTask::new(TaskId::from_uuid(Uuid::now_v7()), queue(), Payload::default())
}

pub(super) fn new_tasks(count: usize) -> Vec<NewTask> {
    (0..count).map(|_| new_task()).collect()
}

pub(super) fn tasks(store: &impl Store) -> &dyn TaskStore {
    store.tasks().unwrap()
}

pub(super) async fn lease(store: &impl Store, max: u32, ttl: Ttl) -> Leased {
    let worker = WorkerId::from_uuid(Uuid::now_v7());
    tasks(store).lease(&LeaseTasks::new(worker, vec![queue()], max, ttl)).await.unwrap()
}

pub(super) fn done(task: &Task) -> Settle {
    Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) }
}

/// Returns the number of tasks of the queue in this state.
pub(super) async fn count(store: &impl Store, state: TaskState) -> u64 {
    let queues = tasks(store).queues().await.unwrap();
    queues.iter().find(|status| status.queue == queue()).map_or(0, |status| status.counts.get(state))
}
