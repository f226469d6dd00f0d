//! Redis engine: locks, tasks and documents.

use async_trait::async_trait;

use super::connection::{CALL_TIMEOUT, Connections, Connector, POLL_INTERVAL};
use super::documents::Documents;
use super::error::{explain, timed_out, unknown_service};
use super::locks::Locks;
use super::options::RedisOptions;
use super::tasks::Tasks;
use crate::Result;
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl};
use crate::store::support::connection::first_connection;
use crate::store::wake;
use crate::store::{
    Capabilities, DocumentStore, HealthCheck, Hosts, ListEvents, ListLocks, LockStore, OnNotice, Page, Peek,
    Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Locks, tasks and documents on Redis: one server, one that Sentinels watch, or a Cluster.
pub struct RedisStore {
    locks: Locks,
    tasks: Tasks,
    docs: Documents,
    options: RedisOptions,
}

impl RedisStore {
    /// Connects, and warns about settings of the server that would break a guarantee. Changes none
    /// of them.
    pub async fn connect(options: RedisOptions) -> Result<Self> {
        let attempt = || Self::connect_once(options.clone());
        first_connection::open(attempt, || timed_out(&options.display_url)).await
    }

    async fn connect_once(options: RedisOptions) -> Result<Self> {
        let connector = Connector::new(&options)?;
        let connections = match Connections::open(connector).await {
            Err((error, connector)) if !connector.knows_service(&error).await => {
                return Err(unknown_service(&options.display_url));
            }
            connections => connections.map_err(|(error, _)| explain(&options.display_url, error))?,
        };
        let locks = Locks::new(connections, &options);
        let (tasks, docs) = (
            Tasks::new(locks.connections.clone(), &options),
            Documents::new(locks.connections.clone(), &options, capabilities()),
        );
        let store = Self { locks, tasks, docs, options };
        store.check().await?;
        Ok(store)
    }

    /// Fails on permanent problems; logs a warning for settings that are only dangerous.
    async fn check(&self) -> Result<()> {
        for check in super::health::settings(&self.locks, &self.options).await? {
            if let Some(issue) = check.issue {
                let (store, name, code) = (self.locks.connections.display_url(), check.name, issue.code);
                tracing::warn!(%store, code, "{name}: {}; {}", check.detail, issue.hint);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore")
            .field("url", &self.locks.connections.display_url())
            .finish_non_exhaustive()
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        min_ttl: Ttl::from_millis(100),
        poll: POLL_INTERVAL,
        push_notifications: true,
        shared_locks: true,
        queues: true,
        forgets_locks: true,
        ..Capabilities::new("redis", Hosts::Many)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn url(&self) -> String {
        self.locks.connections.display_url().to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        self
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(&self.tasks)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(&self.docs)
    }

    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        self.locks.subscriber.subscribe(&self.locks.connections);
        wake::subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        self.locks.notify(&wake::deliver(to)).await;
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        super::health::check_health(&self.locks, &self.options).await
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let applied = tokio::time::timeout(CALL_TIMEOUT, self.locks.apply(name, op)).await;
        applied.unwrap_or_else(|_| Err(timed_out(self.locks.connections.display_url())))
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.locks.get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.locks.peek(name, waiter).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.locks.list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.locks.history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.locks.now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.locks.subscriber.subscribe_waiter(&self.locks.connections, lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.locks.sweep(limit).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.locks.forget(idle, limit).await
    }
}
