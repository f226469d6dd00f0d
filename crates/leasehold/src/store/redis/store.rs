//! Redis engine: locks, tasks and documents.

use std::time::Duration;

use async_trait::async_trait;

use super::docs::Docs;
use super::line::Opener;
use super::link::Link;
use super::locks::Locks;
use super::options::RedisOptions;
use super::tasks::Tasks;
use super::trouble::{explain, late, unknown_service};
use crate::Result;
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl};
use crate::store::wake::{self, Reach};
use crate::store::{
    Capabilities, DocStore, HealthCheck, Hosts, ListEvents, ListLocks, LockStore, OnNotice, Page, Peek,
    Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Locks, tasks and documents on Redis: one server, one that Sentinels watch, or a Cluster.
pub struct RedisStore {
    locks: Locks,
    tasks: Tasks,
    docs: Docs,
    options: RedisOptions,
}

/// Maximum duration of a call, including retries.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// Poll interval of waiters: the maximum delay caused by a lost wake-up.
pub(super) const POLL: Duration = Duration::from_millis(250);

impl RedisStore {
    /// Connects, and warns about settings of the server that would break a guarantee. Changes none
    /// of them.
    pub async fn connect(options: RedisOptions) -> Result<Self> {
        let opener = Opener::new(&options)?;
        let link = match Link::open(opener).await {
            Err((error, opener)) if !opener.knows_service(&error).await => {
                return Err(unknown_service(&options.shown));
            }
            link => link.map_err(|(error, _)| explain(&options.shown, error))?,
        };
        let locks = Locks::new(link, &options);
        let (tasks, docs) =
            (Tasks::new(locks.link.clone(), &options), Docs::new(locks.link.clone(), &options));
        let store = Self { locks, tasks, docs, options };
        store.check().await?;
        Ok(store)
    }

    /// Fails on permanent problems; logs a warning for settings that are only dangerous.
    async fn check(&self) -> Result<()> {
        for finding in super::health::settings(&self.locks, &self.options).await? {
            if let Some(concern) = finding.concern {
                let (store, name, code) = (&self.locks.shown, finding.name, concern.code);
                tracing::warn!(%store, code, "{name}: {}; {}", finding.detail, concern.hint);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.locks.shown).finish_non_exhaustive()
    }
}

/// Returns the capabilities of this engine.
pub(super) const fn capabilities() -> Capabilities {
    Capabilities {
        engine: "redis",
        hosts: Hosts::Many,
        min_ttl: Ttl::from_millis(100),
        poll: POLL,
        wakes: true,
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

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn url(&self) -> String {
        self.locks.shown.clone()
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
        self.locks.inbox.hear(&self.locks.link);
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
        let applied = tokio::time::timeout(DEADLINE, self.locks.apply(name, op)).await;
        applied.unwrap_or_else(|_| Err(late(&self.locks.shown)))
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.locks.get(name).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        self.locks.peek(name, waiter).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        self.locks.list(ask).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        self.locks.history(ask).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.locks.now().await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.locks.inbox.hear(&self.locks.link);
        self.locks.waiters.changes(lock, *waiter, Reach::Process, POLL)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.locks.sweep(limit).await
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.locks.forget(idle, limit).await
    }
}
