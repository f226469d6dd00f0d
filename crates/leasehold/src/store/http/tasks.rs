//! Tasks: each call is one HTTP exchange.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::HttpClient;
use super::subscriber::Subscriber;
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::protocol::TaskCall;
use crate::store::{ListTasks, Page, QueueSubscription, TaskStore};

#[derive(Debug)]
pub(super) struct HttpTasks {
    pub(super) client: Arc<HttpClient>,
    pub(super) subscriber: Arc<Subscriber>,
}

impl HttpTasks {
    async fn call<A: serde::Serialize, R: serde::de::DeserializeOwned>(
        &self,
        method: TaskCall,
        arguments: &A,
    ) -> Result<R> {
        self.client.call(format!("tasks/{}", method.as_str()), arguments, method).await
    }
}

#[async_trait]
impl TaskStore for HttpTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let added = self.call(TaskCall::Enqueue, &(new,)).await?;
        // Workers of this process need not wait for the notification of the server.
        for new in new {
            self.subscriber.notify_queue(&new.queue);
        }
        Ok(added)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.call(TaskCall::Lease, &(request,)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.call(TaskCall::Heartbeat, &(worker, held, ttl)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.call(TaskCall::Deregister, &(worker,)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.call(TaskCall::Settle, &(settle,)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.call(TaskCall::Change, &(id, op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.call(TaskCall::Recover, &(limit,)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.call(TaskCall::Get, &(id,)).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.call(TaskCall::GetByKey, &(queue, key)).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.call(TaskCall::List, &(query,)).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.call(TaskCall::Queues, &()).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        self.call(TaskCall::Queue, &(queue,)).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.call(TaskCall::Pause, &(queue, pause)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.call(TaskCall::Workers, &()).await
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.call(TaskCall::Archive, &(filter,)).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.call(TaskCall::Purge, &(filter,)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.call(TaskCall::Now, &()).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.subscriber.subscribe_queues(queues)
    }
}
