//! PostgreSQL engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::docs::PostgresDocs;
use super::gate::Gate;
use super::idle::Idle;
use super::lane::{Lane, SoFar};
use super::listener::Listener;
use super::near::Near;
use super::options::PostgresOptions;
use super::reads::Desk;
use super::session::{DEADLINE, within};
use super::switchboard::Switchboard;
use super::tasks::{PendingEnqueue, Pool, PostgresTasks, Wakes};
use super::trouble::{Fail, is_stuck, may_try_again};
use super::{health, native, schema};
use crate::Result;
use crate::model::{
    Event, LeaseId, LockName, LockOp, LockRecord, NewTask, Outcome, Sweep, Swept, Timestamp, Ttl,
};
use crate::store::wake::{self, Reach};
use crate::store::{
    Capabilities, DocStore, HealthCheck, Hosts, ListEvents, ListLocks, LockStore, OnNotice, Page, Peek,
    Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Number of operations between two prunings of the history, independent of sweeps.
const PRUNE_EVERY: u32 = 4096;

/// Poll interval of waiters that started to wait before notifications arrive.
const EAGER: Duration = Duration::from_millis(20);

/// Store in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    gate: Arc<Gate>,
    near: Arc<Near>,
    board: Arc<Switchboard>,
    lanes: Vec<Arc<Lane>>,
    desk: Arc<Desk>,
    listener: Arc<Listener>,
    tasks: PostgresTasks,
    docs: PostgresDocs,
    operations: AtomicU32,
}

impl PostgresStore {
    /// Connects, and creates or upgrades the tables if necessary.
    pub async fn connect(options: PostgresOptions) -> Result<Self> {
        let gate = Arc::new(Gate::new(options)?);
        let session = gate.open().await.map_err(|fail| fail.explain(&gate.place))?;
        schema::prepare(&gate, &session).await?;
        gate.keep(session);
        let near = Near::new(gate.clone());
        let board = Switchboard::new(gate.options.pool);
        let (pool, wakes) = (Pool::new(gate.clone()), Wakes::new());
        let listener = Arc::new(Listener::new(&gate, wakes.clone()));
        let lanes: Vec<_> = (0..gate.options.pool).map(|_| Lane::new(gate.clone(), board.clone())).collect();
        let desk = Arc::new(Desk::new(gate.clone(), near.clone()));
        let idle = Idle {
            gate: Arc::downgrade(&gate),
            lanes: lanes.iter().map(Arc::downgrade).collect(),
            desk: Arc::downgrade(&desk),
            near: Arc::downgrade(&near),
            pool: Arc::downgrade(&pool),
        };
        gate.home().spawn(idle.close_in_time());
        Ok(Self {
            tasks: PostgresTasks::new(pool.clone(), wakes, listener.clone()),
            docs: PostgresDocs::new(pool, capabilities(&gate)),
            lanes,
            board,
            desk,
            near,
            listener,
            operations: AtomicU32::new(0),
            gate,
        })
    }

    /// Adds tasks in a transaction of the caller: the tasks exist if, and only if, the transaction
    /// is committed. The connection may be any connection to the same database whose role may write
    /// leasehold's tables. The returned value notifies the workers after the commit.
    ///
    /// ```no_run
    /// # use leasehold::store::postgres::{PostgresStore, tokio_postgres};
    /// # use leasehold::model::NewTask;
    /// # async fn example(store: &PostgresStore, client: &mut tokio_postgres::Client, new: &[NewTask]) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// transaction.execute("UPDATE posts SET state = 'queued'", &[]).await?;
    /// let added = store.enqueue_in_transaction(&transaction, new).await?;
    /// transaction.commit().await?;
    /// added.wake.after_commit();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue_in_transaction<C: tokio_postgres::GenericClient + Sync>(
        &self,
        client: &C,
        new: &[NewTask],
    ) -> Result<PendingEnqueue> {
        self.tasks.enqueue_in_transaction(client, new).await
    }

    /// Returns the statement that leases tasks, so that tests can EXPLAIN its cost.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn lease_statement(&self) -> super::tasks::LeaseStatement {
        self.tasks.lease_statement()
    }

    /// Returns the statement that finds expired leases, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn expired_statement(&self) -> String {
        self.tasks.expired_statement()
    }

    /// Applies an operation: without concurrent callers on the connection of the caller's runtime,
    /// otherwise on a lane.
    async fn near_or_far(&self, name: &LockName, op: &LockOp) -> Result<Outcome, Fail> {
        let mut so_far = SoFar::Nothing;
        let hot = native::hot_lease(op);
        let alone = hot.filter(|_| self.board.is_idle_and_plain(name));
        if hot.is_some() && alone.is_none() {
            self.near.crowded();
        }
        if let Some(turn) = alone.and_then(|lease| self.near.enter(lease)) {
            match turn.statement(name, op).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => so_far = SoFar::LeftToTheRules,
                // The lane sets the operation aside.
                Err(Fail::Said(error)) if is_stuck(&error) => so_far = SoFar::LeftToTheRules,
                // Not counted as an attempt of the lane, whose own connection may be lost for the
                // same reason.
                Err(fail) if may_try_again(op, &fail) => {}
                Err(fail) => return Err(fail),
            }
        } else if let Some(lease) = native::lease_of(op) {
            self.near.wait_for(&lease).await?;
        }
        let bound = self.board.bind(name);
        Ok(self.lanes[bound.lane].apply(bound, op, so_far).await?)
    }

    fn prune_now_and_then(&self) {
        if self.operations.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY == PRUNE_EVERY - 1 {
            let (desk, keep, now) = (self.desk.clone(), self.gate.options.max_events, self.gate.now());
            self.gate.home().spawn(async move {
                if let Err(error) = desk.prune(keep, now).await {
                    tracing::debug!(%error, "the history could not be bounded; it is tried again");
                }
            });
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        capabilities(&self.gate)
    }

    fn url(&self) -> String {
        self.gate.options.shown.clone()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(&self.tasks)
    }

    fn docs(&self) -> Option<&dyn DocStore> {
        Some(&self.docs)
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.listener.start();
        wake::subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        let elsewhere = wake::deliver(to);
        if !elsewhere.is_empty()
            && let Err(error) = self.desk.notify(&elsewhere).await
        {
            tracing::debug!(%error, "other processes are not notified: they learn it at their next renewal");
        }
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let gate = self.gate.clone();
        let desk = self.desk.clone();
        // On the store's own runtime, where sockets can be opened.
        let examined = self.gate.home().spawn(async move {
            let session = desk.session().await?;
            within(DEADLINE, health::check_health(&gate, &session)).await
        });
        let examined = examined.await.unwrap_or(Err(Fail::Late));
        examined.map_err(|fail| fail.explain(&self.gate.place))
    }
}

#[async_trait]
impl LockStore for PostgresStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.prune_now_and_then();
        let applied = tokio::time::timeout(DEADLINE, self.near_or_far(name, op)).await;
        applied.unwrap_or(Err(Fail::Late)).map_err(|fail| fail.explain(&self.gate.place))
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.desk.get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.desk.peek(name, waiter).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        self.desk.list(ask).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        self.desk.history(ask).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.desk.now().await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.listener.start();
        // A waiter that starts before the listener is connected may miss its notification, and
        // polls more often. Behind a pooler notifications never arrive.
        let poll = self.gate.options.poll;
        if self.gate.is_pooled() {
            return self.gate.waiters.polling(lock, *waiter, poll);
        }
        let poll = if self.listener.hears() { poll } else { poll.min(EAGER) };
        self.gate.waiters.changes(lock, *waiter, Reach::Process, poll)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.gate.now();
        let mut swept = Swept::default();
        for name in self.desk.find_ended(limit, now).await? {
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        self.desk.prune(self.gate.options.max_events, now).await?;
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.desk.forget(idle, limit, self.gate.now()).await
    }
}

fn capabilities(gate: &Gate) -> Capabilities {
    Capabilities {
        engine: "postgres",
        hosts: Hosts::Many,
        min_ttl: Ttl::from_millis(200),
        poll: gate.options.poll,
        wakes: !gate.is_pooled(),
        detects_dead_processes: false,
        lasting: true,
        shares: true,
        queues: true,
        forgets_locks: true,
        grace: Duration::ZERO,
        ttl: Capabilities::TTL,
        tasks: Capabilities::ALL_OF_TASKS,
    }
}
