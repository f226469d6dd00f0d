//! `TaskStore` implementation: each call is a read or an errand on the shared connection of this
//! process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::errand::Call;
use super::shelf::{Queues, Shelf};
use super::tidy::Tidy;
use super::watch::Watch;
use crate::Result;
use crate::error::{Error, StoreErrorKind};
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::sqlite::boot::Known;
use crate::store::sqlite::trouble::explain;
use crate::store::sqlite::writer::Writer;
use crate::store::{Boot, Cursor, ListTasks, Page, QueueSubscription, TaskStore};

/// Poll interval of a worker that receives no notification.
const POLL: Duration = Duration::from_millis(500);

/// Maximum number of finished tasks that are archived or purged in one transaction.
const PIECE: u32 = 128;

/// Tasks in the file.
#[derive(Debug)]
pub(in crate::store::sqlite) struct SqliteTasks {
    writer: Arc<Writer>,
    watch: Watch,
}

impl SqliteTasks {
    pub(in crate::store::sqlite) fn new(writer: Arc<Writer>) -> Self {
        Self { writer, watch: Watch::default() }
    }

    /// Archives or purges in several transactions, so that other calls run in between.
    async fn tidy(&self, how: Tidy, which: &FinishedFilter) -> Result<u64> {
        let mut tidied = 0;
        loop {
            let left = u64::from(which.limit) - tidied;
            let limit = u32::try_from(left).map_or(PIECE, |left| left.min(PIECE));
            let piece = FinishedFilter { limit, ..which.clone() };
            let done =
                self.writer.transact(changes(limit as usize), move |shelf| shelf.tidy(how, &piece)).await?;
            tidied += done;
            if done < u64::from(limit) || tidied >= u64::from(which.limit) {
                return Ok(tidied);
            }
        }
    }

    /// Adds tasks in a transaction of the caller, which may be rolled back.
    pub(in crate::store::sqlite) fn enqueue_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        new: &[NewTask],
    ) -> Result<Vec<Enqueued>> {
        let ours = self.writer.path();
        let theirs = tx.path().and_then(|path| std::fs::canonicalize(path).ok());
        if theirs.as_ref() != Some(&ours) {
            let message = format!("the transaction is not on the store's own file {}", ours.display());
            return Err(Error::store(
                StoreErrorKind::Misconfigured,
                message,
                "open the connection on that file",
            ));
        }
        if self.writer.only_looks() {
            let known = Known::load(tx).map_err(|error| explain(&ours, error))?;
            self.writer.clock().follow_kernel(known.clock_offset(&Boot::read()));
        }
        let mut queues = Queues::default();
        let mut tables = Shelf::new(tx, &mut queues, self.writer.clock().now());
        let done = tables.enqueue(new).and_then(|enqueued| tables.close().map(|_| enqueued));
        done.map_err(|error| explain(&ours, error))
    }
}

/// Returns a call that changes every task that it finds.
const fn changes(weight: usize) -> Call {
    Call { weight, promises: false }
}

/// Returns a call whose answer must be durable even if nothing was left to change.
const fn promises(weight: usize) -> Call {
    Call { weight, promises: true }
}

#[async_trait]
impl TaskStore for SqliteTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let new = new.to_vec();
        self.writer.transact(promises(new.len()), move |shelf| shelf.enqueue(&new)).await
    }

    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        let (ask, max) = (ask.clone(), ask.max as usize);
        self.writer.transact(changes(max), move |shelf| shelf.lease(&ask)).await
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let (worker, held) = (worker.clone(), held.to_vec());
        let call = changes(held.len());
        self.writer.transact(call, move |shelf| shelf.heartbeat(&worker, &held, ttl)).await
    }

    async fn leave(&self, worker: WorkerId) -> Result<()> {
        self.writer.transact(changes(1), move |shelf| shelf.leave(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settle = settle.to_vec();
        self.writer.transact(promises(settle.len()), move |shelf| shelf.settle(&settle)).await
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let op = op.clone();
        self.writer.transact(promises(1), move |shelf| shelf.change_by_hand(&id, &op)).await
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        self.writer.transact(changes(limit as usize), move |shelf| shelf.recover(limit)).await
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.writer.look(move |shelf| shelf.load_whole(&id)).await
    }

    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (queue, key) = (queue.clone(), key.clone());
        self.writer.look(move |shelf| shelf.keyed(&queue, &key)).await
    }

    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        let mut before: Option<TaskId> = ask.after.as_ref().and_then(|after| after.0.parse().ok());
        let limit = page_size(ask.limit) as usize;
        let mut items = Vec::new();
        loop {
            let ask = ask.clone();
            let more = u32::try_from(limit - items.len()).unwrap_or(u32::MAX);
            let stretch = self.writer.look(move |shelf| shelf.stretch(&ask, before, more)).await?;
            items.extend(stretch.found);
            if items.len() == limit || stretch.next.is_none() {
                break;
            }
            before = stretch.next;
        }
        let next = items.last().filter(|_| items.len() == limit).map(|last| Cursor(last.id.to_string()));
        Ok(Page { items, next })
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.writer.look(|shelf| shelf.status()).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let queue = queue.clone();
        self.writer.transact(promises(1), move |shelf| shelf.pause(&queue, pause.as_ref())).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.writer.look(|shelf| shelf.workers()).await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.tidy(Tidy::Archive, which).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.tidy(Tidy::Purge, which).await
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.writer.clock().now())
    }

    fn arrivals(&self, queues: &[QueueName]) -> QueueSubscription {
        let arrivals = self.writer.desk().door.listen(queues, POLL);
        self.watch.begin(|| Arc::downgrade(self.writer.desk()));
        arrivals
    }
}
