//! `TaskStore` implementation.

use std::sync::Arc;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue};

use super::super::connection::Connections;
use super::super::error::explain;
use super::super::options::RedisOptions;
use super::super::store::POLL_INTERVAL;
use super::call::{RECOVER, unexpected_reply};
use super::codec::Stored;
use super::notifier::TaskNotifier;
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::protocol::TaskCall;
use crate::store::{Clock, ListTasks, Page, QueueSubscription, TaskStore};

/// Maximum number of tasks per script: while a script runs, the server does nothing else.
pub(super) const CHUNK: usize = 100;
/// Approximate maximum number of payload and result bytes that a script reads or writes, for the
/// same reason.
pub(in crate::store::redis) const CHUNK_BYTES: usize = 1 << 20;

/// Division into chunks for one script each.
pub(super) trait Chunks<T> {
    /// Returns chunks of at most [`CHUNK`] items and at most `bytes` bytes; a single item may be
    /// larger.
    fn chunk_by_size(&self, bytes: usize, of: impl Fn(&T) -> usize) -> Vec<&[T]>;
}

impl<T> Chunks<T> for [T] {
    fn chunk_by_size(&self, bytes: usize, of: impl Fn(&T) -> usize) -> Vec<&[T]> {
        let (mut chunks, mut start, mut size) = (Vec::new(), 0, 0);
        for (at, item) in self.iter().enumerate() {
            let more = of(item);
            if at > start && (at - start == CHUNK || size + more > bytes) {
                chunks.push(&self[start..at]);
                (start, size) = (at, 0);
            }
            size += more;
        }
        if start < self.len() {
            chunks.push(&self[start..]);
        }
        chunks
    }
}

/// Tasks on Redis.
pub(in super::super) struct Tasks {
    pub(super) connections: Arc<Connections>,
    /// Key of the hash of all tasks. All other keys have the same prefix.
    pub(super) key: String,
    pub(super) base: String,
    pub(super) notifier: TaskNotifier,
    pub(super) clock: Option<Clock>,
    pub(super) display_url: String,
    pub(super) wait_replicas: u32,
}

impl Tasks {
    pub(in super::super) fn new(connections: Arc<Connections>, options: &RedisOptions) -> Self {
        let base = format!("{}:{{t}}:", options.prefix);
        Self {
            connections,
            key: format!("{base}tasks"),
            notifier: TaskNotifier::new(&base),
            base,
            clock: options.clock.clone(),
            display_url: options.display_url.clone(),
            wait_replicas: options.wait_replicas,
        }
    }

    pub(super) async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        let reply =
            self.connections.send(cmd.into()).await.map_err(|error| explain(&self.display_url, error))?;
        redis::from_redis_value(reply).map_err(|error| explain(&self.display_url, error.into()))
    }
}

#[async_trait]
impl TaskStore for Tasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.enqueue_batch(new).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.lease_batch(request).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        self.heartbeat_batch(worker, held, ttl).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        let mut cmd = redis::cmd("HDEL");
        cmd.arg(format!("{}workers", self.base)).arg(worker.as_uuid().as_bytes());
        self.query::<u64>(&cmd).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        self.settle_batch(settle).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        Ok(self.apply_all(TaskCall::Change, &[(id, op.clone())]).await?.remove(0))
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut left = limit as usize;
        while left > 0 {
            let batch = left.min(CHUNK);
            let (ended, all) = self.expire(batch).await?;
            for task in &ended {
                recovered.count(task.state);
            }
            left -= ended.len();
            if ended.is_empty() || (all && ended.len() < batch) {
                break;
            }
        }
        let mut reply = self.run_and_notify(TaskCall::Recover, &RECOVER, |_| {}).await?;
        recovered.promoted = u32::try_from(reply.number()?).map_err(|_| unexpected_reply())?;
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let read = self.read(|cmd| _ = cmd.arg("by_id").arg(id.as_uuid().as_bytes())).await?;
        Ok(read.stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let read = self.read(|cmd| _ = cmd.arg("by_key").arg(queue.as_str()).arg(key.as_str())).await?;
        Ok(read.stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.list_page(query).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.list_queues().await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.set_pause(queue, pause).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.list_workers().await
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(TaskCall::Archive, filter).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(TaskCall::Purge, filter).await
    }

    async fn now(&self) -> Result<Timestamp> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        self.connections.server_time().await.map_err(|error| explain(&self.display_url, error))
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.notifier.subscribe(&self.connections, queues, POLL_INTERVAL)
    }
}
