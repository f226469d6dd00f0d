//! Situations that occurred somewhere in a configuration: a property that was never put to the test
//! proves nothing.
//!
//! Situations are about steps. They are recorded outside the state: a step that leads to a known
//! state would leave no trace there, and recording it in the state would multiply the states.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{EventKind, LeaseStatus, LockOp, Mode, Outcome};

use super::audit::Step;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    HandedOver,
    Renewed,
    RenewalRefused,
    Released,
    ReleaseRefused,
    ReleasedTwice,
    Expired,
    Stolen,
    Forced,
    OutdatedForceRefused,
    ReleaseRequested,
    Retained,
    DeadWorkerEnded,
    OutdatedSweep,
    TwoSweepersAtOnce,
    TicketLeft,
    TicketExpired,
    LeaseOfWaiterExpired,
    SameLeaseAgain,
    SecondGrantOfOneRequest,
    GrantedToInactiveWorker,
    ReplyTooLate,
    Shared,
    TwoSlots,
    Overtaken,
    CrashedWithRequestInFlight,
    TwoHoldersWritesInFlight,
    StaleWriteRefused,
    NewerWriteAccepted,
    Deleted,
    NotDeleted,
    CreatedAgain,
}

/// Situations that occurred so far.
#[derive(Debug, Default)]
pub(super) struct Coverage(AtomicU64);

impl Coverage {
    pub(super) fn record(&self, situation: Situation) {
        self.0.fetch_or(1 << situation as u32, Ordering::Relaxed);
    }

    pub(super) fn has(&self, situation: Situation) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << situation as u32 != 0
    }

    /// Records the situations of one step.
    pub(super) fn record_step(&self, step: &Step) {
        if !step.applied.handed_over.is_empty() {
            self.record(Situation::HandedOver);
        }
        for event in &step.applied.events {
            match event.kind {
                EventKind::Expired | EventKind::Withdrawn if event.reason.is_some() => {
                    self.record(Situation::DeadWorkerEnded);
                }
                EventKind::Expired => self.record(Situation::Expired),
                EventKind::Stolen => self.record(Situation::Stolen),
                EventKind::Forced => self.record(Situation::Forced),
                EventKind::Released if event.until.is_some() => self.record(Situation::Retained),
                EventKind::Withdrawn if step.waits_on(&event.lease_id) => self.record(Situation::TicketLeft),
                EventKind::Withdrawn => self.record(Situation::TicketExpired),
                EventKind::Acquired if !step.state.is_current(&event.lease_id) => {
                    self.record(Situation::GrantedToInactiveWorker);
                }
                _ => {}
            }
        }
        self.record_outcome(step);
        self.record_record(step);
    }

    fn record_outcome(&self, step: &Step) {
        match (&step.applied.outcome, step.op) {
            (Outcome::Renewed(_), _) => self.record(Situation::Renewed),
            (Outcome::Released(lease), _) => {
                let again = step.before_lease(&lease.request.lease_id, lease.token);
                let again = again.is_some_and(|lease| lease.status == LeaseStatus::Released);
                self.record(if again { Situation::ReleasedTwice } else { Situation::Released });
            }
            (Outcome::ReleaseRequested(_), _) => self.record(Situation::ReleaseRequested),
            (Outcome::NotHeld(_), LockOp::Renew(_)) => self.record(Situation::RenewalRefused),
            (Outcome::NotHeld(_), LockOp::Release(_)) => self.record(Situation::ReleaseRefused),
            (Outcome::NotHeld(not), LockOp::ForceRelease(_)) if !not.holders.is_empty() => {
                self.record(Situation::OutdatedForceRefused);
            }
            (Outcome::Granted(lease), _) => {
                let id = &lease.request.lease_id;
                if step.before_lease(id, lease.token).is_some() {
                    self.record(Situation::SameLeaseAgain);
                } else if step.state.memory.grants.iter().any(|grant| grant.lease_id == *id) {
                    self.record(Situation::SecondGrantOfOneRequest);
                }
            }
            (Outcome::Swept(swept), LockOp::Sweep(sweep))
                if !sweep.dead.is_empty() && swept.leases + swept.tickets == 0 =>
            {
                self.record(Situation::OutdatedSweep);
            }
            _ => {}
        }
    }

    fn record_record(&self, step: &Step) {
        let after = step.after();
        let shared = after.holders.iter().filter(|lease| lease.request.mode == Mode::Shared).count();
        if shared > 1 {
            self.record(Situation::Shared);
        } else if after.holders.len() > 1 {
            self.record(Situation::TwoSlots);
        }
        let by_arrival = after.waiters.is_sorted_by_key(|ticket| ticket.since);
        if !by_arrival {
            self.record(Situation::Overtaken);
        }
        let unconfirmed = |id, token| {
            let lease = step.before_lease(id, token);
            lease.is_some_and(|lease| lease.renewed_at.plus(lease.request.ttl) > lease.expires_at)
        };
        let mut events = step.applied.events.iter();
        if events.any(|event| event.kind == EventKind::Expired && unconfirmed(&event.lease_id, event.token)) {
            self.record(Situation::LeaseOfWaiterExpired);
        }
    }
}
