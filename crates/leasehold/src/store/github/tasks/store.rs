//! Implementation of `TaskStore` on issues.

use std::sync::Arc;

use async_trait::async_trait;

use super::context::{Context, not_supported};
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::background::Background;
use crate::store::github::locks::{POLL, Protocol};
use crate::store::wake::QueueNotifier;
use crate::store::{ListTasks, Page, QueueSubscription, TaskCapabilities, TaskStore};

pub(crate) const TASK_CAPABILITIES: TaskCapabilities = TaskCapabilities {
    locks: false,
    pause: false,
    purge: false,
    workers: false,
    update_running: false,
    promotion: false,
    lease_ahead: false,
    single_heartbeats: true,
};

pub(crate) struct GithubTasks {
    context: Arc<Context>,
    background: Arc<Background>,
    notifier: QueueNotifier,
}

impl GithubTasks {
    pub(crate) fn new(protocol: Arc<Protocol>, background: Arc<Background>) -> Self {
        Self { context: Arc::new(Context::new(protocol)), background, notifier: QueueNotifier::default() }
    }

    /// Runs a call to completion, even if its caller is dropped.
    async fn run<T, F>(&self, call: impl FnOnce(Arc<Context>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.background.run(call(self.context.clone())).await
    }
}

#[async_trait]
impl TaskStore for GithubTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let tasks = new.to_vec();
        let enqueued = self.run(|context| async move { context.enqueue(&tasks).await }).await?;
        for new in new {
            self.notifier.notify(&new.queue, 1);
        }
        Ok(enqueued)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let request = request.clone();
        self.run(|context| async move { context.lease(&request).await }).await
    }

    async fn heartbeat(&self, _: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Vec<HeartbeatResult>> {
        let held = held.to_vec();
        self.run(move |context| async move { context.heartbeat(&held, ttl).await }).await
    }

    async fn deregister(&self, _: WorkerId) -> Result<()> {
        Ok(())
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settle = settle.to_vec();
        self.run(|context| async move { context.settle(&settle).await }).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let op = op.clone();
        self.run(move |context| async move { context.change(id, &op).await }).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.run(move |context| async move { context.recover(limit).await }).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.run(move |context| async move { context.get(id).await }).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (queue, key) = (queue.clone(), key.clone());
        self.run(|context| async move { context.get_by_key(&queue, &key).await }).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let query = query.clone();
        self.run(|context| async move { context.list(&query).await }).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.run(|context| async move { context.counts(None).await }).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        let queue = queue.clone();
        self.run(|context| async move { Ok(context.counts(Some(&queue)).await?.pop()) }).await
    }

    async fn pause(&self, queue: &QueueName, _: Option<Pause>) -> Result<bool> {
        Err(not_supported(
            &format!("pausing queue '{queue}'"),
            "stop its workers; or remove the label of issues that have to wait, or assign a person",
        ))
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.run(|context| async move { context.workers().await }).await
    }

    async fn archive(&self, _: &FinishedFilter) -> Result<u64> {
        Err(not_supported(
            "archiving tasks",
            "close the issues instead: GitHub hides closed issues by default",
        ))
    }

    async fn purge(&self, _: &FinishedFilter) -> Result<u64> {
        Err(not_supported(
            "purging tasks",
            "leave the issues closed, or delete them: adding a task lists all issues that were added before",
        ))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.run(|context| async move { context.protocol.now().await }).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.notifier.listen(queues, POLL.mul_f64(0.75 + fastrand::f64() / 4.0))
    }
}
