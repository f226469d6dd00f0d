//! What has happened somewhere in a world: a promise that nothing ever put to the test says nothing.
//!
//! Facts are about steps. They are noted aside, not in the state, because a step that leads to a known state would
//! leave no trace there, and one that is remembered in the state would make many states of one.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_model::{EventKind, LockOp, Mode, Outcome, Status};

use super::audit::Step;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
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
    Stopped,
    Kept,
    Buried,
    OutdatedSweep,
    TwoSweepersAtOnce,
    TicketLeft,
    TicketExpired,
    LeaseOfWaiterExpired,
    SameLeaseAgain,
    SecondGrantOfOneRequest,
    GrantedToNobody,
    ReplyTooLate,
    Shared,
    TwoSlots,
    Overtaken,
    CrashedWithRequestInFlight,
    TwoHoldersWritesInFlight,
    StaleWriteRefused,
    NewerWriteAccepted,
    Forgotten,
    NotForgotten,
    MadeAgain,
}

/// The facts noted so far.
#[derive(Debug, Default)]
pub(super) struct Facts(AtomicU64);

impl Facts {
    pub(super) fn note(&self, fact: Fact) {
        self.0.fetch_or(1 << fact as u32, Ordering::Relaxed);
    }

    pub(super) fn has(&self, fact: Fact) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << fact as u32 != 0
    }

    /// Notes what one step of the rules shows.
    pub(super) fn note_step(&self, step: &Step) {
        if !step.applied.handed_over.is_empty() {
            self.note(Fact::HandedOver);
        }
        for event in &step.applied.events {
            match event.kind {
                EventKind::Expired | EventKind::Left if event.reason.is_some() => self.note(Fact::Buried),
                EventKind::Expired => self.note(Fact::Expired),
                EventKind::Stolen => self.note(Fact::Stolen),
                EventKind::Forced => self.note(Fact::Forced),
                EventKind::Released if event.until.is_some() => self.note(Fact::Kept),
                EventKind::Left if step.waits_on(&event.lease_id) => self.note(Fact::TicketLeft),
                EventKind::Left => self.note(Fact::TicketExpired),
                EventKind::Acquired if !step.state.is_current(&event.lease_id) => {
                    self.note(Fact::GrantedToNobody);
                }
                _ => {}
            }
        }
        self.note_outcome(step);
        self.note_record(step);
    }

    fn note_outcome(&self, step: &Step) {
        match (&step.applied.outcome, step.op) {
            (Outcome::Renewed(_), _) => self.note(Fact::Renewed),
            (Outcome::Released(lease), _) => {
                let again = step.before_lease(&lease.ask.lease_id, lease.token);
                let again = again.is_some_and(|lease| lease.status == Status::Released);
                self.note(if again { Fact::ReleasedTwice } else { Fact::Released });
            }
            (Outcome::Asked(_), _) => self.note(Fact::Stopped),
            (Outcome::NotHeld(_), LockOp::Renew(_)) => self.note(Fact::RenewalRefused),
            (Outcome::NotHeld(_), LockOp::Release(_)) => self.note(Fact::ReleaseRefused),
            (Outcome::NotHeld(not), LockOp::ForceRelease(_)) if !not.holders.is_empty() => {
                self.note(Fact::OutdatedForceRefused);
            }
            (Outcome::Granted(lease), _) => {
                let id = &lease.ask.lease_id;
                if step.before_lease(id, lease.token).is_some() {
                    self.note(Fact::SameLeaseAgain);
                } else if step.state.memory.grants.iter().any(|grant| grant.lease_id == *id) {
                    self.note(Fact::SecondGrantOfOneRequest);
                }
            }
            (Outcome::Swept(swept), LockOp::Sweep(sweep))
                if !sweep.dead.is_empty() && swept.leases + swept.tickets == 0 =>
            {
                self.note(Fact::OutdatedSweep);
            }
            _ => {}
        }
    }

    fn note_record(&self, step: &Step) {
        let after = step.after();
        let shared = after.holders.iter().filter(|lease| lease.ask.mode == Mode::Shared).count();
        if shared > 1 {
            self.note(Fact::Shared);
        } else if after.holders.len() > 1 {
            self.note(Fact::TwoSlots);
        }
        let by_arrival = after.waiters.is_sorted_by_key(|ticket| ticket.since);
        if !by_arrival {
            self.note(Fact::Overtaken);
        }
        let unconfirmed = |id, token| {
            let lease = step.before_lease(id, token);
            lease.is_some_and(|lease| lease.renewed_at.plus(lease.ask.ttl) > lease.expires_at)
        };
        let mut events = step.applied.events.iter();
        if events.any(|event| event.kind == EventKind::Expired && unconfirmed(&event.lease_id, event.token)) {
            self.note(Fact::LeaseOfWaiterExpired);
        }
    }
}
