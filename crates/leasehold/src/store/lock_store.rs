//! What an engine has to do so that locks can stand on it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Abilities, Budget, Changes, DocStore, Finding, TaskStore};
use crate::Result;
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp};

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
/// **Failure**: an error means that the answer is not known: the step was made or was not. Sending the same operation
/// again is safe: an acquire with the same lease id gives the same lease, a second release finds nothing.
///
/// **Bounded**: every call ends by itself within seconds, with an error if it must. No call sleeps or tries again
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

    /// Records by name, a page at a time.
    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>>;

    /// Events in the order in which they happened, or the newest first, a page at a time.
    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>>;

    /// The engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// Wake-ups for one waiter. Call it before the acquire that draws the ticket, so that none is missed. A wake-up is
    /// a hint: it may come for nothing, and it may not come at all, which is why [`Changes`] also ends after a while.
    fn changes(&self, waiter: &LeaseId) -> Changes;

    /// Sweeps up to `limit` locks that have something to clear away, and bounds the history. Safe at any time and with
    /// any number of sweepers.
    async fn sweep(&self, limit: u32) -> Result<Swept>;
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
            Self::Stale => record.holders.iter().any(|lease| {
                lease.expires_at <= now || lease.ask.process.as_ref().is_some_and(super::is_gone)
            }),
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
