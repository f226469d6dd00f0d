//! Adding tasks.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::task_type::{TaskType, clamped};
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Enqueued, LockName, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse, TaskId, TaskKey,
    Timestamp, Ttl, When,
};
use crate::store::clock::new_id;

/// Task that was added, or that existed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EnqueueResult {
    /// Id of the task.
    pub id: TaskId,
    /// Whether a task with the same key and the same payload existed already: no task was added.
    pub duplicate: bool,
}

/// Builder that adds a task when awaited. Invalid arguments are reported then.
#[must_use = "nothing is added until it is awaited"]
pub struct EnqueueBuilder {
    inner: Arc<Inner>,
    new: Result<NewTask>,
}

impl EnqueueBuilder {
    pub(in crate::client) fn new(inner: Arc<Inner>, new: Result<NewTask>) -> Self {
        Self { inner, new }
    }

    /// Sets the idempotency key, which identifies the task when a caller adds it again: unique per
    /// queue, for as long as the task is stored.
    pub fn key<K: TryInto<TaskKey, Error: Into<Error>>>(self, key: K) -> Self {
        self.with(key.try_into(), |new, key| new.key = Some(key))
    }

    /// Sets when the key of an earlier task may be used again; never by default.
    pub fn reuse(self, reuse: Reuse) -> Self {
        self.with(Ok::<_, Error>(reuse), |new, reuse| new.reuse = reuse)
    }

    /// Sets the delay before the task may run.
    pub fn delay(self, delay: Duration) -> Self {
        let when = if delay.is_zero() { When::Now } else { When::In(clamped(delay)) };
        self.with(Ok::<_, Error>(when), |new, when| new.when = when)
    }

    /// Sets the earliest time at which the task may run.
    pub fn run_at(self, time: Timestamp) -> Self {
        self.with(Ok::<_, Error>(time), |new, time| new.when = When::At(time))
    }

    /// Sets the priority among the tasks that are ready to run: each step counts as having been
    /// added 30 s earlier.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |new, priority| new.priority = priority)
    }

    /// Sets the lock that the worker must hold while the task runs. A task that waits for its lock
    /// does not delay other tasks.
    pub fn lock<N: TryInto<LockName, Error: Into<Error>>>(self, lock: N) -> Self {
        self.with(lock.try_into(), |new, lock| new.lock = Some(lock))
    }

    /// Sets the maximum number of attempts, and the delays between them.
    pub fn retries(self, retries: RetryPolicy) -> Self {
        self.with(retries.check(), |new, retries| new.retries = retries)
    }

    /// Sets the maximum run time of one attempt. A worker ends an attempt that runs longer; the attempt
    /// has failed, and the task is tried again if attempts are left.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(Ttl::new(timeout), |new, timeout| new.timeout = Some(timeout))
    }

    /// Returns the task without adding it, for callers that add it in their own transaction.
    pub fn into_new_task(self) -> Result<NewTask> {
        Ok(self.new?.as_execution()?)
    }

    fn with<T, E: Into<Error>>(mut self, value: Result<T, E>, set: impl FnOnce(&mut NewTask, T)) -> Self {
        match (&mut self.new, value) {
            (Ok(new), Ok(value)) => set(new, value),
            (Ok(_), Err(error)) => self.new = Err(error.into()),
            (Err(_), _) => {}
        }
        self
    }
}

impl IntoFuture for EnqueueBuilder {
    type Output = Result<EnqueueResult>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<EnqueueResult>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut added = enqueue(&self.inner, vec![self.new?]).await?;
            added.pop().expect("one result for one task")
        })
    }
}

pub(in crate::client) fn new_task<W: TaskType>(work: &W) -> Result<NewTask> {
    let id = TaskId::from_uuid(new_id());
    let new = NewTask::new(id, QueueName::new(W::QUEUE)?, Payload::of(work)?);
    let timeout = W::TIMEOUT.map(Ttl::new).transpose()?;
    Ok(NewTask { retries: W::RETRIES.check()?, timeout, ..new })
}

pub(in crate::client) async fn enqueue(
    inner: &Inner,
    new: Vec<NewTask>,
) -> Result<Vec<Result<EnqueueResult>>> {
    let new = new.into_iter().map(NewTask::as_execution).collect::<Result<Vec<_>, _>>()?;
    let enqueued = inner.tasks()?.enqueue(&new).await?;
    let result = |(new, enqueued): (NewTask, Enqueued)| match (enqueued, new.key, new.lock) {
        (Enqueued::KeyReused(task), Some(key), _) => Err(Error::KeyReused { queue: new.queue, key, task }),
        (Enqueued::LockQueueFull(task), _, Some(lock)) => Err(Error::LockQueueFull { lock, task }),
        (enqueued, ..) => {
            Ok(EnqueueResult { id: enqueued.id(), duplicate: matches!(enqueued, Enqueued::Duplicate(_)) })
        }
    };
    Ok(new.into_iter().zip(enqueued).map(result).collect())
}
