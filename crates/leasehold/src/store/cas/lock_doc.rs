//! Document of a lock: its record, the newest events of its history, and the versions of its last
//! renewals. Also the state of a lock in this process, which its callers pass on to each other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Applied, Event, LeaseId, LockName, LockOp, LockRecord, Timestamp, Token};
use crate::store::in_order::{Keep, KeptState};
use crate::store::{Annotation, BootInstant, Document, NewDocument};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LockDoc {
    pub(super) record: LockRecord,
    /// Number of the first of `events`.
    pub(super) first_event: u64,
    /// Newest events; older ones have moved out.
    pub(super) events: Vec<Event>,
    /// Version of the record at the last grant or renewal of each lease. Wrong clocks may produce the
    /// same time twice; this number is never used twice, so an observer of a lease knows whether it
    /// is still the same grant or renewal.
    renewals: BTreeMap<Token, u64>,
    /// Last writes, by random numbers that their writers chose: so a writer that missed the response
    /// recognises its own write.
    writes: Vec<u64>,
}

/// Maximum number of its last writes that a document contains.
const MAX_WRITES: usize = 8;

impl LockDoc {
    pub(super) fn new(name: &LockName) -> Self {
        Self {
            record: LockRecord::new(name.clone()),
            first_event: 1,
            events: Vec::new(),
            renewals: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    pub(super) fn read(name: &LockName, doc: Option<&Document>) -> Result<Self> {
        doc.map_or_else(|| Ok(Self::new(name)), |doc| parse(&doc.body))
    }

    /// Applies the rules, and records which leases the operation has granted or renewed.
    pub(super) fn apply(&mut self, op: &LockOp, now: Timestamp) -> Applied {
        let before = self.record.holders.clone();
        let applied = self.record.apply(op, now);
        if applied.changed {
            let Self { record, renewals, .. } = self;
            let renewed = acquired_or_renewed(op);
            renewals.retain(|token, _| record.holders.iter().any(|lease| lease.token == *token));
            for lease in &record.holders {
                // A renewal that changes nothing in the lease counts too.
                if renewed == Some(lease.request.lease_id) || !before.contains(lease) {
                    renewals.insert(lease.token, record.version);
                }
            }
        }
        applied
    }

    /// Returns the version of the last grant or renewal of this lease.
    pub(super) fn renewal(&self, token: Token) -> u64 {
        self.renewals.get(&token).copied().unwrap_or(0)
    }

    pub(super) fn next_event(&self) -> u64 {
        self.first_event.saturating_add(self.events.len() as u64)
    }

    /// Records that the document is about to be written under this number.
    pub(super) fn record_write(&mut self, number: u64) {
        if self.writes.len() >= MAX_WRITES {
            self.writes.remove(0);
        }
        self.writes.push(number);
    }

    /// Whether the write with this number produced this document or a recent predecessor.
    pub(super) fn includes_write(&self, number: u64) -> bool {
        self.writes.contains(&number)
    }

    pub(super) fn to_new_document(&self) -> Result<NewDocument> {
        Ok(NewDocument { body: write(self)?, facts: annotations(&self.record), keep: None })
    }
}

fn acquired_or_renewed(op: &LockOp) -> Option<LeaseId> {
    match op {
        LockOp::Acquire(acquire) => Some(acquire.request.lease_id),
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => Some(renew.lease_id),
        _ => None,
    }
}

fn annotations(record: &LockRecord) -> Vec<(&'static str, Annotation)> {
    let status = if record.holders.is_empty() { "free" } else { "held" };
    let mut annotations = vec![
        ("status", Annotation::Text(status.to_owned())),
        ("token", Annotation::Number(record.token.get())),
    ];
    if !record.waiters.is_empty() {
        annotations.push(("waiters", Annotation::Number(record.waiters.len() as u64)));
    }
    if let Some(lease) = record.holders.first() {
        annotations.push(("holder", Annotation::Text(lease.request.holder.to_string())));
        annotations.push(("lease_id", Annotation::Text(lease.request.lease_id.to_string())));
        annotations.push(("acquired_at", Annotation::Text(lease.acquired_at.to_string())));
        annotations.push(("expires_at", Annotation::Text(lease.expires_at.to_string())));
        if !lease.request.metadata.is_empty() {
            let metadata = lease.request.metadata.iter();
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            annotations.push(("metadata", Annotation::Texts(metadata)));
        }
    }
    annotations
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| {
        Error::store(StoreErrorKind::Broken, "a stored lock cannot be read", "restore it from a backup")
            .because(error)
    })
}

pub(super) fn write<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        Error::store(StoreErrorKind::Broken, "a lock cannot be written as JSON", "please report this")
            .because(error)
    })
}

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
