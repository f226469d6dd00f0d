//! Document of a lock: its record, the newest events of its history, and the versions of its last
//! renewals. Also the state of a lock in this process, which its callers pass on to each other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Applied, Event, EventKind, LeaseId, LockName, LockOp, LockRecord, Outcome, Release, Timestamp, Token,
};
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
/// Number of events of one change that are always recorded.
const MIN_EVENTS: usize = 4;
/// Size in bytes up to which a document may grow by the events of one change. DynamoDB allows 400 KB
/// for the document and what is copied from it.
const MAX_GROWN: usize = 320 << 10;

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

    /// Adds the events of a change, which was applied to the document `before`. When many leases and
    /// tickets end at once, their events may need more space than they did, and engines limit the
    /// size of a document. So of many events, those are left out that would make the document
    /// larger than before: the ends of tickets first, and then the oldest. Otherwise no operation on
    /// the lock would succeed any more, because each one has to end them.
    pub(super) fn add_events(&mut self, events: &[Event], before: &Self) -> Result<()> {
        if events.len() <= MIN_EVENTS {
            self.events.extend_from_slice(events);
            return Ok(());
        }
        let mut room = write(before)?.len().max(MAX_GROWN).saturating_sub(write(self)?.len());
        let mut ranked: Vec<usize> = (0..events.len()).rev().collect();
        ranked.sort_by_key(|index| events[*index].kind == EventKind::Withdrawn);
        let mut recorded = vec![false; events.len()];
        for (rank, index) in ranked.into_iter().enumerate() {
            let size = write(&events[index])?.len() + 1;
            if size > room && rank >= MIN_EVENTS {
                let (lock, left_out) = (&self.record.name, events.len() - rank);
                tracing::warn!(%lock, left_out, "too many leases or tickets ended at once: some events are not recorded");
                break;
            }
            room = room.saturating_sub(size);
            recorded[index] = true;
        }
        let recorded = events.iter().zip(recorded).filter(|(_, is_recorded)| *is_recorded);
        self.events.extend(recorded.map(|(event, _)| event.clone()));
        Ok(())
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

    /// Returns whether the document may no longer contain the number of the first write after `before`: it
    /// keeps the numbers of the last [`MAX_WRITES`] only.
    pub(super) fn may_omit_writes_since(&self, before: &Self) -> bool {
        let last = before.writes.last();
        self.writes.len() >= MAX_WRITES && last.is_none_or(|last| !self.writes.contains(last))
    }

    /// Whether `op` may have been executed before this document was written, so that `outcome` would be the
    /// outcome of a repetition.
    pub(super) fn may_be_after(&self, op: &LockOp, outcome: &Outcome) -> bool {
        match (op, outcome) {
            (LockOp::Release(Release { token, at_least: None, .. }), Outcome::NotHeld(_)) => {
                self.may_have_ended(*token, EventKind::Released)
            }
            (LockOp::ForceRelease(force), Outcome::NotHeld(_)) => {
                self.may_have_ended(force.token, EventKind::Forced)
            }
            (LockOp::Release(_) | LockOp::RequestRelease(_), Outcome::NotHeld(_)) => true,
            (LockOp::RequestRelease(request), Outcome::ReleaseRequested(_)) => {
                let mut asked = self.record.holders.iter().filter_map(|lease| lease.release_request.as_ref());
                asked.any(|asked| asked.by == request.by && asked.reason == request.reason)
            }
            _ => false,
        }
    }

    /// Whether the lease with this token may have ended in this way, as far as the document shows.
    fn may_have_ended(&self, token: Token, kind: EventKind) -> bool {
        let ends = [EventKind::Released, EventKind::Expired, EventKind::Stolen, EventKind::Forced];
        let end = self.events.iter().find(|event| event.token == token && ends.contains(&event.kind));
        self.record.holders.iter().all(|lease| lease.token != token)
            && end.is_none_or(|event| event.kind == kind)
    }

    pub(super) fn to_new_document(&self) -> Result<NewDocument> {
        Ok(NewDocument { body: write(self)?, annotations: annotations(&self.record), keep: None })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::model::{Acquire, Holder, LockRequest, MAX_WAITERS, Ttl};

    fn acquire(number: u128, queue: Option<Ttl>) -> LockOp {
        let lease_id = LeaseId::from_uuid(Uuid::from_u128(number));
        let request = LockRequest::new(lease_id, Holder::new("h".repeat(255)).unwrap(), Ttl::from_secs(10));
        LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after: None })
    }

    fn size(doc: &LockDoc) -> usize {
        doc.to_new_document().unwrap().body.len()
    }

    #[test]
    fn the_end_of_all_tickets_makes_no_document_larger_than_before() {
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let mut before = LockDoc::new(&LockName::new("n".repeat(255)).unwrap());
        for number in 1..=MAX_WAITERS as u128 {
            before.apply(&acquire(number, Some(Ttl::from_secs(10))), start);
        }
        let mut doc = before.clone();
        let applied = doc.apply(&acquire(0, None), start.plus(Ttl::from_secs(60)));
        assert!(matches!(applied.outcome, Outcome::Granted(_)));
        let mut whole = doc.clone();
        whole.events.extend(applied.events.iter().cloned());
        doc.add_events(&applied.events, &before).unwrap();
        assert!(size(&whole) > size(&before), "the test proves nothing");
        assert!(size(&doc) <= size(&before), "{} > {}", size(&doc), size(&before));
        let kinds: Vec<_> = doc.events.iter().map(|event| event.kind).collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&EventKind::Expired), Some(&EventKind::Acquired)));
        assert!(kinds.len() > 100, "{}", kinds.len());
    }

    #[test]
    fn all_events_of_a_small_document_are_recorded() {
        let start = Timestamp::from_micros(1_700_000_000_000_000);
        let mut before = LockDoc::new(&LockName::new("lock").unwrap());
        for number in 1..=20 {
            before.apply(&acquire(number, Some(Ttl::from_secs(10))), start);
        }
        let mut doc = before.clone();
        let applied = doc.apply(&acquire(0, None), start.plus(Ttl::from_secs(60)));
        doc.add_events(&applied.events, &before).unwrap();
        assert_eq!(doc.events, applied.events);
    }
}
