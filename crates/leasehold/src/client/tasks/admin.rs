//! Administration of tasks and queues.

use std::sync::Arc;

use crate::client::context::{Inner, parsed};
use crate::error::{Error, Result};
use crate::model::{
    Cancel, FinishedFilter, Holder, Pause, QueueName, QueueStatus, Reason, Recovered, Retry, Task,
    TaskAnswer, TaskId, TaskKey, TaskOp, TaskUpdate, WorkerStatus,
};
use crate::store::{ListTasks, Page, TaskStore, notify_worker};

/// Administrative API for tasks and queues.
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

    /// Returns one task.
    pub async fn get(&self, id: TaskId) -> Result<Task> {
        self.store()?.get(id).await?.ok_or(Error::UnknownTask(id))
    }

    /// Returns the task that has this key.
    pub async fn get_by_key(
        &self,
        queue: impl TryInto<QueueName, Error: Into<Error>>,
        key: impl TryInto<TaskKey, Error: Into<Error>>,
    ) -> Result<Option<Task>> {
        self.store()?.get_by_key(&parsed(queue)?, &parsed(key)?).await
    }

    /// Lists tasks, the newest first, one page per call.
    pub async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.store()?.list(query).await
    }

    /// Cancels a task: immediately if it waits. If it runs, its worker learns it immediately where
    /// the store notifies it, otherwise with its next heartbeat.
    pub async fn cancel(&self, id: TaskId, by: Holder, reason: Option<Reason>) -> Result<Task> {
        self.change(id, TaskOp::Cancel(Cancel { by, reason }), "stopping it").await
    }

    /// Tries a failed or aborted task again, with all its attempts; runs a scheduled task now.
    pub async fn retry(&self, id: TaskId, by: Holder) -> Result<Task> {
        self.change(id, TaskOp::Retry(Retry { by }), "trying it again").await
    }

    /// Changes a task if it still has the version that the caller expects.
    pub async fn update(&self, id: TaskId, change: TaskUpdate) -> Result<Task> {
        self.change(id, TaskOp::Update(change), "that change").await
    }

    async fn change(&self, id: TaskId, op: TaskOp, operation: &'static str) -> Result<Task> {
        let (answer, task) = self.store()?.change(id, &op).await?.ok_or(Error::UnknownTask(id))?;
        match (answer, op) {
            (TaskAnswer::VersionConflict(current), TaskOp::Update(TaskUpdate { expected, .. })) => {
                Err(Error::VersionConflict { task: id, expected, current })
            }
            (TaskAnswer::Refused(state), _) => Err(Error::TaskState { task: id, state, operation }),
            _ => {
                notify_worker(&*self.inner.store, &task).await;
                Ok(task)
            }
        }
    }

    /// Lists the queues with their counts.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.store()?.queues().await
    }

    /// Returns one queue with its counts.
    pub async fn queue(&self, queue: impl TryInto<QueueName, Error: Into<Error>>) -> Result<QueueStatus> {
        let queue = parsed(queue)?;
        match self.store()?.queue(&queue).await? {
            Some(status) => Ok(status),
            None => Err(self.unknown(queue).await?),
        }
    }

    async fn unknown(&self, queue: QueueName) -> Result<Error> {
        let known = self.queues().await?.into_iter().map(|status| status.queue).collect();
        Ok(Error::UnknownQueue { queue, known })
    }

    /// Pauses a queue: workers lease no more tasks from it until it is resumed. Running tasks
    /// continue.
    pub async fn pause(
        &self,
        queue: impl TryInto<QueueName, Error: Into<Error>>,
        by: Holder,
        reason: Option<Reason>,
    ) -> Result<()> {
        let queue = parsed(queue)?;
        let at = self.store()?.now().await?;
        self.set_pause(queue, Some(Pause { by, reason, at })).await
    }

    /// Resumes a queue: workers lease tasks from it again.
    pub async fn resume(&self, queue: impl TryInto<QueueName, Error: Into<Error>>) -> Result<()> {
        self.set_pause(parsed(queue)?, None).await
    }

    async fn set_pause(&self, queue: QueueName, pause: Option<Pause>) -> Result<()> {
        if self.store()?.pause(&queue, pause).await? { Ok(()) } else { Err(self.unknown(queue).await?) }
    }

    /// Lists the workers that sent a heartbeat in the last hour.
    pub async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.store()?.workers().await
    }

    /// Ends expired leases, and makes due tasks available. Every worker does so periodically.
    pub async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.store()?.recover(limit).await
    }

    /// Archives finished tasks, so that they are no longer listed or counted, and returns their
    /// number.
    pub async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.store()?.archive(which).await
    }
}
