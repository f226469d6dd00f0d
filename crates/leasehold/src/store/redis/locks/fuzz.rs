//! Fuzz target of the packed records, leases, tickets and events of locks.

use super::codec::{
    event, first_lease, handed_over, has_waiters, lease, pack_event, pack_lease, pack_record, pack_ticket,
    stored_lock,
};
use crate::fuzz_corpus;
use crate::model::{Event, Lease, LockName, LockRecord, Timestamp};
use crate::testing::fuzz::{Shape, fuzz};

/// Largest number that a double holds exactly.
const MAX_NUMBER: u64 = 1 << 53;

#[test]
fn redis_lock_records_are_read_as_they_were_packed() {
    fuzz(fuzz_corpus!("lock-records"), 3_000, |input| match serde_json::from_slice::<LockRecord>(input) {
        Ok(record) if is_storable(&record) => {
            assert_eq!(unpacked(&record), record);
            Shape::of(&record)
        }
        Ok(_) => Shape::of(&"not storable"),
        Err(error) => Shape::of_text(&error),
    });
}

#[test]
fn redis_events_are_read_as_they_were_packed() {
    fuzz(fuzz_corpus!("events"), 3_000, |input| match serde_json::from_slice::<Event>(input) {
        Ok(stored) if is_storable_event(&stored) => {
            assert_eq!(event(&pack_event(&stored)).unwrap(), stored);
            Shape::of(&stored)
        }
        Ok(_) => Shape::of(&"not storable"),
        Err(error) => Shape::of_text(&error),
    });
}

#[test]
fn redis_locks_of_any_bytes_are_refused_or_read() {
    fuzz(fuzz_corpus!("redis-locks"), 4_000, packed);
}

/// Reads any bytes as each packed form; what can be read is the same after it was packed again.
fn packed(input: &[u8]) -> Shape {
    let name = LockName::new("lock").unwrap();
    let record = stored_lock(&name, input, vec![input.to_vec()]);
    if let Ok(stored) = &record {
        assert!(stored.record.holders.len() * 64 <= input.len(), "each lease was read from bytes");
        assert_eq!(unpacked(&stored.record), stored.record);
        assert_eq!(has_waiters(input), !stored.tickets.is_empty());
    }
    let leases = [first_lease(input).ok(), lease(input).ok(), handed_over(input).map(|(lease, _)| lease)];
    for stored in leases.iter().flatten() {
        assert_eq!(lease(&pack_lease(stored).unwrap()).unwrap(), *stored);
    }
    let stored_event = event(input);
    if let Ok(stored) = &stored_event {
        assert_eq!(event(&pack_event(stored)).unwrap(), *stored);
    }
    Shape::of(&(record.map(|stored| stored.record).ok(), leases, stored_event.ok()))
}

/// Packs a record as the script does, which adds version and time; and reads it.
fn unpacked(record: &LockRecord) -> LockRecord {
    let (head, body) = pack_record(record).unwrap();
    let mut packed = vec![head[0]];
    packed.extend(double(record.version));
    packed.extend(&head[1..]);
    packed.extend(double(7));
    packed.push(255);
    packed.extend(body);
    let tickets = record.waiters.iter().map(|ticket| pack_ticket(ticket, b"address").unwrap()).collect();
    let stored = stored_lock(&record.name, &packed, tickets).expect("a packed record is read");
    for ticket in &stored.record.waiters {
        assert_eq!(stored.address_of(&ticket.request.lease_id), Some(&b"address"[..]));
    }
    stored.record
}

#[expect(clippy::cast_precision_loss, reason = "the number is at most 2^53")]
fn double(number: u64) -> [u8; 8] {
    (number as f64).to_be_bytes()
}

/// Whether the rules can make the record: its times and counts are below 2^53.
fn is_storable(record: &LockRecord) -> bool {
    let tickets = record.waiters.iter().flat_map(|ticket| [ticket.since, ticket.expires_at]);
    record.version <= MAX_NUMBER
        && u16::try_from(record.waiters.len()).is_ok()
        && tickets.into_iter().all(is_storable_time)
        && record.holders.iter().all(is_storable_lease)
}

fn is_storable_lease(lease: &Lease) -> bool {
    let times = [lease.acquired_at, lease.renewed_at, lease.expires_at];
    let asked = lease.release_request.as_ref().map(|asked| asked.at).unwrap_or_default();
    times.into_iter().chain([asked]).all(is_storable_time)
        && lease.renewals <= MAX_NUMBER
        && lease.took_over.is_none()
}

fn is_storable_event(event: &Event) -> bool {
    [event.at.as_micros(), event.after_micros, event.renewals].into_iter().all(|number| number <= MAX_NUMBER)
        && event.until.is_none_or(|until| is_storable_time(until) && until != Timestamp::default())
}

fn is_storable_time(time: Timestamp) -> bool {
    time.as_micros() <= MAX_NUMBER
}
