//! State of a lock in this process, which its callers pass on to each other: the last seen document,
//! so that the next caller need not read before it writes, and a write in doubt.

use std::time::Duration;

use super::lock_doc::LockDoc;
use crate::store::BootInstant;
use crate::store::in_order::{Keep, KeptState};

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

/// Number of waiters above which a lock is read before it is written.
const MAX_CACHED_WAITERS: usize = 4;
/// Maximum time for which a request may be in flight.
const MAX_IN_FLIGHT: Duration = Duration::from_mins(1);

impl KeptState for LocalLock {
    /// Keeps the lock while an in-doubt write may still arrive.
    fn keep(&mut self) -> Keep {
        let may_arrive = |write: InDoubtWrite| BootInstant::now() < write.since.plus(MAX_IN_FLIGHT);
        if self.in_doubt.is_some_and(may_arrive) { Keep::Yes } else { Keep::IfRoom }
    }
}
