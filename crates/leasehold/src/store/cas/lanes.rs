//! The callers of one process stand in line for a lock instead of clashing with each other, and remember what they
//! last saw of it, so that the next one need not read before it writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Line, OwnedMutexGuard};

use super::lock_doc::LockDoc;
use crate::model::LockName;
use crate::store::Moment;

/// One lane per lock that this process has used lately.
#[derive(Debug, Default)]
pub(super) struct Lanes(Mutex<HashMap<LockName, Arc<Line<Lane>>>>);

/// What this process knows about one lock.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// As it was last seen. May be old: good to try a write with, not to answer by.
    pub(super) known: Option<(u64, LockDoc)>,
    /// Whether there is a document, known or not.
    pub(super) exists: bool,
    /// A write whose fate is not known.
    pub(super) adrift: Option<Adrift>,
}

impl Lane {
    /// Remembers what was seen, unless others are at it too: then it will not be true for long, and it may be large.
    pub(super) fn remember(&mut self, version: u64, doc: LockDoc) {
        self.exists = true;
        self.known = Self::remembers(&doc).then_some((version, doc));
    }

    pub(super) fn remembers(doc: &LockDoc) -> bool {
        doc.record.waiters.len() <= MAX_KNOWN_WAITERS
    }
}

/// A write that was sent and not answered. It may still arrive, and then takes effect if the document has the version
/// that it expects: so nobody may be told anything that is true only if it does not arrive, before that version is gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adrift {
    pub(super) expected: Option<u64>,
    pub(super) since: Moment,
}

/// So many locks are remembered.
const MAX_LANES: usize = 1024;
/// With more waiters than this, a lock is looked at before it is written.
const MAX_KNOWN_WAITERS: usize = 4;
/// No request is on its way for longer than this.
const LOST_AT_SEA: Duration = Duration::from_mins(1);

impl Lanes {
    /// Waits for its turn. Whoever asked first is first.
    pub(super) async fn enter(&self, name: &LockName) -> OwnedMutexGuard<Lane> {
        self.lane(name).lock_owned().await
    }

    fn lane(&self, name: &LockName) -> Arc<Line<Lane>> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(name) {
            return lane.clone();
        }
        if lanes.len() >= MAX_LANES {
            let now = Moment::now();
            lanes.retain(|_, lane| fastrand::bool() || is_needed(lane, now));
        }
        lanes.entry(name.clone()).or_default().clone()
    }
}

/// Whether somebody is in the lane, or something is adrift in it.
fn is_needed(lane: &Arc<Line<Lane>>, now: Moment) -> bool {
    let adrift = |lane: &Lane| lane.adrift.is_some_and(|adrift| now < adrift.since.plus(LOST_AT_SEA));
    Arc::strong_count(lane) > 1 || lane.try_lock().map_or(true, |lane| adrift(&lane))
}
