//! Looking at tasks and queues, and stepping in by hand.

use std::sync::Arc;

use crate::client::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Cancel, Change, Finished, Holder, Pause, QueueName, QueueStatus, Reason, Recovered, Retry, Task,
    TaskAnswer, TaskId, TaskKey, TaskOp, Ttl, WorkerStatus,
};
use crate::store::{ListTasks, Page, TaskStore, notify_worker};

/// The tasks of a store, for whoever looks after them.
#[derive(Clone)]
pub struct Tasks {
    pub(super) inner: Arc<Inner>,
}

impl Tasks {
    pub(in crate::client) fn new(inner: Arc<Inner>) -> Result<Self> {
        inner.tasks()?;
        Ok(Self { inner })
    }

    pub(super) fn store(&self) -> Result<&dyn TaskStore> {
        self.inner.tasks()
    }

    pub(super) fn least_ttl(&self) -> Ttl {
        self.inner.store.abilities().min_ttl
    }

    /// One task.
    pub async fn get(&self, id: TaskId) -> Result<Task> {
        self.store()?.get(id).await?.ok_or(Error::UnknownTask(id))
    }

    /// The task that has this key.
    pub async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.store()?.keyed(queue, key).await
    }

    /// Tasks, the newest first, a page at a time.
    pub async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        self.store()?.list(ask).await
    }

    /// Stops a task: at once if it waits. If it runs, its worker learns it at once where the store notifies it, else with its
    /// next heartbeat.
    pub async fn cancel(&self, id: TaskId, by: Holder, reason: Option<Reason>) -> Result<Task> {
        self.change(id, TaskOp::Cancel(Cancel { by, reason }), "stopping it").await
    }

    /// Tries a failed or stopped task again, with all its attempts; runs a scheduled one now.
    pub async fn retry(&self, id: TaskId, by: Holder) -> Result<Task> {
        self.change(id, TaskOp::Retry(Retry { by }), "trying it again").await
    }

    /// Changes a task if it is still at the version that the caller saw.
    pub async fn update(&self, id: TaskId, change: Change) -> Result<Task> {
        self.change(id, TaskOp::Update(change), "that change").await
    }

    async fn change(&self, id: TaskId, op: TaskOp, what: &'static str) -> Result<Task> {
        let (answer, task) = self.store()?.change(id, &op).await?.ok_or(Error::UnknownTask(id))?;
        match (answer, op) {
            (TaskAnswer::VersionConflict(current), TaskOp::Update(Change { expected, .. })) => {
                Err(Error::VersionConflict { task: id, expected, current })
            }
            (TaskAnswer::Refused(state), _) => Err(Error::TaskState { task: id, state, what }),
            _ => {
                notify_worker(&*self.inner.store, &task).await;
                Ok(task)
            }
        }
    }

    /// The queues with their counts.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.store()?.queues().await
    }

    /// One queue with its counts.
    pub async fn queue(&self, queue: &QueueName) -> Result<QueueStatus> {
        if let Some(status) = self.store()?.queue(queue).await? {
            return Ok(status);
        }
        let known = self.queues().await?.into_iter().map(|status| status.queue).collect();
        Err(Error::UnknownQueue { queue: queue.clone(), known })
    }

    /// Nothing more is taken from this queue until it is resumed; what runs goes on.
    pub async fn pause(&self, queue: &QueueName, by: Holder, reason: Option<Reason>) -> Result<()> {
        let at = self.store()?.now().await?;
        self.set_pause(queue, Some(Pause { by, reason, at })).await
    }

    /// Tasks are taken from this queue again.
    pub async fn resume(&self, queue: &QueueName) -> Result<()> {
        self.set_pause(queue, None).await
    }

    async fn set_pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<()> {
        if self.store()?.pause(queue, pause).await? {
            return Ok(());
        }
        let known = self.queues().await?.into_iter().map(|status| status.queue).collect();
        Err(Error::UnknownQueue { queue: queue.clone(), known })
    }

    /// The workers that were heard of in the last hour.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.store()?.workers().await
    }

    /// Ends leases that have run out, and puts in line what is due: what every worker does now and then.
    pub async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.store()?.recover(limit).await
    }

    /// Puts finished tasks away, so that they are no longer listed or counted; says how many.
    pub async fn archive(&self, which: &Finished) -> Result<u64> {
        self.store()?.archive(which).await
    }
}
