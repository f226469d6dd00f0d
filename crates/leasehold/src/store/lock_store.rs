//! What an engine has to do so that locks can stand on it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::clock::new_id;
use super::{
    Abilities, Budget, Changes, DocStore, Finding, OnNotice, Recipient, Subscription, TaskStore, wake,
};
use crate::Result;
use crate::model::{
    Event, Lease, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp, Ttl, WorkerId,
};

/// An engine.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What it can and cannot do.
    fn abilities(&self) -> Abilities;

    /// Its address for people: no secret in it.
    fn url(&self) -> String;

    /// Its locks.
    fn locks(&self) -> &dyn LockStore;

    /// Its tasks, if it can have any.
    fn tasks(&self) -> Option<&dyn TaskStore> {
        None
    }

    /// Its documents, if it keeps any.
    fn docs(&self) -> Option<&dyn DocStore> {
        None
    }

    /// What is left of the requests that it allows, as last heard; none if it does not count them.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// Returns an id for a new worker.
    fn new_worker_id(&self) -> WorkerId {
        WorkerId::from_uuid(new_id())
    }

    /// Subscribes to the notices for a lease or a worker. By default only those that are sent in this process arrive.
    fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        wake::subscribe(to, on_notice)
    }

    /// Sends a notice to the holders or workers that subscribe to them, in other processes too if the engine can. A
    /// notice is a hint, like a wake-up: it may be lost, so a failure is not reported.
    async fn notify(&self, to: &[Recipient]) {
        wake::deliver(to);
    }

    /// What it finds out about itself: version, schema, and settings that would break a promise. For people, so it may
    /// take a few round trips.
    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// Locks on an engine.
///
/// **Atomic**: [`apply`](LockStore::apply) loads the record, applies [`LockRecord::apply`] to it at the engine's own
/// time, and saves the record together with its events, as one step that other callers see whole or not at all. The
/// time is read when nobody else can change the record any more, so that a lease is never dead on arrival.
///
/// **Failure**: an error means that the answer is not known: the step was made or was not. The caller may send the same
/// operation again: an acquire with the same lease id gives the same lease. A release, a forced release or a request to
/// release that was made is answered otherwise the second time, which only the caller can interpret: so a store never
/// sends one of these again by itself once it may have begun ([`LockOp::is_repeatable`]).
///
/// **Late**: an operation that reaches the engine after its call has ended with an error, and after what the caller has sent
/// for the same lease id since, changes nothing.
///
/// **Bounded**: every call ends by itself within 5 s, with an error if it must. No call sleeps or tries again
/// because a lock is held: that is the caller's business.
///
/// **Cancelled**: a call that is dropped may or may not take effect, as if its answer had been lost; but if it does,
/// then before any call for the same lease id that is made after the drop. So an acquire can be taken back.
#[async_trait]
pub trait LockStore: Send + Sync {
    /// Applies one operation to one lock, which need not exist yet.
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome>;

    /// The record as it was last written: leases in it may have ended since.
    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>>;

    /// Tells a waiter whether its ticket has become a lease and whether the acquire is worth sending again, without
    /// reading the queue: an engine with long queues answers in a time that does not depend on their length.
    ///
    /// **Effect**: none. A lease in the answer is as it was last written, like one from [`get`](LockStore::get), and
    /// may have ended since. The answer does not say whether the ticket is still queued: the acquire that refreshes
    /// the ticket does.
    ///
    /// **Failure**: an error tells nothing; sending the acquire again is always right.
    async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let record = self.get(name).await?;
        let now = self.now().await?;
        Ok(Peek::of(record.as_ref(), waiter, now))
    }

    /// Records by name, a page at a time.
    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>>;

    /// Events in the order in which they happened, or the newest first, a page at a time.
    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>>;

    /// The engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Wake-ups for one waiter for `lock`. Call it before the acquire that draws the ticket, so that none is missed. A
    /// wake-up is a hint: it may come for nothing, and it may not come at all, which is why [`Changes`] also ends after a
    /// while. Without a lock it is a relay: it receives hints, never the lease itself.
    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> Changes;

    /// Sweeps up to `limit` locks that have something to clear away, and bounds the history. Safe at any time and with
    /// any number of sweepers.
    async fn sweep(&self, limit: u32) -> Result<Swept>;

    /// Forgets up to `limit` locks that nobody holds, waits for or keeps, and that were not granted for `idle`; returns how
    /// many. Their history stays until it is too old. One call looks at a bounded number of locks and goes on from there
    /// at the next call, so that it takes several calls to reach all.
    ///
    /// **Atomic**: a lock is removed only if it is still [forgettable](LockRecord::is_forgettable) when nobody else can
    /// change it, and not before the store's [floor](crate::model::TokenFloor) is above its token for every caller: a lock
    /// that is made again is granted a higher one, whatever the clock says.
    ///
    /// **Failure**: some may have been forgotten. Safe at any time and with any number of callers.
    ///
    /// An engine whose abilities say that it does not forget locks returns 0.
    async fn forget(&self, idle: Ttl, limit: u32) -> Result<u32> {
        let _ = (idle, limit);
        Ok(0)
    }
}

/// Answer to [`LockStore::peek`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peek {
    /// Lease that the waiter's ticket has become.
    pub lease: Option<Lease>,
    /// Lower bound of the time at which a lease or a ticket of the lock ends; none if nothing will end, or if nobody
    /// waits according to the record.
    pub wake_at: Option<Timestamp>,
    /// Whether the engine sees that the process of a holder is gone.
    pub holder_is_gone: bool,
    /// The engine's time.
    pub now: Timestamp,
}

impl Peek {
    /// Reads the answer off a record. Of the queue only the first ticket counts: the end of one behind it lets nobody
    /// in.
    pub fn of(record: Option<&LockRecord>, waiter: &LeaseId, now: Timestamp) -> Self {
        let lease = record.and_then(|record| record.lease(waiter)).cloned();
        let first = record.and_then(|record| record.waiters.first());
        let holders = record.map(|record| record.holders.as_slice()).unwrap_or_default();
        let leases = holders.iter().map(|lease| lease.expires_at);
        let wake_at = first.map(|first| leases.fold(first.expires_at, Timestamp::min));
        Self { lease, wake_at, holder_is_gone: holders.iter().any(holder_is_gone), now }
    }

    /// Whether sending the acquire again can change something.
    pub fn is_due(&self) -> bool {
        self.holder_is_gone || self.wake_at.is_none_or(|wake_at| wake_at <= self.now)
    }
}

pub(crate) fn holder_is_gone(lease: &Lease) -> bool {
    lease.ask.process.as_ref().is_some_and(super::is_gone)
}

/// Which locks to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ListLocks {
    /// Names that begin with this.
    pub prefix: Option<String>,
    /// In this state.
    pub state: Option<LockState>,
    /// After this place of an earlier page.
    pub after: Option<Cursor>,
    /// At most so many; 0 means 100.
    pub limit: u32,
}

/// A state to list by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// Somebody holds it.
    Held,
    /// Nobody does.
    Free,
    /// Somebody waits for it.
    Waited,
    /// Somebody holds it or waits for it.
    InUse,
    /// The record still names a holder whose lease has ended or whose process is gone.
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
                record.holders.iter().any(|lease| lease.expires_at <= now || holder_is_gone(lease))
            }
        }
    }
}

/// Which events to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ListEvents {
    /// Of this lock; else of all.
    pub lock: Option<LockName>,
    /// From where, and in which direction.
    pub span: Span,
    /// At most so many; 0 means 100.
    pub limit: u32,
}

/// From where to list events, and in which direction.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// The newest, and back from there.
    #[default]
    Newest,
    /// Back from a place of an earlier page.
    Before(Cursor),
    /// On from a place of an earlier page, oldest first; its page always has a `next`, for asking again later.
    After(Cursor),
}

/// A page of a list.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Page<T> {
    /// What was asked for.
    pub items: Vec<T>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Cursor>,
}

/// A place in a list. Opaque; give it back as it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

impl Cursor {
    /// Before the first event there ever was.
    pub fn start() -> Self {
        Self("0".to_owned())
    }
}

pub(crate) const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

/// The page size that was asked for, within bounds.
pub(crate) fn page_size(limit: u32) -> u32 {
    if limit == 0 { DEFAULT_LIMIT } else { limit.min(MAX_LIMIT) }
}
