//! Implementation of `TaskStore` on issues.

use std::sync::Arc;

use async_trait::async_trait;

use super::desk::{Desk, cannot};
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::background::Background;
use crate::store::github::locks::POLL;
use crate::store::github::protocol::Protocol;
use crate::store::wake::Doorbell;
use crate::store::{ListTasks, Page, QueueSubscription, TaskCapabilities, TaskStore};

/// Task capabilities of this engine.
pub(in crate::store::github) const CAN: TaskCapabilities = TaskCapabilities {
    locks: false,
    pauses: false,
    forgets: false,
    workers: false,
    edits: false,
    promotes: false,
    ahead: false,
};

/// Tasks on issues.
pub(in crate::store::github) struct GithubTasks {
    desk: Arc<Desk>,
    background: Arc<Background>,
    door: Doorbell,
}

impl GithubTasks {
    pub(in crate::store::github) fn new(protocol: Arc<Protocol>, background: Arc<Background>) -> Self {
        Self { desk: Arc::new(Desk::new(protocol)), background, door: Doorbell::default() }
    }

    /// Runs a call to completion, even if its caller is dropped.
    async fn run<T, F>(&self, call: impl FnOnce(Arc<Desk>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.background.run(call(self.desk.clone())).await
    }
}

#[async_trait]
impl TaskStore for GithubTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let tasks = new.to_vec();
        let enqueued = self.run(|desk| async move { desk.enqueue(&tasks).await }).await?;
        for new in new {
            self.door.ring(&new.queue, 1);
        }
        Ok(enqueued)
    }

    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        let ask = ask.clone();
        self.run(|desk| async move { desk.lease(&ask).await }).await
    }

    async fn heartbeat(&self, _: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Vec<HeartbeatResult>> {
        let held = held.to_vec();
        self.run(move |desk| async move { desk.heartbeat(&held, ttl).await }).await
    }

    async fn leave(&self, _: WorkerId) -> Result<()> {
        Ok(())
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settle = settle.to_vec();
        self.run(|desk| async move { desk.settle(&settle).await }).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let op = op.clone();
        self.run(move |desk| async move { desk.change(id, &op).await }).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.run(move |desk| async move { desk.recover(limit).await }).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.run(move |desk| async move { desk.get(id).await }).await
    }

    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (queue, key) = (queue.clone(), key.clone());
        self.run(|desk| async move { desk.keyed(&queue, &key).await }).await
    }

    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        let ask = ask.clone();
        self.run(|desk| async move { desk.list(&ask).await }).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.run(|desk| async move { desk.counts(None).await }).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        let queue = queue.clone();
        self.run(|desk| async move { Ok(desk.counts(Some(&queue)).await?.pop()) }).await
    }

    async fn pause(&self, queue: &QueueName, _: Option<Pause>) -> Result<bool> {
        Err(cannot(
            &format!("pausing queue '{queue}'"),
            "end its workers; or take the label off what is to wait, or assign somebody",
        ))
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.run(|desk| async move { desk.workers().await }).await
    }

    async fn archive(&self, _: &FinishedFilter) -> Result<u64> {
        Err(cannot("putting tasks away", "closed issues are away: GitHub shows open ones unless asked"))
    }

    async fn purge(&self, _: &FinishedFilter) -> Result<u64> {
        Err(cannot("forgetting tasks", "delete the issues, or leave them closed: they cost nothing"))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.run(|desk| async move { desk.protocol.now().await }).await
    }

    fn arrivals(&self, queues: &[QueueName]) -> QueueSubscription {
        self.door.listen(queues, POLL.mul_f64(0.75 + fastrand::f64() / 4.0))
    }
}
