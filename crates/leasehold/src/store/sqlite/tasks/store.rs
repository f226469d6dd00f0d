//! `TaskStore` implementation: each call is a read or a write request on the shared connection of
//! this process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::change_poller::ChangePoller;
use super::maintenance::{FinishedSearch, RetentionOp};
use super::purge_cursors::PurgeCursors;
use super::transaction::{QueueIds, TaskTransaction};
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::sqlite::boot::RecordedBoot;
use crate::store::sqlite::connection::{WriteOptions, Writer};
use crate::store::sqlite::error::explain;
use crate::store::{Boot, Cursor, ListTasks, Page, QueueSubscription, TaskStore};

/// Poll interval of a worker that receives no notification.
const POLL: Duration = Duration::from_millis(500);

/// Maximum number of finished tasks that are archived or purged in one transaction.
const RETENTION_BATCH: usize = 128;

#[derive(Debug)]
pub(crate) struct SqliteTasks {
    writer: Arc<Writer>,
    change_poller: ChangePoller,
    purge_cursors: PurgeCursors,
}

impl SqliteTasks {
    pub(crate) fn new(writer: Arc<Writer>) -> Self {
        let (change_poller, purge_cursors) = Default::default();
        Self { writer, change_poller, purge_cursors }
    }

    /// Archives or purges in several transactions, so that other calls run in between. The search takes no
    /// write lock: it may have to examine very many tasks of other queues.
    async fn apply_retention(&self, op: RetentionOp, filter: &FinishedFilter) -> Result<u64> {
        let now = self.writer.clock.now();
        let purge = matches!(op, RetentionOp::Purge).then(|| self.purge_cursors.start(filter, now));
        let since = purge.map_or(i64::MIN, |start| start.since);
        let (mut searches, mut total, mut missed) = (FinishedSearch::of(op, since), 0, 0);
        loop {
            let left = u64::from(filter.limit) - total;
            let wanted = usize::try_from(left).map_or(RETENTION_BATCH, |left| left.min(RETENTION_BATCH));
            for search in &mut searches {
                while search.needs_more(wanted) {
                    let (filter, part) = (filter.clone(), search.clone());
                    *search = self.writer.read(move |tx| tx.search_finished(&filter, part, wanted)).await?;
                    // The read was done on this thread: other work of the runtime runs in between.
                    tokio::task::yield_now().await;
                }
            }
            let found = FinishedSearch::take(&mut searches, wanted);
            if found.is_empty() {
                if let Some(start) = purge
                    && wanted > 0
                    && missed == 0
                {
                    self.purge_cursors.finish(filter, start);
                }
                return Ok(total);
            }
            let count = found.len();
            let done =
                self.writer.transact(changing(count), move |tx| tx.apply_retention(op, &found)).await?;
            (total, missed) = (total + done, missed + (count as u64).saturating_sub(done));
        }
    }

    /// Adds tasks in a transaction of the caller, which may be rolled back.
    pub(crate) fn enqueue_in_transaction(
        &self,
        tx: &rusqlite::Transaction<'_>,
        new: &[NewTask],
    ) -> Result<Vec<Enqueued>> {
        let path = self.writer.path();
        let callers_path = tx.path().and_then(|path| std::fs::canonicalize(path).ok());
        if callers_path.as_ref() != Some(&path) {
            let message = format!("the transaction is not on the store's own file {}", path.display());
            let hint = "open the connection on that file";
            return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
        }
        if self.writer.is_reader() {
            let known = RecordedBoot::load(tx).map_err(|error| explain(&path, error))?;
            self.writer.clock.follow_kernel(known.clock_offset(&Boot::read()));
        }
        let mut queues = QueueIds::default();
        let mut ours = TaskTransaction::new(tx, &mut queues, self.writer.clock.now());
        let done = ours.enqueue(new).and_then(|enqueued| ours.finish().map(|_| enqueued));
        done.map_err(|error| explain(&path, error))
    }
}

/// Returns the options of a call that changes every task that it finds.
const fn changing(weight: usize) -> WriteOptions {
    WriteOptions { weight, always_sync: false }
}

/// Returns the options of a call whose answer must be durable even if nothing was left to change.
const fn always_synced(weight: usize) -> WriteOptions {
    WriteOptions { weight, always_sync: true }
}

#[async_trait]
impl TaskStore for SqliteTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let new = new.to_vec();
        self.writer.transact(always_synced(new.len()), move |tx| tx.enqueue(&new)).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let (request, max) = (request.clone(), request.max as usize);
        self.writer.transact(changing(max), move |tx| tx.lease(&request)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let (worker, held) = (worker.clone(), held.to_vec());
        let options = changing(held.len());
        self.writer.transact(options, move |tx| tx.heartbeat(&worker, &held, ttl)).await
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.writer.transact(changing(1), move |tx| tx.deregister(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settle = settle.to_vec();
        self.writer.transact(always_synced(settle.len()), move |tx| tx.settle(&settle)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let op = op.clone();
        self.writer.transact(always_synced(1), move |tx| tx.change_by_id(&id, &op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.writer.transact(changing(limit as usize), move |tx| tx.recover(limit)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.writer.read(move |tx| Ok(tx.load_with_payload(&id)?.map(|found| found.task))).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (queue, key) = (queue.clone(), key.clone());
        self.writer.read(move |tx| tx.get_by_key(&queue, &key)).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let mut before: Option<TaskId> = query.after.as_ref().and_then(|after| after.0.parse().ok());
        let (limit, mut items) = (page_size(query.limit), Vec::new());
        loop {
            let query = query.clone();
            let more = u32::try_from(limit as usize - items.len()).unwrap_or(u32::MAX);
            let (tasks, next) = self.writer.read(move |tx| tx.list_range(&query, before, more)).await?;
            items.extend(tasks);
            if items.len() == limit as usize || next.is_none() {
                return Ok(Page::of(items, limit as usize, |task: &Task| Cursor(task.id.to_string())));
            }
            before = next;
            // The read was done on this thread: other work of the runtime runs in between.
            tokio::task::yield_now().await;
        }
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.writer.read(|tx| tx.status()).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let queue = queue.clone();
        self.writer.transact(always_synced(1), move |tx| tx.pause(&queue, pause.as_ref())).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.writer.read(|tx| tx.workers()).await
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(RetentionOp::Archive, filter).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(RetentionOp::Purge, filter).await
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.writer.clock.now())
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        let arrivals = self.writer.shared.notifier.listen(queues, POLL);
        self.change_poller.start(|| Arc::downgrade(&self.writer.shared));
        arrivals
    }
}
