//! Implementation of [`TaskStore`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::codec::read_task;
use super::complete::{self, HeartbeatParams};
use super::insert_batcher::InsertBatcher;
use super::maintenance::{self, RecoveryPass};
use super::notifier::WorkerNotifier;
use super::pool::{Pool, TaskSession};
use super::queries::{self, TaskQuery};
use super::sql::Sql;
use super::transaction::{BEGIN, TaskTransaction};
use super::{enqueue, lease};
use crate::error::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{first_row, time, to_json};
use crate::store::postgres::connection::{Listener, Param};
use crate::store::postgres::error::PgError;
use crate::store::protocol::TaskCall;
use crate::store::repeat::Repeat;
use crate::store::{Cursor, ListTasks, Page, QueueSubscription, TaskStore};

/// Poll interval of a worker that receives notifications.
const POLL: Duration = Duration::from_secs(1);
/// Number of calls that change counts between two foldings, independent of recoveries.
const FOLD_EVERY: u32 = 2048;

/// Tasks in a PostgreSQL database.
#[derive(Debug)]
pub(crate) struct PostgresTasks {
    pub(super) pool: Arc<Pool>,
    pub(super) notifier: Arc<WorkerNotifier>,
    insert_batcher: Arc<InsertBatcher>,
    listener: Arc<Listener>,
    calls: AtomicU32,
}

/// Statement, and the planner settings for it.
#[cfg(feature = "testing")]
#[doc(hidden)]
#[derive(Debug)]
pub struct LeaseStatement {
    /// Planner settings, to be executed first.
    pub planner_settings: &'static str,
    /// Text of the statement.
    pub sql: String,
}

impl PostgresTasks {
    pub(crate) fn new(pool: Arc<Pool>, notifier: Arc<WorkerNotifier>, listener: Arc<Listener>) -> Self {
        Self { pool, notifier, insert_batcher: Arc::default(), listener, calls: AtomicU32::new(0) }
    }

    /// Creates the rows of queues and priorities that do not exist yet.
    pub(super) async fn create_queues(&self, new: &[NewTask]) -> Result<()> {
        let priorities: BTreeSet<(String, i32)> =
            new.iter().map(|new| (new.queue.as_str().to_owned(), new.priority.get())).collect();
        let (queues, priorities): (Vec<String>, Vec<i32>) = priorities.into_iter().unzip();
        let params = Arc::new((queues, priorities));
        let create = move |session: Arc<TaskSession>| {
            let params = params.clone();
            async move { Ok(session.query(Sql::CreateQueues, &[&params.0, &params.1]).await?) }
        };
        self.pool.run(Repeat::Safe, create).await.map(drop)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn lease_statement(&self) -> LeaseStatement {
        LeaseStatement {
            planner_settings: super::pool::PLANNER_SETTINGS,
            sql: self.pool.texts.get(Sql::Lease).sql.clone(),
        }
    }

    /// Returns the statement that finds expired leases, from `$1` on.
    #[cfg(feature = "testing")]
    pub(crate) fn expired_statement(&self) -> String {
        self.pool.texts.get(Sql::Expired).sql.clone()
    }

    async fn fetch(&self, query: TaskQuery) -> Result<Vec<Task>> {
        let query = Arc::new(query);
        let run = move |session: Arc<TaskSession>| {
            let query = query.clone();
            async move { query.fetch(&session).await }
        };
        let rows = self.pool.run(Repeat::Safe, run).await?;
        self.map_error(rows.iter().map(read_task).collect())
    }

    async fn query<const N: usize>(&self, sql: Sql, texts: [Option<String>; N]) -> Result<Vec<Row>> {
        let texts = Arc::new(texts);
        let run = move |session: Arc<TaskSession>| {
            let texts = texts.clone();
            async move {
                let params = texts.each_ref().map(|text| text as Param<'_>);
                Ok(session.query(sql, &params).await?)
            }
        };
        self.pool.run(Repeat::Safe, run).await
    }

    fn map_error<T>(&self, read: Result<T, PgError>) -> Result<T> {
        read.map_err(|error| error.into_error(&self.pool.connector.description))
    }

    fn fold_periodically(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) % FOLD_EVERY != FOLD_EVERY - 1 {
            return;
        }
        let pool = self.pool.clone();
        if let Ok(background) = pool.background() {
            background.handle().spawn(async move {
                let fold =
                    |session: Arc<TaskSession>| async move { Ok(session.query(Sql::Fold, &[]).await?) };
                if let Err(error) = pool.run(Repeat::Safe, fold).await {
                    tracing::debug!(%error, "folding the task counts failed; it will be retried");
                }
            });
        }
    }

    async fn archive_or_purge(&self, call: TaskCall, sql: Sql, filter: &FinishedFilter) -> Result<u64> {
        let filter = filter.clone();
        let archive_or_purge = move |session: Arc<TaskSession>| {
            let filter = filter.clone();
            async move { maintenance::archive_or_purge(&session, sql, &filter).await }
        };
        self.pool.run(call, archive_or_purge).await
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
            let enqueue = move |session: Arc<TaskSession>| {
                let new = new.clone();
                async move { enqueue::enqueue(&session, &new, now).await }
            };
            self.pool.run(TaskCall::Enqueue, enqueue).await?
        };
        self.notifier.notify(&self.pool, &changes);
        Ok(answers)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        self.fold_periodically();
        let positions = Arc::new(self.notifier.cursors.positions(&request.queues));
        let (owned, their_positions, now) = (request.clone(), positions.clone(), self.pool.connector.now());
        let lease = move |session: Arc<TaskSession>| {
            let (request, positions) = (owned.clone(), their_positions.clone());
            async move { lease::lease(&session, &request, &positions, now).await }
        };
        let response = self.pool.run(TaskCall::Lease, lease).await?;
        let (tasks, leased) = self.map_error(response.read())?;
        self.notifier.cursors.advance(&positions, &tasks);
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
        let params = Arc::new(self.map_error(HeartbeatParams::new(worker, held, ttl))?);
        let now = self.pool.connector.now();
        let send = move |session: Arc<TaskSession>| {
            let params = params.clone();
            async move { params.send(&session, now).await }
        };
        let rows = self.pool.run_heartbeat(TaskCall::Heartbeat, send).await?;
        self.map_error(complete::heartbeat_results(held, &rows))
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        let leave = move |session: Arc<TaskSession>| async move {
            Ok(session.query(Sql::RemoveWorker, &[worker.as_uuid()]).await?)
        };
        self.pool.run(TaskCall::Deregister, leave).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        if settle.is_empty() {
            return Ok(Vec::new());
        }
        self.fold_periodically();
        let (attempts, now): (Arc<[Settle]>, _) = (settle.into(), self.pool.connector.now());
        let settle = move |session: Arc<TaskSession>| {
            let attempts = attempts.clone();
            async move { complete::settle(&session, &attempts, now).await }
        };
        let (settled, changes) = self.pool.run(TaskCall::Settle, settle).await?;
        self.notifier.notify(&self.pool, &changes);
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let (op, now) = (op.clone(), self.pool.connector.now());
        let change = move |session: Arc<TaskSession>| {
            let op = op.clone();
            async move {
                let mut transaction =
                    TaskTransaction::begin(&session, BEGIN, &[id], BTreeSet::new(), now).await?;
                let answer = transaction.change(id, &op);
                // The state of the task depends on which task of its chain is the head.
                transaction.elect_heads(&*session).await?;
                let changed = answer.zip(transaction.get(id).cloned());
                Ok((changed, transaction.commit(&session).await?))
            }
        };
        let (result, changes) = self.pool.run(TaskCall::Change, change).await?;
        self.notifier.notify(&self.pool, &changes);
        Ok(result)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let now = self.pool.connector.now();
        let since = self.notifier.cursors.recovery_start();
        let recover = move |session: Arc<TaskSession>| async move {
            maintenance::recover(&session, limit, since, now).await
        };
        let RecoveryPass { recovered, changes, expired, due } =
            self.pool.run(TaskCall::Recover, recover).await?;
        self.notifier.cursors.set_expired_until(expired.0, expired.1);
        self.notifier.cursors.set_promoted_until(due.0, due.1);
        self.notifier.notify(&self.pool, &changes);
        if recovered != Recovered::default() {
            self.notifier.wake_all_local();
        }
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.fetch(TaskQuery::one(id, &self.pool.connector.options.schema)).await?.pop())
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let texts = [queue.as_str(), key.as_str()].map(|text| Some(text.to_owned()));
        let rows = self.query(Sql::Keyed, texts).await?;
        self.map_error(rows.first().map(read_task).transpose())
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let items = self.fetch(TaskQuery::list(query, &self.pool.connector.options.schema)).await?;
        let full = items.len() == page_size(query.limit) as usize;
        let next = items.last().filter(|_| full).map(|last| Cursor(last.id.to_string()));
        Ok(Page { items, next })
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        let rows = self.query(Sql::Queues, []).await?;
        self.map_error(queries::queues(&rows))
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let texts =
            [Some(queue.as_str().to_owned()), self.map_error(pause.as_ref().map(to_json).transpose())?];
        let known = !self.query(Sql::Pause, texts).await?.is_empty();
        self.notifier.wake_all_local();
        Ok(known)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let rows = self.query(Sql::Workers, []).await?;
        self.map_error(queries::workers(&rows))
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.archive_or_purge(TaskCall::Archive, Sql::Archive, filter).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.archive_or_purge(TaskCall::Purge, Sql::Purge, filter).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let now = self.pool.connector.now();
        let run = move |session: Arc<TaskSession>| async move { Ok(session.query(Sql::Now, &[&now]).await?) };
        let rows = self.pool.run(Repeat::Safe, run).await?;
        self.map_error(first_row(&rows).and_then(|row| time(row, 0)))
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.listener.start();
        // Without notifications of other processes, workers poll more often.
        let poll =
            if self.listener.is_connected() { POLL } else { self.pool.connector.options.poll.min(POLL) };
        self.notifier.subscribe(queues, poll)
    }
}
