//! Tasks: each call is one HTTP exchange.

use std::sync::Arc;

use async_trait::async_trait;

use super::desk::Desk;
use super::wakes::Wakes;
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
    pub(super) desk: Arc<Desk>,
    pub(super) wakes: Arc<Wakes>,
}

impl HttpTasks {
    async fn ask<A: serde::Serialize, R: serde::de::DeserializeOwned>(
        &self,
        call: TaskCall,
        arguments: &A,
    ) -> Result<R> {
        self.desk.ask(format!("tasks/{}", call.word()), arguments, call).await
    }
}

#[async_trait]
impl TaskStore for HttpTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let added = self.ask(TaskCall::Enqueue, &(new,)).await?;
        // Workers of this process need not wait for the notification of the server.
        for new in new {
            self.wakes.arrived(&new.queue);
        }
        Ok(added)
    }

    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        self.ask(TaskCall::Lease, &(ask,)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.ask(TaskCall::Heartbeat, &(worker, held, ttl)).await
    }

    async fn leave(&self, worker: WorkerId) -> Result<()> {
        self.ask(TaskCall::Leave, &(worker,)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.ask(TaskCall::Settle, &(settle,)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        self.ask(TaskCall::Change, &(id, op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.ask(TaskCall::Recover, &(limit,)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.ask(TaskCall::Get, &(id,)).await
    }

    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.ask(TaskCall::Keyed, &(queue, key)).await
    }

    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        self.ask(TaskCall::List, &(ask,)).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.ask(TaskCall::Queues, &()).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        self.ask(TaskCall::Queue, &(queue,)).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.ask(TaskCall::Pause, &(queue, pause)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.ask(TaskCall::Workers, &()).await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.ask(TaskCall::Archive, &(which,)).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.ask(TaskCall::Purge, &(which,)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.ask(TaskCall::Now, &()).await
    }

    fn arrivals(&self, queues: &[QueueName]) -> QueueSubscription {
        self.wakes.arrivals(queues)
    }
}
