//! Audit of one step of the rules from outside: what it compares, what it checks, what it
//! remembers.
//!
//! Nothing here calls the rules: which holders a lock admits and which waiter is first is computed
//! independently, from the properties.

use leasehold_model::{
    Applied, EventKind, Lease, LeaseId, LockOp, LockRecord, Outcome, Ticket, Timestamp, Token,
};

use super::properties::{Broken, Property};
use super::state::{Memory, State, Write};
use super::system::System;
use super::{audit_leases, audit_queue};

/// One operation, and the lock before and after it.
pub(super) struct Step<'a> {
    pub(super) system: &'a System,
    /// State just after the step; its audit memory is still from before.
    pub(super) state: &'a State,
    pub(super) before: &'a LockRecord,
    pub(super) op: &'a LockOp,
    pub(super) applied: &'a Applied,
}

/// Returns the properties that the step broke, and the audit memory after it.
pub(super) fn audit(step: &Step) -> (Broken, Memory) {
    let mut broken = Broken::default();
    audit_leases::check(step, &mut broken);
    audit_queue::check(step, &mut broken);
    broken.check(Property::EventsMatchTheRecord, step.events_match_record());
    broken.check(Property::EngineIsInformed, step.engine_is_informed());
    step.system.coverage.record_step(step);
    (broken, step.remember())
}

impl Step<'_> {
    pub(super) fn now(&self) -> Timestamp {
        self.state.now
    }

    pub(super) fn after(&self) -> &LockRecord {
        &self.state.record
    }

    pub(super) fn before_lease(&self, id: &LeaseId, token: Token) -> Option<&Lease> {
        find(self.before, id, token)
    }

    pub(super) fn after_lease(&self, id: &LeaseId, token: Token) -> Option<&Lease> {
        find(self.after(), id, token)
    }

    /// Returns the leases that this step granted.
    pub(super) fn new_leases(&self) -> impl Iterator<Item = &Lease> {
        let known = |lease: &&Lease| self.before_lease(&lease.request.lease_id, lease.token).is_none();
        self.after().holders.iter().filter(known)
    }

    pub(super) fn ticket_before(&self, id: &LeaseId) -> Option<&Ticket> {
        self.before.waiters.iter().find(|ticket| ticket.request.lease_id == *id)
    }

    pub(super) fn ticket_after(&self, id: &LeaseId) -> Option<&Ticket> {
        self.after().waiters.iter().find(|ticket| ticket.request.lease_id == *id)
    }

    /// Whether this request had a live ticket when the step began.
    pub(super) fn waits_on(&self, id: &LeaseId) -> bool {
        self.ticket_before(id).is_some_and(|ticket| self.now() < ticket.expires_at)
    }

    /// Whether the operation is an acquire of this request.
    pub(super) fn is_acquire_of(&self, id: &LeaseId) -> bool {
        matches!(self.op, LockOp::Acquire(acquire) if acquire.request.lease_id == *id)
    }

    /// S10: the events, applied to the lock before the step, give the lock after it.
    fn events_match_record(&self) -> bool {
        let mut holders: Vec<_> = self.before.holders.iter().map(name).collect();
        let mut waiters: Vec<_> = self.before.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
        for event in &self.applied.events {
            let held = (event.lease_id, event.token);
            match event.kind {
                EventKind::Acquired => {
                    waiters.retain(|id| *id != event.lease_id);
                    holders.push(held);
                }
                EventKind::Released if event.until.is_some() => {}
                EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced => {
                    holders.retain(|other| *other != held);
                }
                EventKind::Queued => waiters.push(event.lease_id),
                EventKind::Withdrawn => waiters.retain(|id| *id != event.lease_id),
                _ => {}
            }
        }
        let ids = |record: &LockRecord| record.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
        sorted(holders) == sorted(self.after().holders.iter().map(name).collect())
            && sorted(waiters) == sorted::<LeaseId>(ids(self.after()))
    }

    /// The engine writes what has changed, counts it, and notifies exactly the waiters that were
    /// granted the lock.
    fn engine_is_informed(&self) -> bool {
        let (before, after) = (self.before, self.after());
        let counted = after.version == before.version + u64::from(self.applied.changed);
        let written = self.applied.changed || before == after;
        let at_once = match &self.applied.outcome {
            Outcome::Granted(lease) => (!self.waits_on(&lease.request.lease_id)).then(|| name(lease)),
            _ => None,
        };
        let grants = self.applied.events.iter().filter(|event| event.kind == EventKind::Acquired);
        let grants = grants.map(|event| (event.lease_id, event.token));
        let granted: Vec<_> = grants.filter(|grant| at_once != Some(*grant)).collect();
        let notified = self.applied.handed_over.iter().map(name).collect();
        counted && written && sorted(granted) == sorted(notified)
    }

    fn remember(&self) -> Memory {
        let mut memory = self.state.memory.clone();
        for lease in self.new_leases() {
            memory.highest = memory.highest.max(lease.token);
            memory.grants.push(as_write(lease));
        }
        memory.taken.extend(audit_leases::taken(self).map(as_write));
        memory.arrivals.retain(|(id, _)| self.waits_on(id) && self.ticket_after(id).is_some());
        for ticket in &self.after().waiters {
            let id = ticket.request.lease_id;
            if !memory.arrivals.iter().any(|(known, _)| *known == id) {
                memory.arrivals.push((id, self.now()));
            }
        }
        memory
    }
}

fn find<'a>(record: &'a LockRecord, id: &LeaseId, token: Token) -> Option<&'a Lease> {
    let meant = |lease: &&Lease| lease.request.lease_id == *id && lease.token == token;
    record.holders.iter().find(meant)
}

fn name(lease: &Lease) -> (LeaseId, Token) {
    (lease.request.lease_id, lease.token)
}

fn as_write(lease: &Lease) -> Write {
    let (lease_id, token) = name(lease);
    Write { lease_id, token }
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort_unstable();
    items
}
