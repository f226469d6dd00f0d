//! Interface that an engine implements to provide locks.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::model::{Event, Lease, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl};
use crate::store::{WaiterSubscription, is_dead};

/// Locks on an engine.
///
/// **Atomic**: [`apply`](LockStore::apply) loads the record, applies [`LockRecord::apply`] to it at
/// the engine's own time, and saves the record together with its events, as one step that other
/// callers see completely or not at all. The engine reads the time when no other caller can change
/// the record any more, so that a lease is never expired when it is granted.
///
/// **Failure**: an error means that the result is unknown: the step was made or was not. The caller
/// may send the same operation again: an acquire with the same lease id returns the same lease. A
/// release, a forced release or a release request that was made returns a different outcome the
/// second time, which only the caller can interpret: so a store never resends one of these by itself
/// once it may have begun ([`LockOp::is_repeatable`]).
///
/// **Late**: an operation changes nothing if it reaches the engine after its call has ended with an
/// error, and after a later operation of the caller for the same lease id.
///
/// **Bounded**: every call ends by itself within 5 s, with an error if necessary. No call sleeps or
/// retries because a lock is held: waiting is the caller's responsibility.
///
/// **Cancelled**: a call that is dropped may or may not take effect, as if its response had been
/// lost. If it takes effect, it does so before any call for the same lease id that is made after the
/// drop. So an acquire can be withdrawn.
#[async_trait]
pub trait LockStore: Send + Sync {
    /// Applies one operation to one lock, which need not exist yet.
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome>;

    /// Returns the record as it was last written: leases in it may have ended since.
    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>>;

    /// Returns whether a waiter's ticket has become a lease and whether resending the acquire is
    /// useful, without reading the queue: an engine with long queues answers in a time that does not
    /// depend on their length.
    ///
    /// **Effect**: none. A returned lease is as it was last written, like one from
    /// [`get`](LockStore::get), and may have ended since. The answer does not contain whether the
    /// ticket is still queued: the acquire that refreshes the ticket returns that.
    ///
    /// **Failure**: after an error nothing is known; resending the acquire is always correct.
    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let record = self.get(name).await?;
        let now = self.now().await?;
        Ok(Peek::of(record.as_ref(), waiter, now))
    }

    /// Lists records by name, one page at a time.
    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>>;

    /// Lists events in the order in which they happened, or the newest first, one page at a time.
    async fn history(&self, query: &ListEvents) -> Result<Page<Event>>;

    /// Returns the engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Subscribes one waiter for `lock` to wake-ups. Call it before the acquire that creates the
    /// ticket, so that no wake-up is missed. A wake-up is a hint: it may be spurious, and it may be
    /// lost, which is why a wait on [`WaiterSubscription`] also ends after the poll interval. A
    /// subscription without a lock is a relay: it receives hints, never the lease itself.
    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription;

    /// Sweeps up to `limit` locks that have expired entries, and truncates the history. Safe at any
    /// time and with any number of concurrent sweepers.
    async fn sweep(&self, limit: u32) -> Result<Swept>;

    /// Deletes up to `limit` locks that are not held, waited for or retained, and that were not
    /// granted for `idle`; returns their number. Their history stays until its retention ends. One
    /// call examines a bounded number of locks and the next call continues from there, so that
    /// several calls are necessary to reach all.
    ///
    /// **Atomic**: a lock is deleted only if it is still [forgettable](LockRecord::is_forgettable)
    /// when no other caller can change it, and not before the store's [token
    /// floor](crate::model::TokenFloor) is above its token for every caller: a lock that is created
    /// again is granted a higher token, whatever the clock shows.
    ///
    /// **Failure**: some locks may have been deleted. Safe at any time and with any number of
    /// concurrent callers.
    ///
    /// An engine without
    /// [`Capabilities::forgets_locks`](super::Capabilities::forgets_locks) returns 0.
    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        let _ = (idle, limit);
        Ok(0)
    }
}

/// Answer to [`LockStore::peek`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Peek {
    /// Lease that the waiter's ticket has become.
    pub lease: Option<Lease>,
    /// Lower bound of the time at which a lease or a ticket of the lock ends; `None` if nothing will
    /// end, or if the record has no waiter.
    pub wake_at: Option<Timestamp>,
    /// Whether the engine detects that the process of a holder has exited.
    pub holder_is_dead: bool,
    /// Engine's time.
    pub now: Timestamp,
}

impl Peek {
    /// Derives the answer from a record. Only the first ticket of the queue counts: the end of a
    /// later ticket lets no waiter acquire the lock.
    pub fn of(record: Option<&LockRecord>, waiter: &LeaseId, now: Timestamp) -> Self {
        let lease = record.and_then(|record| record.lease(waiter)).cloned();
        let first = record.and_then(|record| record.waiters.first());
        let holders = record.map(|record| record.holders.as_slice()).unwrap_or_default();
        let leases = holders.iter().map(|lease| lease.expires_at);
        let wake_at = first.map(|first| leases.fold(first.expires_at, Timestamp::min));
        Self { lease, wake_at, holder_is_dead: holders.iter().any(holder_is_dead), now }
    }

    /// Whether resending the acquire can change anything.
    pub fn is_due(&self) -> bool {
        self.holder_is_dead || self.wake_at.is_none_or(|wake_at| wake_at <= self.now)
    }
}

pub(crate) fn holder_is_dead(lease: &Lease) -> bool {
    lease.request.process.as_ref().is_some_and(is_dead)
}

/// Query for [`LockStore::list`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListLocks {
    /// Prefix of the names to list.
    pub prefix: Option<String>,
    /// State of the locks to list.
    pub state: Option<LockState>,
    /// Position after which the page starts, from an earlier page.
    pub after: Option<Cursor>,
    /// Maximum number of records; 0 means 100.
    pub limit: u32,
}

setters!(ListLocks {
    /// Lists only locks whose name has this prefix.
    prefix: Option<String>,
    /// Lists only locks in this state.
    state: Option<LockState>,
    /// Starts the page after this position of an earlier page.
    after: Option<Cursor>,
    /// Limits the number of locks of the page; 0 means 100.
    limit: u32,
});

/// State to filter locks by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockState {
    /// At least one caller holds the lock.
    Held,
    /// No caller holds the lock.
    Free,
    /// At least one caller waits for the lock.
    Waited,
    /// At least one caller holds the lock or waits for it.
    InUse,
    /// The record still names a holder whose lease has ended or whose process has exited.
    Stale,
}

impl LockState {
    /// Whether a record is in this state at `now`.
    pub fn matches(self, record: &LockRecord, now: Timestamp) -> bool {
        match self {
            Self::Held => record.live(now).next().is_some(),
            Self::Free => record.live(now).next().is_none(),
            Self::Waited => record.waiting(now).next().is_some(),
            Self::InUse => Self::Held.matches(record, now) || Self::Waited.matches(record, now),
            Self::Stale => {
                record.holders.iter().any(|lease| lease.expires_at <= now || holder_is_dead(lease))
            }
        }
    }
}

/// Query for [`LockStore::history`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListEvents {
    /// Lock whose events to list; `None` lists the events of all locks.
    pub lock: Option<LockName>,
    /// Start and direction of the list.
    pub span: EventRange,
    /// Maximum number of events; 0 means 100.
    pub limit: u32,
}

setters!(ListEvents {
    /// Lists only events of this lock.
    lock: Option<LockName>,
    /// Sets start and direction of the list.
    span: EventRange,
    /// Limits the number of events of the page; 0 means 100.
    limit: u32,
});

/// Start and direction of a list of events.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventRange {
    /// From the newest event backwards.
    #[default]
    Newest,
    /// Backwards from a position of an earlier page.
    Before(Cursor),
    /// Forwards from a position of an earlier page, oldest first; the page always has a `next`, for a
    /// later query.
    After(Cursor),
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl EventRange {
    /// Returns the number of the event at which the range begins, on engines that number all events, and
    /// whether the range goes forward from it.
    pub(crate) fn numbered_start(&self) -> (i64, bool) {
        let number = |cursor: &Cursor| cursor.0.parse().unwrap_or(0);
        match self {
            Self::After(after) => (number(after), true),
            Self::Before(before) => (number(before), false),
            Self::Newest => (i64::MAX, false),
        }
    }
}

/// Page of a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Page<T> {
    /// Items of the page.
    pub items: Vec<T>,
    /// Position at which the next page begins, if there may be one.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Creates a page.
    pub fn new(items: Vec<T>, next: Option<Cursor>) -> Self {
        Self { items, next }
    }

    /// Creates a page of at most `limit` items, after which others may follow if it is full.
    pub(crate) fn of(items: Vec<T>, limit: usize, cursor: impl FnOnce(&T) -> Cursor) -> Self {
        let next = items.last().filter(|_| items.len() == limit).map(cursor);
        Self { items, next }
    }
}

impl Page<Event> {
    /// Creates a page of at most `limit` events with their positions, in the order of `range`.
    pub(crate) fn of_events<P>(
        found: Vec<(P, Event)>,
        range: &EventRange,
        limit: usize,
        cursor: impl FnOnce(&P) -> Cursor,
    ) -> Self {
        let last = found.last().map(|(position, _)| cursor(position));
        let next = match range {
            EventRange::After(after) => Some(last.unwrap_or_else(|| after.clone())),
            _ => last.filter(|_| found.len() == limit),
        };
        Self { items: found.into_iter().map(|(_, event)| event).collect(), next }
    }
}

/// Position in a list. Opaque; callers pass it back unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

impl Cursor {
    /// Returns the position before the very first event.
    pub fn start() -> Self {
        Self("0".to_owned())
    }
}

pub(crate) const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

/// Returns the requested page size, clamped to the allowed range.
pub(crate) fn page_size(limit: u32) -> u32 {
    if limit == 0 { DEFAULT_LIMIT } else { limit.min(MAX_LIMIT) }
}
