//! The engine as a whole.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::docs::SqliteDocs;
use super::examine::examine;
use super::options::SqliteOptions;
use super::tables;
use super::tasks::SqliteTasks;
use super::writer::Writer;
use crate::Result;
use crate::model::{
    Enqueued, Event, LeaseId, LockName, LockOp, LockRecord, NewTask, Outcome, Sweep, Swept, Timestamp, Ttl,
};
use crate::store::lock_store::page_size;
use crate::store::wake::{self, Reach};
use crate::store::{
    Abilities, Changes, Cursor, DocStore, Finding, Hosts, ListEvents, ListLocks, LockState, LockStore,
    OnNotice, Page, Peek, Recipient, Span, Store, Subscription, TaskStore,
};

/// Locks, tasks and documents in a file of this machine.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Arc<Writer>,
    tasks: SqliteTasks,
    docs: SqliteDocs,
}

/// A wake-up that gets lost costs a waiter this long.
const POLL: Duration = Duration::from_millis(100);

impl SqliteStore {
    /// Opens the file, or makes it. Reads and writes it on the spot: a millisecond, unless the disk is slow.
    #[expect(clippy::unused_async, reason = "every engine is opened alike")]
    pub async fn open(options: SqliteOptions) -> Result<Self> {
        let writer = Arc::new(Writer::open(&options)?);
        let (tasks, docs) = (SqliteTasks::new(writer.clone()), SqliteDocs::new(writer.clone(), abilities()));
        Ok(Self { writer, tasks, docs })
    }

    /// Adds tasks in a transaction of the caller, on a connection that the caller has opened on the store's own file:
    /// they are there if and when it is committed. Tables of the caller may be in that file, beside the store's.
    ///
    /// Workers notice within milliseconds, without being told.
    pub fn enqueue_in(&self, tx: &rusqlite::Transaction<'_>, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.tasks.enqueue_in(tx, new)
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn abilities(&self) -> Abilities {
        abilities()
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

    fn docs(&self) -> Option<&dyn DocStore> {
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

    async fn examine(&self) -> Result<Vec<Finding>> {
        let path = self.writer.path();
        self.writer.run(move |ledger| examine(ledger, &path)).await
    }
}

#[async_trait]
impl LockStore for SqliteStore {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        self.writer.apply(name, op).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let name = name.clone();
        self.writer.run(move |ledger| ledger.get(&name)).await
    }

    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let (name, waiter) = (name.clone(), *waiter);
        self.writer.run(move |ledger| ledger.peek(&name, &waiter)).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(ask.limit);
        let prefix = ask.prefix.clone().unwrap_or_default();
        let state = ask.state;
        let busy = state.is_some_and(|state| state != LockState::Free);
        let mut after = ask.after.clone().map(|after| after.0).unwrap_or_default();
        let mut items = Vec::new();
        loop {
            let (prefix, from) = (prefix.clone(), after);
            let read = move |ledger: &mut super::batch::Ledger| {
                let found = tables::list(ledger.conn(), &prefix, &from, busy, limit)?;
                Ok((found, ledger.clock.now()))
            };
            let (found, now) = self.writer.run(read).await?;
            let last = found.len() < limit as usize;
            after = found.last().map(|record| record.name.as_str().to_owned()).unwrap_or_default();
            for record in found {
                if state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit as usize {
                    let next = items.last().map(|record| Cursor(record.name.as_str().to_owned()));
                    return Ok(Page { items, next });
                }
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let (limit, lock, span) = (page_size(ask.limit), ask.lock.clone(), ask.span.clone());
        let found = self.writer.run(move |ledger| match (&span, &lock) {
            (Span::After(after), None) => {
                ledger.gathered(|conn| tables::events_after(conn, number(after), limit))
            }
            (Span::After(after), Some(lock)) => {
                // Back from the newest, then the right way round.
                let mut found = tables::events_of(ledger.conn(), lock, i64::MAX, u32::MAX)?;
                found.retain(|(seq, _)| *seq > number(after));
                found.reverse();
                found.truncate(limit as usize);
                Ok(found)
            }
            (Span::Newest, None) => ledger.gathered(|conn| tables::events_before(conn, i64::MAX, limit)),
            (Span::Newest, Some(lock)) => tables::events_of(ledger.conn(), lock, i64::MAX, limit),
            (Span::Before(before), None) => {
                ledger.gathered(|conn| tables::events_before(conn, number(before), limit))
            }
            (Span::Before(before), Some(lock)) => {
                tables::events_of(ledger.conn(), lock, number(before), limit)
            }
        });
        let found = found.await?;
        let last = found.last().map(|(seq, _)| Cursor(seq.to_string()));
        let next = match &ask.span {
            Span::After(after) => Some(last.unwrap_or_else(|| after.clone())),
            _ => last.filter(|_| found.len() == limit as usize),
        };
        Ok(Page { items: found.into_iter().map(|(_, event)| event).collect(), next })
    }

    async fn now(&self) -> Result<Timestamp> {
        if self.writer.only_looks() {
            return self.writer.run(|ledger| Ok(ledger.clock.now())).await;
        }
        Ok(self.writer.clock().now())
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> Changes {
        self.writer.waiters().changes(lock, *waiter, Reach::Machine, POLL)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let names = self.writer.run(move |ledger| ledger.find_ended(limit)).await?;
        let mut swept = Swept::default();
        for name in names {
            if let Outcome::Swept(one) = self.apply(&name, &LockOp::Sweep(Sweep::default())).await? {
                swept += one;
            }
        }
        Ok(swept)
    }

    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        self.writer.run(move |ledger| ledger.forget(idle, limit)).await
    }
}

fn abilities() -> Abilities {
    Abilities {
        engine: "sqlite",
        hosts: Hosts::OneMachine,
        min_ttl: Ttl::from_millis(50),
        poll: POLL,
        wakes: cfg!(target_os = "linux"),
        sees_the_dead: cfg!(target_os = "linux"),
        lasting: true,
        shares: true,
        queues: true,
        forgets_locks: true,
        grace: Duration::ZERO,
        ttl: Abilities::TTL,
        tasks: Abilities::ALL_OF_TASKS,
    }
}

fn number(cursor: &Cursor) -> i64 {
    cursor.0.parse().unwrap_or(0)
}
