//! Mutants of the rules for leases and their tokens.

use std::sync::Arc;

use leasehold_model::{
    Acquire, Applied, EventKind, ForceRelease, Lease, LockOp, LockRecord, Mode, Outcome, Release, Renew,
    Slots, Sweep, Timestamp, Ttl,
};

pub(super) fn grant_keeps_token(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let old = record.token;
    let mut applied = record.apply(op, now);
    if old.get() == 0 {
        return applied; // The first token has to come from somewhere.
    }
    record.token = old;
    let answered = match &mut applied.outcome {
        Outcome::Granted(lease) => Some(lease),
        _ => None,
    };
    for lease in record.holders.iter_mut().chain(&mut applied.handed_over).chain(answered) {
        lease.token = lease.token.min(old);
    }
    for event in &mut applied.events {
        event.token = event.token.min(old);
    }
    applied
}

/// The fault shows only while the time does not change: a later time raises the token, too.
pub(super) fn counter_is_reset(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let applied = record.apply(op, now);
    if record.holders.is_empty() && record.waiters.is_empty() {
        *record = LockRecord::new(record.name.clone());
    }
    applied
}

pub(super) fn any_holder_releases(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match (op, record.holders.first()) {
        (LockOp::Release(release), Some(lease)) => {
            let (lease_id, token) = (lease.request.lease_id, lease.token);
            record.apply(&LockOp::Release(Release { lease_id, token, ..release.clone() }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn old_token_releases(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    if let LockOp::Release(release) = op
        && let Some(lease) = record.lease(&release.lease_id)
    {
        let token = lease.token;
        return record.apply(&LockOp::Release(Release { token, ..release.clone() }), now);
    }
    record.apply(op, now)
}

pub(super) fn any_holder_renews(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match (op, record.holders.first()) {
        (LockOp::Renew(renew), Some(lease)) => {
            let (lease_id, token, ttl) = (lease.request.lease_id, lease.token, renew.ttl);
            record.apply(&LockOp::Renew(Renew { lease_id, token, ttl }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn renewal_revives(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    if let LockOp::Renew(renew) = op {
        for lease in &mut record.holders {
            if lease.request.lease_id == renew.lease_id {
                lease.expires_at = lease.expires_at.max(now.plus(Ttl::MIN));
            }
        }
    }
    record.apply(op, now)
}

pub(super) fn lease_never_ends(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    for lease in &mut record.holders {
        lease.expires_at = lease.expires_at.max(now.plus(Ttl::MIN));
    }
    record.apply(op, now)
}

pub(super) fn lease_ends_early(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    for lease in &mut record.holders {
        if lease.expires_at <= now.plus(Ttl::MIN) {
            lease.expires_at = now;
        }
    }
    record.apply(op, now)
}

/// Returns the new time and stores the old one.
pub(super) fn renewal_adds_nothing(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let before = record.clone();
    let applied = record.apply(op, now);
    if matches!(applied.outcome, Outcome::Renewed(_)) {
        *record = before;
    }
    applied
}

pub(super) fn force_keeps_the_token(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let old = record.token;
    let applied = record.apply(op, now);
    if matches!(applied.outcome, Outcome::Forced(_)) && applied.handed_over.is_empty() {
        record.token = old;
    }
    applied
}

pub(super) fn force_ignores_token(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match (op, record.holders.first()) {
        (LockOp::ForceRelease(force), Some(lease)) => {
            let token = lease.token;
            record.apply(&LockOp::ForceRelease(ForceRelease { token, ..force.clone() }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn repeated_acquire_grants_again(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    if let LockOp::Acquire(acquire) = op {
        record.holders.retain(|lease| lease.request.lease_id != acquire.request.lease_id);
    }
    record.apply(op, now)
}

pub(super) fn sweep_ends_all(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Sweep(_) => {
            let dead = record.holders.iter().map(|lease| lease.request.lease_id).collect();
            record.apply(&LockOp::Sweep(Sweep { dead }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn steal_ignores_staleness(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    if let LockOp::Acquire(Acquire { steal_after: Some(_), .. }) = op {
        for lease in &mut record.holders {
            lease.renewed_at = Timestamp::default();
        }
    }
    record.apply(op, now)
}

pub(super) fn reader_joins_writer(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let mut writers = Vec::new();
    if let LockOp::Acquire(acquire) = op
        && acquire.request.mode == Mode::Shared
    {
        let is_writer = |lease: &mut Lease| lease.request.mode == Mode::Exclusive && now < lease.expires_at;
        writers = record.holders.extract_if(.., is_writer).collect();
    }
    let applied = record.apply(op, now);
    record.holders.append(&mut writers);
    applied
}

pub(super) fn one_slot_too_many(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let LockOp::Acquire(acquire) = op else {
        return record.apply(op, now);
    };
    let mut acquire = acquire.clone();
    let request = Arc::make_mut(&mut acquire.request);
    request.slots = Slots::new(request.slots.get() + 1).unwrap();
    record.apply(&LockOp::Acquire(acquire), now)
}

pub(super) fn holders_limit_is_ignored(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    for lease in &mut record.holders {
        Arc::make_mut(&mut lease.request).slots = Slots::new(1000).unwrap();
    }
    record.apply(op, now)
}

pub(super) fn at_least_is_ignored(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Release(release) => {
            record.apply(&LockOp::Release(Release { at_least: None, ..release.clone() }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn expiry_has_no_event(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let mut applied = record.apply(op, now);
    applied.events.retain(|event| event.kind != EventKind::Expired);
    applied
}

pub(super) fn renewal_is_not_written(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let mut applied = record.apply(op, now);
    applied.changed &= !matches!(applied.outcome, Outcome::Renewed(_));
    applied
}
