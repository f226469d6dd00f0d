//! Serialises the callers of one process for each lock, so that they do not conflict with each other,
//! and caches the last known document, so that the next caller need not read before it writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Line, OwnedMutexGuard};

use super::lock_doc::LockDoc;
use crate::model::LockName;
use crate::store::BootInstant;

/// One lane per lock that this process has used recently.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<LockName, Arc<Line<Lane>>>>);

/// State of one lock as known to this process.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Document as last seen. May be outdated: sufficient for a write attempt, not for a response.
    pub(super) known: Option<(u64, LockDoc)>,
    /// Whether the lock has a document, cached or not.
    pub(super) exists: bool,
    /// Write whose result is unknown.
    pub(super) adrift: Option<Adrift>,
}

impl Lane {
    /// Caches the document, unless the lock has many waiters: then the document will be outdated
    /// soon, and it may be large.
    pub(super) fn remember(&mut self, version: u64, doc: LockDoc) {
        self.exists = true;
        self.known = Self::remembers(&doc).then_some((version, doc));
    }

    pub(super) fn remembers(doc: &LockDoc) -> bool {
        doc.record.waiters.len() <= MAX_KNOWN_WAITERS
    }
}

/// In-doubt write: it was sent and got no response. It may still arrive, and then takes effect if the
/// document has the version that it expects. So until that version has been replaced, no caller may
/// receive an answer that is true only if the write does not arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adrift {
    pub(super) expected: Option<u64>,
    pub(super) since: BootInstant,
}

/// Number of lanes at which about half of the unused ones are dropped.
const MAX_LANES: usize = 1024;
/// Number of waiters above which a lock is read before it is written.
const MAX_KNOWN_WAITERS: usize = 4;
/// Maximum time for which a request may be in flight.
const LOST_AT_SEA: Duration = Duration::from_mins(1);

impl Lanes {
    /// Waits until the earlier callers have left the lane, in FIFO order.
    pub(super) async fn enter(&self, name: &LockName) -> OwnedMutexGuard<Lane> {
        self.lane(name).lock_owned().await
    }

    fn lane(&self, name: &LockName) -> Arc<Line<Lane>> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(name) {
            return lane.clone();
        }
        if lanes.len() >= MAX_LANES {
            let now = BootInstant::now();
            lanes.retain(|_, lane| fastrand::bool() || is_needed(lane, now));
        }
        lanes.entry(name.clone()).or_default().clone()
    }
}

/// Whether a caller uses the lane, or the lane has an in-doubt write.
fn is_needed(lane: &Arc<Line<Lane>>, now: BootInstant) -> bool {
    let adrift = |lane: &Lane| lane.adrift.is_some_and(|adrift| now < adrift.since.plus(LOST_AT_SEA));
    Arc::strong_count(lane) > 1 || lane.try_lock().map_or(true, |lane| adrift(&lane))
}
