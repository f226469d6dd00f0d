//! PostgreSQL engine.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;

use super::connection::{
    ConnectionOwner, Connector, Listener, OPERATION_TIMEOUT, close_idle_connections, with_timeout,
};
use super::documents::PostgresDocuments;
use super::error::{PgError, may_retry};
use super::locks::history::PRUNE_PAGE;
use super::locks::{BatchingConnection, InlineConnection, QueryConnection, Router, eligible_lease, lease_of};
use super::options::PostgresOptions;
use super::tasks::{PendingEnqueue, Pool, PostgresTasks, WorkerNotifier};
use super::{health, schema};
use crate::Result;
use crate::model::{
    Event, LeaseId, LockName, LockOp, LockRecord, NewTask, Outcome, Sweep, Swept, Timestamp, Ttl,
};
use crate::store::support::connection::first_connection;
use crate::store::wake;
use crate::store::{
    Capabilities, DocumentStore, HealthCheck, Hosts, ListEvents, ListLocks, LockStore, OnNotice, Page, Peek,
    Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Number of operations between two prunings of the history, independent of sweeps.
const PRUNE_EVERY: u32 = 4096;

/// Store in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    connector: Arc<Connector>,
    inline: Arc<InlineConnection>,
    router: Arc<Router>,
    connections: Vec<Arc<BatchingConnection>>,
    queries: Arc<QueryConnection>,
    listener: Arc<Listener>,
    tasks: PostgresTasks,
    documents: PostgresDocuments,
    operations: AtomicU32,
}

impl PostgresStore {
    /// Connects, and creates or upgrades the tables if necessary.
    pub async fn connect(options: PostgresOptions) -> Result<Self> {
        let connector = Arc::new(Connector::new(options)?);
        let attempt = async || {
            let session = connector.map_error(connector.open_first().await)?;
            let state = schema::check(&connector, &session).await?;
            Ok((session, state))
        };
        let timed_out = || PgError::Timeout.into_error(&connector.description);
        let (session, state) = first_connection::open(attempt, timed_out).await?;
        schema::upgrade(&connector, &session, state).await?;
        connector.return_idle(session);
        let inline = InlineConnection::new(connector.clone());
        let router = Router::new(connector.options.pool);
        let (pool, notifier) = (Pool::new(connector.clone()), WorkerNotifier::new());
        let listener = Arc::new(Listener::new(&connector, notifier.clone()));
        let connections: Vec<_> = (0..connector.options.pool)
            .map(|_| BatchingConnection::new(connector.clone(), router.clone()))
            .collect();
        let queries = Arc::new(QueryConnection::new(connector.clone(), inline.clone()));
        let mut owners: Vec<Weak<dyn ConnectionOwner>> =
            vec![Arc::downgrade(&queries) as _, Arc::downgrade(&inline) as _, Arc::downgrade(&pool) as _];
        owners.extend(connections.iter().map(|one| Arc::downgrade(one) as Weak<dyn ConnectionOwner>));
        connector.runtime().spawn(close_idle_connections(Arc::downgrade(&connector), owners));
        let store = Self {
            tasks: PostgresTasks::new(pool.clone(), notifier, listener.clone()),
            documents: PostgresDocuments { pool, capabilities: capabilities(&connector) },
            connections,
            router,
            queries,
            inline,
            listener,
            operations: AtomicU32::new(0),
            connector,
        };
        // Processes that end after a few operations reach no other pruning.
        if state.events > i64::from(store.connector.options.max_events) + PRUNE_PAGE {
            store.start_pruning();
        }
        Ok(store)
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
        super::tasks::LeaseStatement {
            planner_settings: super::connection::planner_statements(),
            sql: self.connector.texts.get(&super::tasks::lease::LEASE).sql.clone(),
            plain: self.connector.texts.get(&super::tasks::lease_plain::LEASE_PLAIN).sql.clone(),
        }
    }

    /// Returns the statement that finds expired leases, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn expired_statement(&self) -> String {
        self.connector.texts.get(&super::tasks::maintenance::EXPIRED).sql.clone()
    }

    /// Returns the statement that lists locks in use, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn locks_in_use_statement(&self) -> String {
        self.connector.texts.get(&super::locks::queries::LIST_IN_USE).sql.clone()
    }

    /// Returns the statement that purges tasks, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn purge_statement(&self) -> String {
        self.connector.texts.get(&super::tasks::maintenance::PURGE).sql.clone()
    }

    /// Returns the statement that folds counts, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn fold_statement(&self) -> String {
        self.connector.texts.get(&super::tasks::maintenance::FOLD).sql.clone()
    }

    /// Returns the statement of a list of tasks without parameters, for tests.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn task_list_statement(&self, query: &crate::store::ListTasks) -> String {
        super::tasks::queries::TaskQuery::list(query, &self.connector.options.schema).into_sql()
    }

    /// Applies an operation: on the connection of the caller's runtime if there are no concurrent
    /// calls, otherwise on a batching connection.
    async fn apply_on_connection(&self, name: &LockName, op: &LockOp) -> Result<Outcome, PgError> {
        let mut needs_slow_path = false;
        let lease = eligible_lease(op);
        let uncontended = lease.filter(|_| self.router.is_idle_and_simple(name));
        if lease.is_some() && uncontended.is_none() {
            self.inline.reset_uncontended();
        }
        if let Some(turn) = uncontended.and_then(|lease| self.inline.try_enter(lease)) {
            match turn.execute(name, op).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => needs_slow_path = true,
                // The batching connection serves blocked rows.
                Err(error) if error.is_lock_timeout() => needs_slow_path = true,
                // Not counted as an attempt of the batching connection, which may be lost for the
                // same reason.
                Err(error) if may_retry(op, &error) => {}
                Err(error) => return Err(error),
            }
        } else if let Some(lease) = lease_of(op) {
            self.inline.wait_for_lease(&lease).await?;
        }
        let in_flight = self.router.route(name);
        Ok(self.connections[in_flight.connection].apply(in_flight, op, needs_slow_path).await?)
    }

    fn prune_periodically(&self) {
        if self.operations.fetch_add(1, Ordering::Relaxed) % PRUNE_EVERY == PRUNE_EVERY - 1 {
            self.start_pruning();
        }
    }

    fn start_pruning(&self) {
        let (queries, keep, now) =
            (self.queries.clone(), self.connector.options.max_events, self.connector.now());
        self.connector.runtime().spawn(async move {
            if let Err(error) = queries.prune(keep, now).await {
                tracing::debug!(%error, "pruning the history failed; it will be retried");
            }
        });
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        capabilities(&self.connector)
    }

    fn url(&self) -> String {
        self.connector.options.display_url.clone()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(&self.tasks)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(&self.documents)
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.listener.start();
        wake::subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        let remote = wake::deliver(to);
        if !remote.is_empty()
            && let Err(error) = self.queries.notify(&remote).await
        {
            tracing::debug!(%error, "other processes were not notified: they find out at their next renewal");
        }
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let connector = self.connector.clone();
        let queries = self.queries.clone();
        // On the store's own runtime, where sockets can be opened.
        let checked = self.connector.runtime().spawn(async move {
            let check = async {
                let session = queries.session().await?;
                health::check_health(&connector, &session).await
            };
            with_timeout(OPERATION_TIMEOUT, check).await
        });
        self.connector.map_error(checked.await.unwrap_or(Err(PgError::Timeout)))
    }
}

#[async_trait]
impl LockStore for PostgresStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.prune_periodically();
        let applied = with_timeout(OPERATION_TIMEOUT, self.apply_on_connection(name, op)).await;
        self.connector.map_error(applied)
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.queries.get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.queries.peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.queries.list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.queries.history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.queries.now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.listener.start();
        let (waiters, poll) = (self.connector.waiters, self.connector.options.poll);
        // Behind a pooler, the listener is never connected.
        waiters.subscribe(lock, *waiter, poll).notified_while(self.listener.connected_flag())
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let now = self.connector.now();
        let mut swept = Swept::default();
        for name in self.queries.find_expired(limit, now).await? {
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        self.queries.prune(self.connector.options.max_events, now).await?;
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.queries.purge_idle(idle, limit, self.connector.now()).await
    }
}

fn capabilities(connector: &Connector) -> Capabilities {
    Capabilities {
        engine: "postgres",
        hosts: Hosts::Many,
        min_ttl: Ttl::from_millis(200),
        poll: connector.options.poll,
        push_notifications: !connector.is_pooled(),
        detects_dead_processes: false,
        persistent: true,
        shared_locks: true,
        queues: true,
        forgets_locks: true,
        clock_uncertainty: Duration::ZERO,
        ttl: Capabilities::TTL,
        tasks: Capabilities::ALL_OF_TASKS,
    }
}
