//! Implementation of [`TaskStore`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;

use super::codec::read_task;
use super::cursors::Positions;
use super::insert_batcher::InsertBatcher;
use super::maintenance::{self, RecoveryPass};
use super::notifier::WorkerNotifier;
use super::pool::Pool;
use super::queries::{self, TaskQuery};
use super::transaction::{BEGIN, LOAD, TaskTransaction};
use super::{complete, enqueue, lease};
use crate::error::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{OwnedParam, column, first_row, micros, number, to_json, ttl_micros};
use crate::store::postgres::connection::{Listener, Session};
use crate::store::postgres::documents::PURGE_DOCUMENTS;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::Sql;
use crate::store::protocol::TaskCall;
use crate::store::repeat::Repeat;
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, Cursor, ListTasks, Page, QueueSubscription, TaskStore};

/// Poll interval of a worker that receives notifications.
const POLL: Duration = Duration::from_secs(1);
/// Number of calls that change counts between two foldings.
const FOLD_EVERY: u32 = 2048;
/// Delay before heartbeats of tasks that another transaction holds are sent again, once.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Minimum interval between two foldings after recoveries.
const FOLD_INTERVAL: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct PostgresTasks {
    pub(super) pool: Arc<Pool>,
    pub(super) notifier: Arc<WorkerNotifier>,
    insert_batcher: Arc<InsertBatcher>,
    listener: Arc<Listener>,
    calls: AtomicU32,
    /// Whether this process is folding counts, or deleting old workers and documents.
    is_maintaining: Arc<AtomicBool>,
    /// Time of the last folding that a recovery started.
    folded_at: Arc<Mutex<Option<BootInstant>>>,
}

/// Statement, and the planner settings for it.
#[cfg(feature = "testing")]
#[doc(hidden)]
#[derive(Debug)]
pub struct LeaseStatement {
    /// Planner settings, to be executed first.
    pub planner_settings: String,
    /// Text of the statement.
    pub sql: String,
    /// Text of the statement for plain tasks.
    pub plain: String,
}

impl PostgresTasks {
    pub(crate) fn new(pool: Arc<Pool>, notifier: Arc<WorkerNotifier>, listener: Arc<Listener>) -> Self {
        let (insert_batcher, is_maintaining, folded_at) = Default::default();
        let calls = AtomicU32::new(0);
        Self { pool, notifier, insert_batcher, listener, calls, is_maintaining, folded_at }
    }

    /// Creates the rows of queues and priorities that do not exist yet.
    pub(super) async fn create_queues(&self, new: &[NewTask]) -> Result<()> {
        let levels: BTreeSet<(&str, i32)> =
            new.iter().map(|new| (new.queue.as_str(), new.priority.get())).collect();
        let queues = column(&levels, |(queue, _)| (*queue).to_owned());
        let params = vec![queues, column(&levels, |(_, priority)| *priority)];
        self.pool.query(Repeat::Safe, &enqueue::CREATE_QUEUES, params).await.map(drop)
    }

    async fn fetch(&self, query: TaskQuery) -> Result<Vec<Task>> {
        let fetch = |session: Arc<Session>, query: Arc<TaskQuery>| async move { query.fetch(&session).await };
        let rows = self.pool.run(Repeat::Safe, Arc::new(query), fetch).await?;
        self.map_error(rows.iter().map(read_task).collect())
    }

    /// Sends heartbeats for these tasks, and does not wait for rows that another transaction has locked.
    async fn extend_leases(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let now = self.pool.connector.now();
        let params = self.map_error(complete::heartbeat_params(worker, held, ttl, now))?;
        let rows = self.pool.query(TaskCall::Heartbeat, &complete::HEARTBEAT, params).await?;
        self.map_error(complete::heartbeat_results(held, &rows))
    }

    fn map_error<T>(&self, read: Result<T, PgError>) -> Result<T> {
        self.pool.connector.map_error(read)
    }

    fn fold_periodically(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) % FOLD_EVERY == FOLD_EVERY - 1 {
            let pool = Arc::downgrade(&self.pool);
            self.start_maintenance(async move { fold(&pool).await });
        }
    }

    /// Deletes old workers and documents, and folds counts, as each recovery does. What fails is tried again by
    /// the next one.
    fn start_purge_and_fold(&self) {
        let (pool, folded_at) = (Arc::downgrade(&self.pool), self.folded_at.clone());
        let (now, remembered) = (self.pool.connector.now(), ttl_micros(WorkerStatus::LISTED_FOR));
        let workers: Vec<OwnedParam<'static>> = vec![Box::new(remembered), Box::new(now)];
        let documents: Vec<OwnedParam<'static>> = vec![Box::new(now)];
        self.start_maintenance(async move {
            for (purge, params) in [(&maintenance::PURGE_WORKERS, workers), (&PURGE_DOCUMENTS, documents)] {
                let Some(pool) = pool.upgrade() else { return };
                if let Err(error) = pool.query(Repeat::Safe, purge, params).await {
                    tracing::debug!(%error, "purging old workers or documents failed; it will be retried");
                }
            }
            let is_due = {
                let (mut folded_at, now) = (lock(&folded_at), BootInstant::now());
                let is_due = folded_at.is_none_or(|at| now.after(at) >= FOLD_INTERVAL);
                if is_due {
                    *folded_at = Some(now);
                }
                is_due
            };
            if is_due {
                fold(&pool).await;
            }
        });
    }

    /// Does this work in the background, unless this process is doing such work: no caller needs it to succeed. It
    /// must not keep the pool from one statement to the next, so that it ends when the store is dropped.
    fn start_maintenance(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(background) = self.pool.background() else { return };
        if self.is_maintaining.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_maintaining = self.is_maintaining.clone();
        background.handle().spawn(async move {
            work.await;
            is_maintaining.store(false, Ordering::Relaxed);
        });
    }

    /// Archives or purges tasks, and returns their number.
    async fn archive_or_purge(
        &self,
        call: TaskCall,
        sql: &'static Sql,
        filter: &FinishedFilter,
    ) -> Result<u64> {
        let params: Vec<OwnedParam<'_>> = vec![
            Box::new(filter.queue.as_ref().map(|queue| queue.as_str().to_owned())),
            Box::new(filter.state.map(|state| state as i16)),
            Box::new(micros(filter.before)),
            Box::new(i64::from(filter.limit)),
        ];
        let rows = self.pool.query(call, sql, params).await?;
        self.map_error(first_row(&rows).and_then(|row| number(row, 0)))
    }
}

async fn fold(pool: &Weak<Pool>) {
    if let Err(error) = maintenance::fold(pool).await {
        tracing::debug!(%error, "folding the task counts failed; it will be retried");
    }
}

#[async_trait]
impl TaskStore for PostgresTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        self.fold_periodically();
        let (answers, changes) = if new.iter().all(enqueue::is_simple) {
            let since = self.insert_batcher.insert(&self.pool, new).await?;
            enqueue::all_enqueued(new, since)
        } else {
            let (new, now): (Arc<[NewTask]>, _) = (new.into(), self.pool.connector.now());
            let enqueue = move |session: Arc<Session>, new: Arc<[NewTask]>| async move {
                enqueue::enqueue(&session, &new, now).await
            };
            self.pool.run(TaskCall::Enqueue, new, enqueue).await?
        };
        self.notifier.notify(&self.pool, &changes);
        Ok(answers)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.fold_periodically();
        let positions = Arc::new(self.notifier.cursors.positions(&request.queues));
        let (input, now) = ((request.clone(), positions.clone()), self.pool.connector.now());
        let lease = move |session: Arc<Session>, (request, positions): (LeaseTasks, Arc<Positions>)| async move {
            lease::lease(&session, &request, &positions, now).await
        };
        let response = self.pool.run(TaskCall::Lease, input, lease).await?;
        let (leased, last) = self.map_error(response.read(request))?;
        let last =
            last.into_iter().filter_map(|(index, generation)| Some((leased.tasks.get(index)?, generation)));
        self.notifier.cursors.advance(&positions, last);
        if response.not_plain {
            request.queues.iter().for_each(|queue| self.notifier.cursors.set_not_plain(queue));
        }
        if let Some(now) = response.none_expired {
            self.notifier.cursors.set_expired_until(now, now);
        }
        if let Some(pass) = &response.expired {
            self.notifier.cursors.set_expired_until(pass.expired.0, pass.expired.1);
            self.notifier.notify(&self.pool, &pass.changes);
        }
        if let Some((now, open)) = &response.promoted {
            self.notifier.cursors.set_queues_promoted(&positions, open, *now);
        }
        self.notifier.cursors.set_expects_due(response.due);
        if leased.more || request.is_full(&leased.tasks) {
            // There may be more tasks, which other workers skipped while this call had locked them.
            self.notifier.wake_one_per_queue(&request.queues);
        }
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let mut results = self.extend_leases(worker, held, ttl).await?;
        let is_busy = |at: &usize| results[*at] == HeartbeatResult::Busy;
        let busy: Vec<usize> = (0..held.len()).filter(is_busy).collect();
        if !busy.is_empty() {
            // Most transactions that hold a task are short.
            tokio::time::sleep(BUSY_RETRY_DELAY).await;
            let again: Vec<HeldTask> = busy.iter().map(|at| held[*at].clone()).collect();
            if let Ok(answers) = self.extend_leases(worker, &again, ttl).await {
                for (at, answer) in busy.into_iter().zip(answers) {
                    results[at] = answer;
                }
            }
        }
        Ok(results)
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        let params: Vec<OwnedParam<'_>> = vec![Box::new(*worker.as_uuid())];
        self.pool.query(TaskCall::Deregister, &queries::REMOVE_WORKER, params).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        if settle.is_empty() {
            return Ok(Vec::new());
        }
        self.fold_periodically();
        let (attempts, now): (Arc<[Settle]>, _) = (settle.into(), self.pool.connector.now());
        let settle = move |session: Arc<Session>, attempts: Arc<[Settle]>| async move {
            complete::settle(&session, &attempts, now).await
        };
        let (settled, changes) = self.pool.run(TaskCall::Settle, attempts, settle).await?;
        self.notifier.notify(&self.pool, &changes);
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let now = self.pool.connector.now();
        let change = move |session: Arc<Session>, op: TaskOp| async move {
            let mut transaction =
                TaskTransaction::begin(&session, BEGIN, &LOAD, &[id], BTreeSet::new(), now).await?;
            let answer = transaction.change(id, &op);
            // The state of the task depends on which task of its chain is the head.
            transaction.elect_heads(&*session).await?;
            let changed = answer.zip(transaction.get(id).cloned());
            Ok((changed, transaction.commit(&session).await?))
        };
        let (result, changes) = self.pool.run(TaskCall::Change, op.clone(), change).await?;
        self.notifier.notify(&self.pool, &changes);
        Ok(result)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let now = self.pool.connector.now();
        let since = self.notifier.cursors.recovery_start();
        let recover = move |session: Arc<Session>, ()| async move {
            maintenance::recover(&session, limit, since, now).await
        };
        let RecoveryPass { recovered, changes, expired, due } =
            self.pool.run(TaskCall::Recover, (), recover).await?;
        self.notifier.cursors.set_expired_until(expired.0, expired.1);
        self.notifier.cursors.set_promoted_until(due.0, due.1);
        self.notifier.notify(&self.pool, &changes);
        if recovered != Recovered::default() {
            self.notifier.queues.notify_all();
        }
        self.start_purge_and_fold();
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.fetch(TaskQuery::one(id, &self.pool.connector.options.schema)).await?.pop())
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let params = [queue.as_str(), key.as_str()].map(|text| Box::new(text.to_owned()) as OwnedParam<'_>);
        let rows = self.pool.query(Repeat::Safe, &queries::KEYED, params.into()).await?;
        self.map_error(rows.first().map(read_task).transpose())
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let items = self.fetch(TaskQuery::list(query, &self.pool.connector.options.schema)).await?;
        Ok(Page::of(items, page_size(query.limit) as usize, |task| Cursor(task.id.to_string())))
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        let rows = self.pool.query(Repeat::Safe, &queries::QUEUES, Vec::new()).await?;
        self.map_error(queries::queues(&rows))
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let pause = self.map_error(pause.as_ref().map(to_json).transpose())?;
        let params: Vec<OwnedParam<'_>> = vec![Box::new(queue.as_str().to_owned()), Box::new(pause)];
        let known = !self.pool.query(Repeat::Safe, &queries::PAUSE, params).await?.is_empty();
        self.notifier.queues.notify_all();
        Ok(known)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let remembered = ttl_micros(WorkerStatus::LISTED_FOR);
        let params: Vec<OwnedParam<'_>> = vec![Box::new(remembered), Box::new(self.pool.connector.now())];
        let rows = self.pool.query(Repeat::Safe, &queries::WORKERS, params).await?;
        self.map_error(queries::workers(&rows))
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.archive_or_purge(TaskCall::Archive, &maintenance::ARCHIVE, filter).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.archive_or_purge(TaskCall::Purge, &maintenance::PURGE, filter).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.pool.now().await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.listener.start();
        // While no notifications of other processes arrive, workers poll more often.
        let poll = self.pool.connector.options.poll.min(POLL);
        self.notifier.queues.listen(queues, poll).notified_by(self.listener.connected_flag(), POLL)
    }
}
