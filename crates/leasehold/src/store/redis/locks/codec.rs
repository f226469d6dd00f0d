//! Codec of records, leases, tickets and events of the scripts: big-endian, numbers as doubles (they
//! stay below 2^53, so they are exact), texts with a length prefix. `prologue.lua` describes the
//! formats.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::error::unreadable;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Ask, Asked, Event, EventKind, Holder, Lease, LeaseId, LockName, LockRecord, Metadata, Mode, Priority,
    Process, Reason, Slots, Status, Ticket, Timestamp, Token, Ttl,
};

/// Formats of a record: the waiters follow inside the record, as older versions wrote it, or are in
/// a list.
const INLINE: u8 = 1;
const LISTED: u8 = 2;

/// Packs the identity of a request, which every event contains.
pub(super) fn identity(request: &Ask) -> Vec<u8> {
    let mut packed = Vec::with_capacity(20 + request.holder.as_str().len());
    packed.extend(request.lease_id.as_uuid().as_bytes());
    packed.push(u8::from(request.mode == Mode::Shared));
    packed.extend(u16::try_from(request.slots.get()).unwrap_or(u16::MAX).to_be_bytes());
    short(&mut packed, request.holder.as_str().as_bytes());
    packed
}

/// Packs the remaining data of a request: the boot of its process, which the rules need, and data
/// that the rules do not need. The latter is mostly empty and then not stored: every byte of a
/// record costs at every operation.
pub(super) fn extras(request: &Ask) -> Result<Vec<u8>> {
    let Ask { priority, metadata, process, .. } = request;
    let mut packed = Vec::with_capacity(256);
    let boot = process.as_ref().map(|process| process.boot.0);
    short(&mut packed, boot.as_ref().map_or(&[], |boot| boot.as_bytes()));
    let length_at = packed.len();
    packed.extend([0; 4]);
    if *priority != Priority::default() || !metadata.is_empty() || process.is_some() {
        let rest = ExtraFields { priority: *priority, metadata: metadata.clone(), process: process.clone() };
        serde_json::to_writer(&mut packed, &rest).map_err(|error| {
            Error::store(StoreErrorKind::Broken, "a request cannot be written", "please report this")
                .because(error)
        })?;
    }
    let length = u32::try_from(packed.len() - length_at - 4).unwrap_or(u32::MAX);
    packed[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(packed)
}

/// Data of a request that the rules do not need, or not in this form.
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

/// Whether the waiters are in a list beside this record.
pub(super) fn has_waiter_list(packed: &[u8]) -> bool {
    packed.first() == Some(&LISTED)
}

/// Reads a record as stored under the key of its lock, with the list of its waiters, if it has one.
pub(super) fn record(name: &LockName, packed: &[u8], listed: &[Vec<u8>]) -> Result<LockRecord> {
    let mut from = Reader(packed);
    from.record(name, listed).ok_or_else(|| unreadable(&format!("the record of lock '{name}'")))
}

/// Reads the first lease of a record.
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

struct Reader<'a>(&'a [u8]);

/// First fields of a record.
struct Head {
    format: u8,
    version: u64,
    token: Token,
    leases: u16,
    tickets: u16,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn count(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: whole, not negative and at most 2^53"
    )]
    fn number(&mut self) -> Option<u64> {
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

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(usize::from(length))
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.short()?).ok()
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(usize::try_from(length).ok()?)
    }

    fn record(&mut self, name: &LockName, listed: &[Vec<u8>]) -> Option<LockRecord> {
        let Head { format, version, token, leases, tickets } = self.head()?;
        let holders = (0..leases).map(|_| Reader(self.long()?).lease()).collect::<Option<_>>()?;
        let waiters = if format == LISTED {
            listed.iter().map(|ticket| Reader(ticket).ticket()).collect::<Option<_>>()?
        } else {
            (0..tickets).map(|_| Reader(self.long()?).ticket()).collect::<Option<_>>()?
        };
        Some(LockRecord { name: name.clone(), token, holders, waiters, version })
    }

    fn head(&mut self) -> Option<Head> {
        let format = self.byte().filter(|format| [INLINE, LISTED].contains(format))?;
        let (version, token, _wake_at) = (self.number()?, self.token()?, self.number()?);
        let _last_event = self.short()?;
        Some(Head { format, version, token, leases: self.count()?, tickets: self.count()? })
    }

    fn token(&mut self) -> Option<Token> {
        Token::new(self.number()?).ok()
    }

    fn lease(&mut self) -> Option<Lease> {
        let token = self.token()?;
        let (acquired_at, renewed_at, expires_at) = (self.time()?, self.time()?, self.time()?);
        let (renewals, ttl) = (self.number()?, self.ttl()?);
        let status = match self.byte()? {
            0 => Status::Active,
            1 => Status::Releasing,
            2 => Status::Released,
            _ => return None,
        };
        let at = self.time()?;
        let mut ask = self.request(ttl)?;
        if status == Status::Released {
            ask.process = None;
        }
        let by = non_empty(self.text()?, |text| Holder::new(text)).ok()?;
        let reason = non_empty(self.text()?, |text| Reason::new(text)).ok()?;
        let asked = by.map(|by| Asked { by, reason, at });
        let ask = Arc::new(ask);
        Some(Lease {
            ask,
            token,
            acquired_at,
            renewed_at,
            expires_at,
            renewals,
            status,
            asked,
            took_over: None,
        })
    }

    fn ticket(&mut self) -> Option<Ticket> {
        let (since, expires_at, patience) = (self.time()?, self.time()?, self.ttl()?);
        let (ttl, _priority, _inbox) = (self.ttl()?, self.array::<8>()?, self.short()?);
        Some(Ticket { ask: Arc::new(self.request(ttl)?), since, expires_at, patience })
    }

    fn request(&mut self, ttl: Ttl) -> Option<Ask> {
        let (lease_id, mode, slots, holder) = self.identity()?;
        let holder = Holder::new(holder).ok()?;
        let _boot = self.short()?;
        let ExtraFields { priority, metadata, process } = match self.long()? {
            [] => ExtraFields::default(),
            rest => serde_json::from_slice(rest).ok()?,
        };
        Some(Ask { lease_id, holder, mode, slots, priority, ttl, metadata, process })
    }

    fn identity(&mut self) -> Option<(LeaseId, Mode, Slots, &'a str)> {
        let lease_id = LeaseId::from_uuid(Uuid::from_bytes(self.array()?));
        let mode = if self.byte()? == 0 { Mode::Exclusive } else { Mode::Shared };
        let slots = Slots::new(u32::from(self.count()?)).ok()?;
        Some((lease_id, mode, slots, self.text()?))
    }

    fn event(&mut self) -> Option<Event> {
        let kind = match self.byte()? {
            0 => EventKind::Acquired,
            1 => EventKind::Released,
            2 => EventKind::Expired,
            3 => EventKind::Stolen,
            4 => EventKind::Forced,
            5 => EventKind::Asked,
            6 => EventKind::Queued,
            7 => EventKind::Left,
            8 => EventKind::Renewed,
            _ => return None,
        };
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

/// Converts an empty text to `None`.
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

    /// Record in format 1, which every later version must still read.
    const STORED: &str = "01401000000000000043182890607900004318289062db5a140f313739343732373830343737362d30000100010000006043 \
        18289060790000431828906079000043182890607900244318289067a00e243ff0000000000000417c9c3800000000014318 \
        28906079001c0000000000000000000000000000000100000103616461000000000003657665066465706c6f790000006e43 \
        182890607900144318289062db5a14416312d000000000418c9c3800000000400800000000000002696e0000000000000000 \
        000000000000000200000103626f6200000000277b227072696f72697479223a332c226d65746164617461223a7b22686f73 \
        74223a226831227d7d0000006e";

    #[test]
    fn a_record_of_format_1_is_read() {
        let hex: String = STORED.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let packed: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let record = record(&LockName::new("terraform-prod").unwrap(), &packed, &[]).unwrap();
        assert_eq!((record.token.get(), record.version), (1_700_000_000_000_000, 4));
        let [lease] = &record.holders[..] else { panic!("{record:?}") };
        assert_eq!((lease.ask.holder.as_str(), lease.status, lease.renewals), ("ada", Status::Releasing, 1));
        assert_eq!(lease.expires_at.as_micros(), 1_700_000_030_000_009);
        assert_eq!(lease.asked.as_ref().unwrap().by.as_str(), "eve");
        let [ticket] = &record.waiters[..] else { panic!("{record:?}") };
        assert_eq!((ticket.ask.holder.as_str(), ticket.ask.priority.get()), ("bob", 3));
        assert_eq!(ticket.ask.metadata.get("host"), Some("h1"));
        assert_eq!(ticket.since.as_micros(), 1_700_000_000_000_005);
    }

    #[test]
    fn invalid_records_are_rejected() {
        let name = LockName::new("lock").unwrap();
        for packed in [&b""[..], b"\x01", b"\x02", b"hello", &[0xff; 100]] {
            assert_eq!(record(&name, packed, &[]).unwrap_err().code(), "STORE_BROKEN");
        }
        assert!(lease(&[0; 70]).is_err());
        assert!(event(&[9; 70]).is_err());
    }
}
