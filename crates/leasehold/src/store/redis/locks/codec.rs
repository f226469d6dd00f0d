//! Codec of records, leases, tickets and events of the scripts: big-endian, numbers as doubles (they
//! stay below 2^53, so they are exact), texts with a length prefix. `apply.lua` describes the formats.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::error::unreadable;
use super::super::scripts::Reader;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Event, EventKind, Holder, Lease, LeaseId, LeaseStatus, LockName, LockRecord, LockRequest, Metadata, Mode,
    Priority, Process, Reason, Slots, StopRequest, Ticket, Timestamp, Token, TokenFloor, Ttl,
};

const FORMAT: u8 = 2;
/// Earlier format, which has the id of the last event in place of [`RECORD_MARK`].
const OLD_FORMAT: u8 = 1;
/// Follows `wake_at`: makes a script fail that expects the id of the last event there.
const RECORD_MARK: u8 = 255;

/// Kinds of events and states of a lease; their index is stored.
const KINDS: [EventKind; 9] = [
    EventKind::Acquired,
    EventKind::Released,
    EventKind::Expired,
    EventKind::Stolen,
    EventKind::Forced,
    EventKind::ReleaseRequested,
    EventKind::Queued,
    EventKind::Withdrawn,
    EventKind::Renewed,
];
const STATUSES: [LeaseStatus; 3] = [LeaseStatus::Active, LeaseStatus::Releasing, LeaseStatus::Released];

pub(super) struct StoredLock {
    pub(super) record: LockRecord,
    /// Lower bound of the first expiry of a lease or ticket.
    pub(super) wake_at: Timestamp,
    /// Packed tickets, in the order of the waiters of the record.
    pub(super) tickets: Vec<Vec<u8>>,
}

impl StoredLock {
    pub(super) fn without_record(name: &LockName, min_token: Token) -> Self {
        let record = LockRecord::without_record(name.clone(), TokenFloor::at(min_token));
        Self { record, wake_at: Timestamp::default(), tickets: Vec::new() }
    }

    pub(super) fn address_of(&self, id: &LeaseId) -> Option<&[u8]> {
        let index = self.record.waiters.iter().position(|ticket| ticket.request.lease_id == *id)?;
        let mut from = Reader(&self.tickets[index]);
        from.take(5 * 8)?;
        from.short()
    }
}

/// Packs the identity of a request, which every event contains.
pub(super) fn identity(request: &LockRequest) -> Vec<u8> {
    let mut packed = Vec::with_capacity(20 + request.holder.as_str().len());
    pack_identity(&mut packed, (&request.lease_id, request.mode, request.slots, &request.holder));
    packed
}

fn pack_identity(packed: &mut Vec<u8>, (id, mode, slots, holder): (&LeaseId, Mode, Slots, &Holder)) {
    packed.extend(id.as_uuid().as_bytes());
    packed.push(u8::from(mode == Mode::Shared));
    packed.extend(u16::try_from(slots.get()).unwrap_or(u16::MAX).to_be_bytes());
    short(packed, holder.as_str().as_bytes());
}

/// Packs the remaining data of a request, which scripts do not read. It is mostly empty and then not
/// stored: every byte of a record costs at every operation.
pub(super) fn extras(request: &LockRequest) -> Result<Vec<u8>> {
    let LockRequest { priority, metadata, process, .. } = request;
    let mut packed = Vec::with_capacity(256);
    packed.extend([0; 4]);
    if *priority != Priority::default() || !metadata.is_empty() || process.is_some() {
        let rest = ExtraFields { priority: *priority, metadata: metadata.clone(), process: process.clone() };
        serde_json::to_writer(&mut packed, &rest).map_err(|error| {
            Error::store(StoreErrorKind::Broken, "a request cannot be written", "please report this")
                .because(error)
        })?;
    }
    let length = u32::try_from(packed.len() - 4).unwrap_or(u32::MAX);
    packed[..4].copy_from_slice(&length.to_be_bytes());
    Ok(packed)
}

/// Data of a request that scripts do not read, or not in this form.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ExtraFields {
    priority: Priority,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
}

/// Appends a text that `Bc0` reads: names, holders, reasons and ids all have at most 255 bytes.
fn short(packed: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(255)];
    packed.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    packed.extend(text);
}

#[expect(clippy::cast_precision_loss, reason = "times, durations and tokens are below 2^53")]
pub(super) fn double(packed: &mut Vec<u8>, number: u64) {
    packed.extend((number as f64).to_be_bytes());
}

pub(super) fn pack_lease(lease: &Lease) -> Result<Vec<u8>> {
    let mut packed = Vec::with_capacity(256);
    double(&mut packed, lease.token.get());
    for time in [lease.acquired_at, lease.renewed_at, lease.expires_at] {
        double(&mut packed, time.as_micros());
    }
    double(&mut packed, lease.renewals);
    double(&mut packed, lease.request.ttl.as_micros());
    packed.push(index_of(&STATUSES, lease.status));
    let asked = lease.release_request.as_ref();
    double(&mut packed, asked.map_or(0, |asked| asked.at.as_micros()));
    packed.extend(identity(&lease.request));
    packed.extend(extras(&lease.request)?);
    short(&mut packed, asked.map_or(&[], |asked| asked.by.as_str().as_bytes()));
    short(&mut packed, reason(asked.and_then(|asked| asked.reason.as_ref())));
    Ok(packed)
}

/// Packs a ticket whose waiter is notified at `address`.
pub(super) fn pack_ticket(ticket: &Ticket, address: &[u8]) -> Result<Vec<u8>> {
    let Ticket { request, since, expires_at, ticket_ttl } = ticket;
    let mut packed = Vec::with_capacity(256);
    for number in [since.as_micros(), expires_at.as_micros(), ticket_ttl.as_micros(), request.ttl.as_micros()]
    {
        double(&mut packed, number);
    }
    packed.extend(f64::from(request.priority.get()).to_be_bytes());
    short(&mut packed, address);
    packed.extend(identity(request));
    packed.extend(extras(request)?);
    Ok(packed)
}

/// Packs an event.
pub(super) fn pack_event(event: &Event) -> Vec<u8> {
    let mut packed = vec![index_of(&KINDS, event.kind)];
    let until = event.until.unwrap_or_default().as_micros();
    for number in [event.at.as_micros(), event.token.get(), event.after_micros, event.renewals, until] {
        double(&mut packed, number);
    }
    // Earlier versions stored the id of the event before here.
    short(&mut packed, &[]);
    short(&mut packed, event.by.as_ref().map_or(&[], |by| by.as_str().as_bytes()));
    short(&mut packed, reason(event.reason.as_ref()));
    short(&mut packed, event.lock.as_str().as_bytes());
    pack_identity(&mut packed, (&event.lease_id, event.mode, event.slots, &event.holder));
    packed
}

/// Packs the format and the token of a record, and the part of it that follows the mark.
pub(super) fn pack_record(record: &LockRecord) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut head = vec![FORMAT];
    double(&mut head, record.token.get());
    let mut body = Vec::with_capacity(256);
    for count in [record.holders.len(), record.waiters.len()] {
        body.extend(u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
    }
    for lease in &record.holders {
        let lease = pack_lease(lease)?;
        body.extend(u32::try_from(lease.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend(lease);
    }
    if let Some(last) = record.waiters.last() {
        body.extend(rank(last).to_be_bytes());
    }
    for ticket in &record.waiters {
        body.extend(ticket.request.lease_id.as_uuid().as_bytes());
    }
    Ok((head, body))
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53, as the times that it is made of")]
fn rank(ticket: &Ticket) -> f64 {
    ticket.rank() as f64
}

fn reason(reason: Option<&Reason>) -> &[u8] {
    reason.map_or(&[], |reason| reason.as_str().as_bytes())
}

fn index_of<T: PartialEq + Copy>(all: &[T], one: T) -> u8 {
    let index = all.iter().position(|other| *other == one);
    index.and_then(|index| u8::try_from(index).ok()).unwrap_or(u8::MAX)
}

/// Whether a lock has waiters, which are in a list beside this record.
pub(super) fn has_waiters(packed: &[u8]) -> bool {
    Reader(packed).head().is_some_and(|head| head.tickets > 0)
}

/// Reads a record as stored under the key of its lock, with the list of its waiters.
pub(super) fn stored_lock(name: &LockName, packed: &[u8], listed: Vec<Vec<u8>>) -> Result<StoredLock> {
    let mut from = Reader(packed);
    from.stored_lock(name, listed).ok_or_else(|| unreadable(&format!("the record of lock '{name}'")))
}

pub(super) fn first_lease(packed: &[u8]) -> Result<Lease> {
    let mut from = Reader(packed);
    let lease = from.head().and_then(|_| Reader(from.long()?).lease());
    lease.ok_or_else(|| unreadable("a lease"))
}

pub(super) fn lease(packed: &[u8]) -> Result<Lease> {
    Reader(packed).lease().ok_or_else(|| unreadable("a lease"))
}

/// Reads the message of a process that has granted a lease to a waiter of another process: the
/// lease's id, the id of an acquire attempt, the lease.
pub(super) fn handed_over(message: &[u8]) -> Option<(Lease, u64)> {
    let mut from = Reader(message);
    let (_id, attempt_id) = (from.array::<16>()?, from.array().map(u64::from_be_bytes)?);
    Some((from.lease()?, attempt_id))
}

pub(super) fn event(packed: &[u8]) -> Result<Event> {
    Reader(packed).event().ok_or_else(|| unreadable("an event"))
}

struct Head {
    version: u64,
    token: Token,
    wake_at: Timestamp,
    leases: u16,
    tickets: u16,
}

impl<'a> Reader<'a> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: whole, not negative and at most 2^53"
    )]
    pub(super) fn number(&mut self) -> Option<u64> {
        let number = f64::from_be_bytes(self.array()?);
        let good = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
        good.then_some(number as u64)
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    fn ttl(&mut self) -> Option<Ttl> {
        Ttl::try_from(self.number()?).ok()
    }

    fn stored_lock(&mut self, name: &LockName, listed: Vec<Vec<u8>>) -> Option<StoredLock> {
        let Head { version, token, wake_at, leases, tickets } = self.head()?;
        let holders = (0..leases).map(|_| Reader(self.long()?).lease()).collect::<Option<_>>()?;
        // A lost record may have left a list.
        let tickets = if tickets > 0 { listed } else { Vec::new() };
        let waiters = tickets.iter().map(|ticket| Reader(ticket).ticket()).collect::<Option<_>>()?;
        let record = LockRecord { name: name.clone(), token, holders, waiters, version };
        Some(StoredLock { record, wake_at, tickets })
    }

    fn head(&mut self) -> Option<Head> {
        let format = self.byte().filter(|format| [FORMAT, OLD_FORMAT].contains(format))?;
        let (version, token, wake_at) = (self.number()?, self.token()?, self.time()?);
        if format == OLD_FORMAT {
            let _last_event = self.short()?;
        } else {
            self.byte().filter(|mark| *mark == RECORD_MARK)?;
        }
        Some(Head { version, token, wake_at, leases: self.u16()?, tickets: self.u16()? })
    }

    fn token(&mut self) -> Option<Token> {
        Token::new(self.number()?).ok()
    }

    fn lease(&mut self) -> Option<Lease> {
        let token = self.token()?;
        let (acquired_at, renewed_at, expires_at) = (self.time()?, self.time()?, self.time()?);
        let (renewals, ttl) = (self.number()?, self.ttl()?);
        let status = *STATUSES.get(usize::from(self.byte()?))?;
        let at = self.time()?;
        let request = Arc::new(self.request(ttl)?);
        let by = non_empty(self.text()?, |text| Holder::new(text)).ok()?;
        let reason = non_empty(self.text()?, |text| Reason::new(text)).ok()?;
        let asked = by.map(|by| StopRequest { by, reason, at });
        Some(Lease {
            request,
            token,
            acquired_at,
            renewed_at,
            expires_at,
            renewals,
            status,
            release_request: asked,
            took_over: None,
        })
    }

    fn ticket(&mut self) -> Option<Ticket> {
        let (since, expires_at, ticket_ttl) = (self.time()?, self.time()?, self.ttl()?);
        let (ttl, _priority, _inbox) = (self.ttl()?, self.array::<8>()?, self.short()?);
        Some(Ticket { request: Arc::new(self.request(ttl)?), since, expires_at, ticket_ttl })
    }

    fn request(&mut self, ttl: Ttl) -> Option<LockRequest> {
        let (lease_id, mode, slots, holder) = self.identity()?;
        let holder = Holder::new(holder).ok()?;
        let ExtraFields { priority, metadata, process } = match self.long()? {
            [] => ExtraFields::default(),
            rest => serde_json::from_slice(rest).ok()?,
        };
        Some(LockRequest { lease_id, holder, mode, slots, priority, ttl, metadata, process })
    }

    fn identity(&mut self) -> Option<(LeaseId, Mode, Slots, &'a str)> {
        let lease_id = LeaseId::from_uuid(Uuid::from_bytes(self.array()?));
        let mode = if self.byte()? == 0 { Mode::Exclusive } else { Mode::Shared };
        let slots = Slots::new(u32::from(self.u16()?)).ok()?;
        Some((lease_id, mode, slots, self.text()?))
    }

    fn event(&mut self) -> Option<Event> {
        let kind = *KINDS.get(usize::from(self.byte()?))?;
        let (at, token, after_micros, renewals) =
            (self.time()?, self.token()?, self.number()?, self.number()?);
        let until = self.time().map(|until| (until != Timestamp::default()).then_some(until))?;
        let _before = self.short()?;
        let by = non_empty(self.text()?, |text| Holder::new(text)).ok()?;
        let reason = non_empty(self.text()?, |text| Reason::new(text)).ok()?;
        let lock = LockName::new(self.text()?).ok()?;
        let (lease_id, mode, slots, holder) = self.identity()?;
        let holder = Holder::new(holder).ok()?;
        Some(Event {
            at,
            lock,
            kind,
            token,
            lease_id,
            holder,
            mode,
            slots,
            after_micros,
            renewals,
            until,
            by,
            reason,
        })
    }
}

fn non_empty<T>(
    text: &str,
    checked: impl FnOnce(&str) -> Result<T, crate::model::ValidationError>,
) -> Result<Option<T>, ()> {
    match text {
        "" => Ok(None),
        text => checked(text).map(Some).map_err(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Record with one lease and one waiter, which every later version must still read.
    const RECORD: &str = "02401000000000000043182890607900004318289062db5a14ff000100010000005f43182890607900004318289060790000 \
        43182890607900244318289067a00e243ff0000000000000417c9c380000000001431828906079001c000000000000000000 \
        00000000000001000001036164610000000003657665066465706c6f79431828904b03d61400000000000000000000000000 \
        000002";

    /// The same record in format 1.
    const RECORD_OLD: &str = "01401000000000000043182890607900004318289062db5a140f313739343732373830343737362d30000100010000005f43 \
        18289060790000431828906079000043182890607900244318289067a00e243ff0000000000000417c9c3800000000014318 \
        28906079001c00000000000000000000000000000001000001036164610000000003657665066465706c6f79431828904b03 \
        d61400000000000000000000000000000002";

    /// Ticket of that waiter.
    const TICKET: &str = "43182890607900144318289062db5a14416312d000000000418c9c3800000000400800000000000002696e00000000000000 \
        00000000000000000200000103626f62000000277b227072696f72697479223a332c226d65746164617461223a7b22686f73 \
        74223a226831227d7d";

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_stored_record_is_read() {
        let (packed, name) = (bytes(RECORD), LockName::new("terraform-prod").unwrap());
        assert!(has_waiters(&packed));
        let stored = stored_lock(&name, &packed, vec![bytes(TICKET)]).unwrap();
        let record = &stored.record;
        assert_eq!((record.token.get(), record.version), (1_700_000_000_000_000, 4));
        let [lease] = &record.holders[..] else { panic!("{record:?}") };
        assert_eq!(
            (lease.request.holder.as_str(), lease.status, lease.renewals),
            ("ada", LeaseStatus::Releasing, 1)
        );
        assert_eq!(lease.expires_at.as_micros(), 1_700_000_030_000_009);
        assert_eq!(lease.release_request.as_ref().unwrap().by.as_str(), "eve");
        let [ticket] = &record.waiters[..] else { panic!("{record:?}") };
        assert_eq!((ticket.request.holder.as_str(), ticket.request.priority.get()), ("bob", 3));
        assert_eq!(ticket.request.metadata.get("host"), Some("h1"));
        assert_eq!(ticket.since.as_micros(), 1_700_000_000_000_005);
        let address = stored.address_of(&ticket.request.lease_id).unwrap();
        assert_eq!(address, b"in");
        let old = stored_lock(&name, &bytes(RECORD_OLD), vec![bytes(TICKET)]).unwrap();
        assert_eq!((&old.record, old.wake_at), (record, stored.wake_at));
        // What is written is the same as what was read.
        assert_eq!(pack_ticket(ticket, address).unwrap(), stored.tickets[0]);
        let (head, body) = pack_record(record).unwrap();
        assert!(
            packed.starts_with(&head[..1]) && packed[9..].starts_with(&head[1..]) && packed.ends_with(&body)
        );
    }

    #[test]
    fn invalid_records_are_rejected() {
        let name = LockName::new("lock").unwrap();
        for packed in [&b""[..], b"\x01", b"\x02", b"\x03", b"hello", &[0xff; 100]] {
            let stored = stored_lock(&name, packed, Vec::new());
            assert_eq!(stored.err().unwrap().code(), "STORE_BROKEN");
        }
        assert!(lease(&[0; 70]).is_err());
        assert!(event(&[9; 70]).is_err());
    }
}
