//! Mutants of the rules for the queue.

use std::sync::Arc;

use leasehold_model::{
    Applied, LeaseId, LockOp, LockRecord, Mode, Outcome, Priority, Sweep, Ticket, Timestamp, Ttl, Withdraw,
};

pub(super) fn newcomer_skips_queue(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Acquire(acquire) if !waits(record, &acquire.request.lease_id) => {
            without(record, op, now, |_| true)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn queue_is_lifo(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let known = record.waiters.len();
    let applied = record.apply(op, now);
    if record.waiters.len() > known {
        record.waiters.rotate_right(1);
    }
    applied
}

pub(super) fn reader_skips_writer(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Acquire(acquire) if acquire.request.mode == Mode::Shared => {
            without(record, op, now, |ticket| ticket.request.mode == Mode::Exclusive)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn priority_is_ignored(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    with_priority(record, op, now, |_| 0)
}

pub(super) fn waiting_is_ignored(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    with_priority(record, op, now, |priority| priority * 1000)
}

pub(super) fn release_grants_nothing(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Release(_) => without(record, op, now, |_| true),
        _ => record.apply(op, now),
    }
}

/// A writer that withdraws leaves the readers behind it waiting, although only readers hold the
/// lock.
pub(super) fn withdraw_grants_nothing(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Withdraw(leave) => {
            without(record, op, now, |ticket| ticket.request.lease_id != leave.lease_id)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn granted_for_whole_ttl(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    granted_for(record, op, now, |ttl| ttl)
}

pub(super) fn granted_forever(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    granted_for(record, op, now, |_| Ttl::MAX)
}

pub(super) fn ticket_never_ends(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    for ticket in &mut record.waiters {
        ticket.expires_at = ticket.expires_at.max(now.plus(Ttl::MIN));
    }
    record.apply(op, now)
}

pub(super) fn ticket_is_not_extended(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let before: Vec<_> =
        record.waiters.iter().map(|ticket| (ticket.request.lease_id, ticket.expires_at)).collect();
    let applied = record.apply(op, now);
    for ticket in &mut record.waiters {
        let known = before.iter().find(|(id, end)| *id == ticket.request.lease_id && now < *end);
        ticket.expires_at = known.map_or(ticket.expires_at, |(_, end)| *end);
    }
    applied
}

pub(super) fn withdraw_removes_another(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match (op, record.waiters.first()) {
        (LockOp::Withdraw(_), Some(first)) => {
            let lease_id = first.request.lease_id;
            record.apply(&LockOp::Withdraw(Withdraw { lease_id }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn withdraw_ignores_grant(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let LockOp::Withdraw(leave) = op else {
        return record.apply(op, now);
    };
    let granted =
        record.holders.extract_if(.., |lease| lease.request.lease_id == leave.lease_id).collect::<Vec<_>>();
    let applied = without(record, op, now, |ticket| ticket.request.lease_id != leave.lease_id);
    record.holders.extend(granted);
    applied
}

pub(super) fn sweep_ends_the_queue(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    match op {
        LockOp::Sweep(sweep) if !sweep.dead.is_empty() => {
            let tickets = record.waiters.iter().map(|ticket| ticket.request.lease_id);
            let dead = tickets.chain(sweep.dead.iter().copied()).collect();
            record.apply(&LockOp::Sweep(Sweep { dead }), now)
        }
        _ => record.apply(op, now),
    }
}

pub(super) fn no_waiter_is_notified(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let mut applied = record.apply(op, now);
    applied.handed_over.clear();
    applied
}

/// Applies the correct rules as if some of the tickets did not exist.
fn without(
    record: &mut LockRecord,
    op: &LockOp,
    now: Timestamp,
    hidden: impl Fn(&Ticket) -> bool,
) -> Applied {
    let mut aside: Vec<_> = record.waiters.extract_if(.., |ticket| hidden(ticket)).collect();
    let applied = record.apply(op, now);
    record.waiters.append(&mut aside);
    applied
}

fn with_priority(record: &mut LockRecord, op: &LockOp, now: Timestamp, change: fn(i32) -> i32) -> Applied {
    let LockOp::Acquire(acquire) = op else {
        return record.apply(op, now);
    };
    let mut acquire = acquire.clone();
    let request = Arc::make_mut(&mut acquire.request);
    request.priority = Priority::new(change(request.priority.get())).unwrap();
    record.apply(&LockOp::Acquire(acquire), now)
}

/// A waiter that was granted the lock and has not repeated its request holds it for another time
/// than its ticket's.
fn granted_for(record: &mut LockRecord, op: &LockOp, now: Timestamp, lasts: fn(Ttl) -> Ttl) -> Applied {
    let applied = record.apply(op, now);
    let requested = matches!(applied.outcome, Outcome::Granted(_));
    for lease in &mut record.holders {
        let granted = applied.handed_over.iter().any(|granted| granted.token == lease.token);
        if granted && !requested {
            lease.expires_at = now.plus(lasts(lease.request.ttl));
        }
    }
    applied
}

fn waits(record: &LockRecord, id: &LeaseId) -> bool {
    record.waiters.iter().any(|ticket| ticket.request.lease_id == *id)
}
