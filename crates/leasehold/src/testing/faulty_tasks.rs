//! Tasks of the store with injected faults.

use async_trait::async_trait;

use super::{Fault, FaultyStore};
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::{ListTasks, Page, QueueSubscription, TaskStore};

impl FaultyStore {
    fn inner_tasks(&self) -> &dyn TaskStore {
        self.store.tasks().expect("the store below has tasks")
    }

    /// Runs a call with the next planned fault.
    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.next_fault() {
            Fault::None => call.await,
            Fault::LoseRequest => Err(Self::lost()),
            Fault::LoseAnswer => {
                call.await?;
                Err(Self::lost())
            }
            Fault::Delay(delay) => {
                let answer = call.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::Hang => {
                call.await?;
                std::future::pending().await
            }
            Fault::Refuse => Err(Self::refused()),
            Fault::Panic => panic!("a panic that a test wanted"),
            Fault::Block(time) => {
                std::thread::sleep(time);
                call.await
            }
        }
    }
}

#[async_trait]
impl TaskStore for FaultyStore {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.through(self.inner_tasks().enqueue(new)).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.through(self.inner_tasks().lease(request)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.through(self.inner_tasks().heartbeat(worker, held, ttl)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.through(self.inner_tasks().deregister(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.check_settled(settle)?;
        self.through(self.inner_tasks().settle(settle)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.through(self.inner_tasks().change(id, op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.through(self.inner_tasks().recover(limit)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.inner_tasks().get(id).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.inner_tasks().get_by_key(queue, key).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.inner_tasks().list(query).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.inner_tasks().queues().await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.inner_tasks().pause(queue, pause).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.inner_tasks().workers().await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.inner_tasks().archive(which).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.inner_tasks().purge(which).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.inner_tasks().now().await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.inner_tasks().subscribe_queues(queues)
    }
}
