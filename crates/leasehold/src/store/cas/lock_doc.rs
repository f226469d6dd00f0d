//! Document of a lock: its record, the newest events of its history, and the versions of its last
//! renewals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Applied, Event, LeaseId, LockName, LockOp, LockRecord, Timestamp, Token};
use crate::store::{Annotation, Document, NewDocument};

/// Document of a lock.
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

    /// Returns the number of the next event.
    pub(super) fn next_event(&self) -> u64 {
        self.first_event + self.events.len() as u64
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

/// Returns the lease that an operation acquires or renews.
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
