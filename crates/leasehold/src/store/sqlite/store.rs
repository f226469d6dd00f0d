//! SQLite engine: locks, tasks and documents of one file.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::connection::{Database, WriteOptions, Writer};
use super::documents::SqliteDocs;
use super::health::check_health;
use super::locks::LockHistory;
use super::locks::queries::{EventPage, Events, LockRange};
use super::options::SqliteOptions;
use super::tasks::SqliteTasks;
use crate::Result;
use crate::model::{
    Enqueued, Event, LeaseId, LockName, LockOp, LockRecord, NewTask, Outcome, Sweep, Swept, Timestamp, Ttl,
};
use crate::store::lock_store::page_size;
use crate::store::wake;
use crate::store::{
    Capabilities, Cursor, DocumentStore, HealthCheck, Hosts, ListEvents, ListLocks, LockStore, OnNotice,
    Page, Peek, Recipient, Store, Subscription, TaskStore, WaiterSubscription,
};

/// Locks, tasks and documents in a file on this machine.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Arc<Writer>,
    tasks: SqliteTasks,
    docs: SqliteDocs,
}

/// Poll interval of waiters: the maximum delay caused by a lost wake-up.
const POLL: Duration = Duration::from_millis(100);

/// Maximum number of transactions of one call that move the newest events of the locks.
const MAX_MOVES: u32 = 32;

impl SqliteStore {
    /// Opens the file, or creates it. Reads and writes it on the calling thread: about a
    /// millisecond, unless the disk is slow.
    #[expect(clippy::unused_async, reason = "every engine is opened alike")]
    pub async fn open(options: SqliteOptions) -> Result<Self> {
        let writer = Arc::new(Writer::open(&options)?);
        let docs = SqliteDocs { writer: writer.clone(), capabilities: capabilities() };
        Ok(Self { tasks: SqliteTasks::new(writer.clone()), docs, writer })
    }

    /// Adds tasks in a transaction of the caller, on a connection that the caller has opened on the
    /// store's own file: the tasks exist if and when the transaction is committed. The caller may
    /// have its own tables in that file, beside the store's.
    ///
    /// Workers notice the tasks within milliseconds, without a notification.
    pub fn enqueue_in_transaction(
        &self,
        tx: &rusqlite::Transaction<'_>,
        new: &[NewTask],
    ) -> Result<Vec<Enqueued>> {
        self.tasks.enqueue_in_transaction(tx, new)
    }

    /// Returns events of all locks. Other calls of this process run while the newest ones are moved into the
    /// events table.
    async fn all_events(&self, page: EventPage) -> Result<Events> {
        let read = move |database: &mut Database| database.read_all_events(page);
        let mut found = self.writer.run(read).await?;
        for _ in 0..MAX_MOVES {
            match found {
                Some(found) => return Ok(found),
                None => found = self.writer.maintain(move |database| database.query_all_events(page)).await?,
            }
        }
        match found {
            Some(found) => Ok(found),
            // Other processes write new events as fast as these are moved.
            None => self.writer.run(move |database| database.merge_all_events(page)).await,
        }
    }

    /// Returns events of one lock, in several reads between which other calls run.
    async fn events_of_lock(&self, mut search: LockHistory) -> Result<Events> {
        loop {
            search = self.writer.run(move |database| search.advance(&database.conn)).await?;
            if search.is_complete() {
                return Ok(search.into_events());
            }
            // The read was done on this thread: other work of the runtime runs in between.
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn url(&self) -> String {
        self.writer.url()
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
        #[cfg(target_os = "linux")]
        wake::listen();
        wake::subscribe(to, on_notice)
    }

    async fn notify(&self, to: &[Recipient]) {
        let elsewhere = wake::deliver(to);
        #[cfg(target_os = "linux")]
        if !elsewhere.is_empty() {
            wake::broadcast(&elsewhere);
        }
        let _ = elsewhere;
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let path = self.writer.path();
        self.writer.maintain(move |database| check_health(database, &path)).await
    }
}

#[async_trait]
impl LockStore for SqliteStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.writer.apply(name, op).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let name = name.clone();
        self.writer.run(move |database| database.get(&name)).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let (name, waiter) = (name.clone(), *waiter);
        let read = move |database: &mut Database| {
            let peek = database.peek(&name, &waiter)?;
            let is_unsynced = peek.lease.as_ref().is_some_and(|lease| database.must_be_synced(lease));
            Ok((peek, is_unsynced))
        };
        let (peek, is_unsynced) = self.writer.run(read).await?;
        if is_unsynced {
            // Another process may have granted the lease just now and may not have synced it yet.
            self.writer.transact(WriteOptions { weight: 1, always_sync: true }, |_| Ok(())).await?;
        }
        Ok(peek)
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(query.limit);
        let mut range = LockRange {
            prefix: query.prefix.clone().unwrap_or_default(),
            after: query.after.clone().map(|after| after.0).unwrap_or_default(),
            state: query.state,
            limit,
        };
        let mut items = Vec::new();
        loop {
            let part = range.clone();
            let read = move |database: &mut Database| {
                let now = database.clock.now();
                Ok((database.list(&part, now)?, now))
            };
            let ((found, next), now) = self.writer.run(read).await?;
            for record in found {
                if query.state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit as usize {
                    let next = items.last().map(|record| Cursor(record.name.as_str().to_owned()));
                    return Ok(Page { items, next });
                }
            }
            match next {
                Some(next) => range.after = next,
                None => return Ok(Page { items, next: None }),
            }
            // The read was done on this thread: other work of the runtime runs in between.
            tokio::task::yield_now().await;
        }
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let limit = page_size(query.limit);
        let (from, forward) = query.span.numbered_start();
        let found = match query.lock.clone() {
            None => self.all_events(EventPage { from, forward, limit }).await?,
            Some(lock) => {
                let page = EventPage { from, forward, limit };
                self.events_of_lock(LockHistory::new(lock, page)).await?
            }
        };
        Ok(Page::of_events(found, &query.span, limit as usize, |number| Cursor(number.to_string())))
    }

    async fn now(&self) -> Result<Timestamp> {
        if self.writer.is_reader() {
            return self.writer.run(|database| Ok(database.clock.now())).await;
        }
        Ok(self.writer.clock.now())
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        let waiters = self.writer.shared.waiters;
        #[cfg(target_os = "linux")]
        if wake::listen() {
            return waiters.subscribe(lock, *waiter, POLL);
        }
        waiters.polling(lock, *waiter, POLL)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        // One transaction at a time, so that other calls of this process run in between. Other processes may
        // write new events as fast as these are moved.
        for _ in 0..MAX_MOVES {
            if self.writer.maintain(Database::move_some_events).await? {
                break;
            }
        }
        let names = self.writer.maintain(move |database| database.find_expired(limit)).await?;
        let mut swept = Swept::default();
        for name in names {
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.writer.maintain(move |database| database.forget(idle, limit)).await
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        engine: "sqlite",
        hosts: Hosts::OneMachine,
        min_ttl: Ttl::from_millis(50),
        poll: POLL,
        push_notifications: cfg!(target_os = "linux"),
        detects_dead_processes: cfg!(target_os = "linux"),
        persistent: true,
        shared_locks: true,
        queues: true,
        forgets_locks: true,
        clock_uncertainty: Duration::ZERO,
        ttl: Capabilities::TTL,
        tasks: Capabilities::ALL_OF_TASKS,
    }
}
