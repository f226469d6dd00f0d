//! Implementation of [`TaskStore`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::bench::{BEGIN, Bench};
use super::columns::json;
use super::inbox::Inbox;
use super::link::Link;
use super::pool::Pool;
use super::reads::{self, Question};
use super::settle::Beats;
use super::sql::Sql;
use super::wakes::Wakes;
use super::{add, lease, rows, settle, upkeep};
use crate::error::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::postgres::listener::Listener;
use crate::store::postgres::trouble::Fail;
use crate::store::protocol::TaskCall;
use crate::store::repeat::Repeat;
use crate::store::{Cursor, ListTasks, Page, QueueSubscription, TaskStore};

/// Poll interval of a worker that receives notifications.
const POLL: Duration = Duration::from_secs(1);
/// Number of calls that change counts between two foldings, independent of recoveries.
const FOLD_EVERY: u32 = 2048;

/// Tasks in a PostgreSQL database.
#[derive(Debug)]
pub(in crate::store::postgres) struct PostgresTasks {
    pub(super) pool: Arc<Pool>,
    pub(super) wakes: Arc<Wakes>,
    inbox: Arc<Inbox>,
    listener: Arc<Listener>,
    calls: AtomicU32,
}

/// Statement, and the planner settings for it.
#[cfg(feature = "testing")]
#[doc(hidden)]
#[derive(Debug)]
pub struct LeaseStatement {
    /// Planner settings, to be executed first.
    pub plans: &'static str,
    /// Text of the statement.
    pub sql: String,
}

impl PostgresTasks {
    pub(in crate::store::postgres) fn new(
        pool: Arc<Pool>,
        wakes: Arc<Wakes>,
        listener: Arc<Listener>,
    ) -> Self {
        Self { pool, wakes, inbox: Arc::default(), listener, calls: AtomicU32::new(0) }
    }

    /// Creates the rows of queues and priorities that do not exist yet.
    pub(super) async fn make_known(&self, new: &[NewTask]) -> Result<()> {
        let levels: BTreeSet<(String, i32)> =
            new.iter().map(|new| (new.queue.as_str().to_owned(), new.priority.get())).collect();
        let (queues, priorities): (Vec<String>, Vec<i32>) = levels.into_iter().unzip();
        let both = Arc::new((queues, priorities));
        let make = move |link: Arc<Link>| {
            let both = both.clone();
            async move { Ok(link.query(Sql::Level, &[&both.0, &both.1]).await?) }
        };
        self.pool.run(Repeat::Safe, make).await.map(drop)
    }

    #[cfg(feature = "testing")]
    pub(in crate::store::postgres) fn lease_statement(&self) -> LeaseStatement {
        LeaseStatement { plans: super::link::PLANS, sql: self.pool.texts.get(Sql::Lease).sql.clone() }
    }

    /// Returns the statement that finds expired leases, from `$1` on.
    #[cfg(feature = "testing")]
    pub(in crate::store::postgres) fn expired_statement(&self) -> String {
        self.pool.texts.get(Sql::Expired).sql.clone()
    }

    async fn ask(&self, question: Question) -> Result<Vec<Task>> {
        let question = Arc::new(question);
        let ask = move |link: Arc<Link>| {
            let question = question.clone();
            async move { question.ask(&link).await }
        };
        let rows = self.pool.run(Repeat::Safe, ask).await?;
        self.readable(rows.iter().map(rows::task).collect())
    }

    async fn query<const N: usize>(&self, what: Sql, texts: [Option<String>; N]) -> Result<Vec<Row>> {
        let texts = Arc::new(texts);
        let ask = move |link: Arc<Link>| {
            let texts = texts.clone();
            async move {
                let params = texts.each_ref().map(|text| text as &(dyn tokio_postgres::types::ToSql + Sync));
                Ok(link.query(what, &params).await?)
            }
        };
        self.pool.run(Repeat::Safe, ask).await
    }

    fn readable<T>(&self, read: Result<T, Fail>) -> Result<T> {
        read.map_err(|fail| fail.explain(&self.pool.gate.place))
    }

    fn fold_now_and_then(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) % FOLD_EVERY != FOLD_EVERY - 1 {
            return;
        }
        let pool = self.pool.clone();
        if let Ok(home) = pool.home() {
            home.handle().spawn(async move {
                let fold = |link: Arc<Link>| async move { Ok(link.query(Sql::Fold, &[]).await?) };
                if let Err(error) = pool.run(Repeat::Safe, fold).await {
                    tracing::debug!(%error, "counts could not be added up; it is tried again");
                }
            });
        }
    }

    async fn tidy(&self, call: TaskCall, what: Sql, which: &FinishedFilter) -> Result<u64> {
        let which = which.clone();
        let tidy = move |link: Arc<Link>| {
            let which = which.clone();
            async move { upkeep::tidy(&link, what, &which).await }
        };
        self.pool.run(call, tidy).await
    }
}

#[async_trait]
impl TaskStore for PostgresTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        self.fold_now_and_then();
        let (answers, stirs) = if new.iter().all(add::is_plain) {
            let since = self.inbox.add(&self.pool, new).await?;
            add::all_added(new, since)
        } else {
            let (new, now): (Arc<[NewTask]>, _) = (new.into(), self.pool.gate.now());
            let add = move |link: Arc<Link>| {
                let new = new.clone();
                async move { add::in_a_transaction(&link, &new, now).await }
            };
            self.pool.run(TaskCall::Enqueue, add).await?
        };
        self.wakes.tell(&self.pool, &stirs);
        Ok(answers)
    }

    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        self.fold_now_and_then();
        let places = Arc::new(self.wakes.cursors.places(&ask.queues));
        let (asked, their_places, now) = (ask.clone(), places.clone(), self.pool.gate.now());
        let lease = move |link: Arc<Link>| {
            let (ask, places) = (asked.clone(), their_places.clone());
            async move { lease::lease(&link, &ask, &places, now).await }
        };
        let answer = self.pool.run(TaskCall::Lease, lease).await?;
        let (tasks, leased) = self.readable(answer.read())?;
        self.wakes.cursors.leased(&places, &tasks);
        if let Some(now) = answer.none_expired {
            self.wakes.cursors.expired(now, now);
        }
        if let Some(ended) = &answer.ended {
            self.wakes.cursors.expired(ended.expired.0, ended.expired.1);
            self.wakes.tell(&self.pool, &ended.stirs);
        }
        if let Some((now, open)) = &answer.promoted {
            self.wakes.cursors.promoted(&places, open, *now);
        }
        self.wakes.cursors.expect_due(answer.due);
        if leased.more || ask.is_full(&leased.tasks) {
            // There may be more tasks, which other workers skipped while this call had locked them.
            self.wakes.pass_on(&ask.queues);
        }
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let beats = Arc::new(self.readable(Beats::new(worker, held, ttl))?);
        let now = self.pool.gate.now();
        let beat = move |link: Arc<Link>| {
            let beats = beats.clone();
            async move { beats.send(&link, now).await }
        };
        let rows = self.pool.run_at_once(TaskCall::Heartbeat, beat).await?;
        self.readable(settle::beats(held, &rows))
    }

    async fn leave(&self, worker: WorkerId) -> Result<()> {
        let leave =
            move |link: Arc<Link>| async move { Ok(link.query(Sql::Leave, &[worker.as_uuid()]).await?) };
        self.pool.run(TaskCall::Leave, leave).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        if settle.is_empty() {
            return Ok(Vec::new());
        }
        self.fold_now_and_then();
        let (settle, now): (Arc<[Settle]>, _) = (settle.into(), self.pool.gate.now());
        let end = move |link: Arc<Link>| {
            let settle = settle.clone();
            async move { settle::settle(&link, &settle, now).await }
        };
        let (settled, stirs) = self.pool.run(TaskCall::Settle, end).await?;
        self.wakes.tell(&self.pool, &stirs);
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let (op, now) = (op.clone(), self.pool.gate.now());
        let change = move |link: Arc<Link>| {
            let op = op.clone();
            async move {
                let mut bench = Bench::begin(&link, BEGIN, &[id], BTreeSet::new(), now).await?;
                let answer = bench.change(id, &op);
                // The state of the task depends on which task of its chain is the head.
                bench.elect(&*link).await?;
                let changed = answer.zip(bench.get(id).cloned());
                Ok((changed, bench.commit(&link).await?))
            }
        };
        let (changed, stirs) = self.pool.run(TaskCall::Change, change).await?;
        self.wakes.tell(&self.pool, &stirs);
        Ok(changed)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let now = self.pool.gate.now();
        let since = self.wakes.cursors.recovery();
        let recover = move |link: Arc<Link>| async move { upkeep::recover(&link, limit, since, now).await };
        let upkeep::Pass { recovered, stirs, expired, due } =
            self.pool.run(TaskCall::Recover, recover).await?;
        self.wakes.cursors.expired(expired.0, expired.1);
        self.wakes.cursors.all_due(due.0, due.1);
        self.wakes.tell(&self.pool, &stirs);
        if recovered != Recovered::default() {
            self.wakes.tell_all_here();
        }
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(self.ask(Question::one(id, &self.pool.gate.options.schema)).await?.pop())
    }

    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let texts = [queue.as_str(), key.as_str()].map(|text| Some(text.to_owned()));
        let rows = self.query(Sql::Keyed, texts).await?;
        self.readable(rows.first().map(rows::task).transpose())
    }

    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        let items = self.ask(Question::list(ask, &self.pool.gate.options.schema)).await?;
        let full = items.len() == page_size(ask.limit) as usize;
        let next = items.last().filter(|_| full).map(|last| Cursor(last.id.to_string()));
        Ok(Page { items, next })
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        let rows = self.query(Sql::Queues, []).await?;
        self.readable(reads::queues(&rows))
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let texts = [Some(queue.as_str().to_owned()), self.readable(json(pause.as_ref()))?];
        let known = !self.query(Sql::Pause, texts).await?.is_empty();
        self.wakes.tell_all_here();
        Ok(known)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let rows = self.query(Sql::Workers, []).await?;
        self.readable(reads::workers(&rows))
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.tidy(TaskCall::Archive, Sql::Archive, which).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.tidy(TaskCall::Purge, Sql::Purge, which).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let now = self.pool.gate.now();
        let ask = move |link: Arc<Link>| async move { Ok(link.query(Sql::Now, &[&now]).await?) };
        let rows = self.pool.run(Repeat::Safe, ask).await?;
        let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()));
        self.readable(row.and_then(|row| rows::time(row, 0)))
    }

    fn arrivals(&self, queues: &[QueueName]) -> QueueSubscription {
        self.listener.start();
        // Without notifications of other processes, workers poll more often.
        let poll = if self.listener.hears() { POLL } else { self.pool.gate.options.poll.min(POLL) };
        self.wakes.listen(queues, poll)
    }
}
