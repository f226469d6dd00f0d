//! Adding tasks.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::work::{Work, clamped};
use crate::client::leasehold::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Enqueued, LockName, NewTask, Payload, Priority, QueueName, Retries, Reuse, TaskId, TaskKey, Timestamp,
    When,
};
use crate::store::clock::new_id;

/// A task that was added, or that was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Added {
    /// The task.
    pub id: TaskId,
    /// Whether a task with the same key and the same payload was there already: nothing was added.
    pub duplicate: bool,
}

/// Adds a task when awaited. What is wrong with a value is told then.
#[must_use = "nothing is added until it is awaited"]
pub struct EnqueueBuilder {
    inner: Arc<Inner>,
    new: Result<NewTask>,
}

impl EnqueueBuilder {
    pub(in crate::client) fn typed<W: Work>(inner: Arc<Inner>, work: &W) -> Self {
        Self { inner, new: new_task(work) }
    }

    pub(in crate::client) fn plain<Q>(inner: Arc<Inner>, queue: Q, payload: Payload) -> Self
    where
        Q: TryInto<QueueName>,
        Q::Error: Into<Error>,
    {
        let new = queue.try_into().map_err(Into::into);
        Self { inner, new: new.map(|queue| NewTask::new(TaskId::from_uuid(new_id()), queue, payload)) }
    }

    /// What makes it the same task when it is added again: one per queue, for as long as the task is known.
    pub fn key<K>(self, key: K) -> Self
    where
        K: TryInto<TaskKey>,
        K::Error: Into<Error>,
    {
        self.with(key.try_into(), |new, key| new.key = Some(key))
    }

    /// When the key of an earlier task may be used anew; never if not said.
    pub fn reuse(self, reuse: Reuse) -> Self {
        self.with(Ok::<_, Error>(reuse), |new, reuse| new.reuse = reuse)
    }

    /// Not before so long from now.
    pub fn delay(self, delay: Duration) -> Self {
        let when = if delay.is_zero() { When::Now } else { When::In(clamped(delay)) };
        self.with(Ok::<_, Error>(when), |new, when| new.when = when)
    }

    /// Not before this time.
    pub fn run_at(self, time: Timestamp) -> Self {
        self.with(Ok::<_, Error>(time), |new, time| new.when = When::At(time))
    }

    /// Weight among those that could run: one step counts as having come 30 s earlier.
    pub fn priority(self, weight: i32) -> Self {
        self.with(Priority::new(weight), |new, priority| new.priority = priority)
    }

    /// It runs only while its worker holds this lock. Others are not held up by it.
    pub fn lock<N>(self, lock: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        self.with(lock.try_into(), |new, lock| new.lock = Some(lock))
    }

    /// How often it is tried, and how long the pauses between are.
    pub fn retries(self, retries: Retries) -> Self {
        self.with(retries.check(), |new, retries| new.retries = retries)
    }

    /// The task itself, for adding it in a transaction of your own.
    pub fn into_new_task(self) -> Result<NewTask> {
        self.new
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
    type Output = Result<Added>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Added>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut added = enqueue(&self.inner, vec![self.new?]).await?;
            added.pop().expect("an answer for the one task")
        })
    }
}

/// A typed task as it will be added.
pub(in crate::client) fn new_task<W: Work>(work: &W) -> Result<NewTask> {
    let id = TaskId::from_uuid(new_id());
    let new = NewTask::new(id, QueueName::new(W::QUEUE)?, Payload::of(work)?);
    Ok(NewTask { retries: W::RETRIES.check()?, ..new })
}

/// Adds tasks in one go, and says what came of each.
pub(in crate::client) async fn enqueue(inner: &Inner, new: Vec<NewTask>) -> Result<Vec<Result<Added>>> {
    let enqueued = inner.tasks()?.enqueue(&new).await?;
    let answer = |(new, enqueued): (NewTask, Enqueued)| match (enqueued, new.key, new.lock) {
        (Enqueued::KeyReused(task), Some(key), _) => Err(Error::KeyReused { queue: new.queue, key, task }),
        (Enqueued::NoRoom(task), _, Some(lock)) => Err(Error::NoRoom { lock, task }),
        (enqueued, ..) => {
            Ok(Added { id: enqueued.id(), duplicate: matches!(enqueued, Enqueued::Duplicate(_)) })
        }
    };
    Ok(new.into_iter().zip(enqueued).map(answer).collect())
}
