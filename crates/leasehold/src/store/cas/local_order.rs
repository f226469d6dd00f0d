//! Serialises the callers of one process for each lock, so that they do not conflict with each other,
//! and caches the last seen document, so that the next caller need not read before it writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::lock_doc::LockDoc;
use crate::model::LockName;
use crate::store::BootInstant;

/// Locks that this process has used recently.
#[derive(Debug, Default)]
pub(super) struct LocalOrder(Mutex<HashMap<LockName, Arc<AsyncMutex<LocalLock>>>>);

/// State of one lock in this process.
#[derive(Debug, Default)]
pub(super) struct LocalLock {
    /// Document as last seen. May be outdated: sufficient for a write attempt, not for a response.
    pub(super) cached: Option<(u64, LockDoc)>,
    /// Whether the lock has a document, cached or not.
    pub(super) exists: bool,
    /// Write whose result is unknown.
    pub(super) in_doubt: Option<InDoubtWrite>,
}

impl LocalLock {
    /// Caches the document, unless the lock has many waiters: then the document will be outdated
    /// soon, and it may be large.
    pub(super) fn cache(&mut self, version: u64, doc: LockDoc) {
        self.exists = true;
        self.cached = Self::is_cacheable(&doc).then_some((version, doc));
    }

    pub(super) fn is_cacheable(doc: &LockDoc) -> bool {
        doc.record.waiters.len() <= MAX_CACHED_WAITERS
    }
}

/// In-doubt write: it was sent and got no response. It may still arrive, and then takes effect if the
/// document has the version that it expects. So until that version has been replaced, no caller may
/// receive an answer that is true only if the write does not arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct InDoubtWrite {
    pub(super) expected: Option<u64>,
    pub(super) since: BootInstant,
}

/// Number of locks at which about half of the unused ones are dropped.
const MAX_LOCKS: usize = 1024;
/// Number of waiters above which a lock is read before it is written.
const MAX_CACHED_WAITERS: usize = 4;
/// Maximum time for which a request may be in flight.
const MAX_IN_FLIGHT: Duration = Duration::from_mins(1);

impl LocalOrder {
    /// Waits until the earlier callers have dropped their guards, in FIFO order.
    pub(super) async fn enter(&self, name: &LockName) -> OwnedMutexGuard<LocalLock> {
        self.entry(name).lock_owned().await
    }

    fn entry(&self, name: &LockName) -> Arc<AsyncMutex<LocalLock>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(name) {
            return lock.clone();
        }
        if locks.len() >= MAX_LOCKS {
            let now = BootInstant::now();
            locks.retain(|_, lock| fastrand::bool() || is_needed(lock, now));
        }
        locks.entry(name.clone()).or_default().clone()
    }
}

/// Whether a caller uses the lock, or an in-doubt write may still arrive.
fn is_needed(lock: &Arc<AsyncMutex<LocalLock>>, now: BootInstant) -> bool {
    let may_arrive =
        |lock: &LocalLock| lock.in_doubt.is_some_and(|in_doubt| now < in_doubt.since.plus(MAX_IN_FLIGHT));
    Arc::strong_count(lock) > 1 || lock.try_lock().map_or(true, |lock| may_arrive(&lock))
}
