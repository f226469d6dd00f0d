//! Locks for the tests of this folder, created by the rules of the model at fixed times.

use std::sync::Arc;

use leasehold::LockStatus;
use leasehold::model::{
    Acquire, Holder, Lease, LeaseId, LockName, LockOp, LockRecord, LockRequest, Member, Metadata, Mode,
    Outcome, Priority, Reason, Release, Renew, RequestRelease, Slots, Timestamp, Ttl,
};

/// 2024-11-05T14:31:45Z.
const START: u64 = 1_730_817_105_000_000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(START + seconds * 1_000_000)
}

fn lock_request(holder: &str, number: u64) -> LockRequest {
    let mut metadata = Metadata::default();
    metadata.set("command", format!("work of\n{holder}")).expect("a valid value");
    LockRequest {
        lease_id: format!("00000000-0000-7000-8000-{number:012x}").parse::<LeaseId>().expect("a valid value"),
        holder: Holder::new(holder).expect("a valid value"),
        mode: Mode::Exclusive,
        slots: Slots::default(),
        priority: Priority::default(),
        ttl: Ttl::from_secs(30),
        metadata,
        process: None,
    }
}

fn acquire(record: &mut LockRecord, request: LockRequest, now: Timestamp) -> Outcome {
    let acquire = Acquire { request: Arc::new(request), queue: Some(Ttl::from_secs(10)), steal_after: None };
    record.apply(&LockOp::Acquire(acquire), now).outcome
}

fn record(name: &str) -> LockRecord {
    LockRecord::new(LockName::new(name).expect("a valid value"))
}

fn granted(name: &str) -> (LockRecord, Lease) {
    let mut record = record(name);
    let Outcome::Granted(lease) = acquire(&mut record, lock_request("ada@web1:4711", 1), at(0)) else {
        panic!("the lock is free");
    };
    (record, lease)
}

/// Returns a lock held for 12 s, renewed once, with a release request and two waiters.
pub(in crate::output) fn held(name: &str) -> LockStatus {
    status(&held_record(name))
}

pub(in crate::output) fn held_record(name: &str) -> (LockRecord, Timestamp) {
    let (mut record, lease) = granted(name);
    let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl: None };
    record.apply(&LockOp::Renew(renew), at(10));
    let stop = RequestRelease {
        token: None,
        by: Holder::new("bob@ci").expect("a valid value"),
        reason: Some(Reason::new("hotfix").expect("a valid value")),
    };
    record.apply(&LockOp::RequestRelease(stop), at(11));
    acquire(&mut record, lock_request("bob@ci:12", 2), at(8));
    let shared = LockRequest { mode: Mode::Shared, ..lock_request("eve@ci:13", 3) };
    acquire(&mut record, shared, at(11));
    (record, at(12))
}

fn status((record, now): &(LockRecord, Timestamp)) -> LockStatus {
    LockStatus::of(record, *now)
}

/// Returns a held lock with this number of waiters.
pub(in crate::output) fn crowded_record(name: &str, waiters: u64) -> (LockRecord, Timestamp) {
    let (mut record, _) = granted(name);
    for number in 1..=waiters {
        acquire(&mut record, lock_request(&format!("w{number}"), 10 + number), at(1));
    }
    (record, at(2))
}

pub(in crate::output) fn shared(name: &str) -> LockStatus {
    status(&shared_record(name))
}

pub(in crate::output) fn shared_record(name: &str) -> (LockRecord, Timestamp) {
    let mut record = record(name);
    for (number, holder) in [(4, "carol"), (5, "dan")] {
        let shared = LockRequest { mode: Mode::Shared, ..lock_request(holder, number) };
        acquire(&mut record, shared, at(number));
    }
    (record, at(12))
}

pub(in crate::output) fn stale(name: &str) -> LockStatus {
    status(&stale_record(name))
}

pub(in crate::output) fn stale_record(name: &str) -> (LockRecord, Timestamp) {
    (granted(name).0, at(33))
}

/// Returns a lock that was held and released.
pub(in crate::output) fn free(name: &str) -> LockStatus {
    let (mut record, lease) = granted(name);
    let release = Release { lease_id: lease.request.lease_id, token: lease.token, at_least: None };
    record.apply(&LockOp::Release(release), at(1));
    LockStatus::of(&record, at(12))
}

/// Returns a lock that was never acquired.
pub(in crate::output) fn unknown_record(name: &str) -> (LockRecord, Timestamp) {
    (record(name), at(12))
}

/// Returns a lock whose lease has not expired but whose process is dead; `None` where the system
/// does not provide process information.
pub(in crate::output) fn dead_process(name: &str) -> Option<(LockRecord, Timestamp)> {
    let mut process = leasehold::store::this_process()?;
    process.members = vec![Member { pid: 1 << 30, started: 1, group: false }];
    let mut record = record(name);
    let request = LockRequest { process: Some(process), ..lock_request("ada@web1:4711", 1) };
    acquire(&mut record, request, at(0));
    Some((record, at(3)))
}
