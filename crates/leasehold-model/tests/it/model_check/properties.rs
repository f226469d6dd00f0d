//! Properties that must hold, by name; and the check of the workers' beliefs.

use std::fmt;

use leasehold_model::{LockRequest, Mode};
use stateright::Property as Check;

use super::state::{Belief, Phase, State, Write, lease_id};
use super::system::System;

/// Property. The letters are those of docs/promises.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    NoTwoBeliefs,
    BeliefIsBacked,
    LateReplyIsNoAcquisition,
    TokensRise,
    WritesNeverGoBack,
    OnlyItsOwnRequestChangesALease,
    OnlyItsOwnRequestChangesATicket,
    EndedStaysEnded,
    SweepEndsNoLiveLease,
    EventsMatchTheRecord,
    NoWaiterIsOvertaken,
    NoWaiterWaitsForAFreeLock,
    DeadWaiterDelaysByItsTicket,
    RepeatedAcquireIsTheSameLease,
    SlotsAreRespected,
    ForcedTokenIsOld,
    RetainedLeaseStays,
    EngineIsInformed,
    UsedLockIsNotDeleted,
    FloorNeverFalls,
}

impl Property {
    pub(super) const ALL: [Self; 20] = [
        Self::NoTwoBeliefs,
        Self::BeliefIsBacked,
        Self::LateReplyIsNoAcquisition,
        Self::TokensRise,
        Self::WritesNeverGoBack,
        Self::OnlyItsOwnRequestChangesALease,
        Self::OnlyItsOwnRequestChangesATicket,
        Self::EndedStaysEnded,
        Self::SweepEndsNoLiveLease,
        Self::EventsMatchTheRecord,
        Self::NoWaiterIsOvertaken,
        Self::NoWaiterWaitsForAFreeLock,
        Self::DeadWaiterDelaysByItsTicket,
        Self::RepeatedAcquireIsTheSameLease,
        Self::SlotsAreRespected,
        Self::ForcedTokenIsOld,
        Self::RetainedLeaseStays,
        Self::EngineIsInformed,
        Self::UsedLockIsNotDeleted,
        Self::FloorNeverFalls,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NoTwoBeliefs => "S1 no two workers believe to hold at once",
            Self::BeliefIsBacked => "S1 every belief is backed by a lease",
            Self::LateReplyIsNoAcquisition => "S2 a late reply is no acquisition",
            Self::TokensRise => "S3 every grant has a higher token",
            Self::WritesNeverGoBack => "S4 accepted writes never go back",
            Self::OnlyItsOwnRequestChangesALease => "S5 only its own id and token change a lease",
            Self::OnlyItsOwnRequestChangesATicket => "S5 only its own request changes a ticket",
            Self::EndedStaysEnded => "S5 an ended lease stays ended",
            Self::SweepEndsNoLiveLease => "S9 a sweep ends no live lease",
            Self::EventsMatchTheRecord => "S10 the events match the record",
            Self::NoWaiterIsOvertaken => "L3 no waiter is overtaken",
            Self::NoWaiterWaitsForAFreeLock => "L3 no waiter waits for a free lock",
            Self::DeadWaiterDelaysByItsTicket => "L3 a dead waiter delays by its ticket at most",
            Self::RepeatedAcquireIsTheSameLease => "L6 a repeated acquire returns the same lease",
            Self::SlotsAreRespected => "there are no more holders than slots",
            Self::ForcedTokenIsOld => "a forced token is old from then on",
            Self::RetainedLeaseStays => "a retained lease stays for its time",
            Self::EngineIsInformed => "the engine knows what to write and which waiters to notify",
            Self::UsedLockIsNotDeleted => "S3 a lock that is held, waited for or retained is not deleted",
            Self::FloorNeverFalls => "S3 the minimum token never falls",
        }
    }
}

/// Properties that one step broke. Always empty under the correct rules, so that it adds no states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Broken(u32);

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = Property::ALL.iter().filter(|property| self.has(**property));
        f.debug_list().entries(broken.map(|property| property.name())).finish()
    }
}

impl Broken {
    pub(super) fn add(&mut self, property: Property) {
        self.0 |= 1 << property as u32;
    }

    pub(super) fn check(&mut self, property: Property, holds: bool) {
        if !holds {
            self.add(property);
        }
    }

    fn has(self, property: Property) -> bool {
        self.0 & 1 << property as u32 != 0
    }
}

/// Returns the checks of every state: one property if one is sought, otherwise all of them at once.
/// One check instead of twenty, because the checker's bookkeeping for each costs more than all the
/// checks; a state contains the broken properties.
pub(super) fn properties(sought: Option<Property>) -> Vec<Check<System>> {
    vec![match sought {
        None => Check::always("every property", |_, state: &State| state.broken == Broken::default()),
        Some(property) => Check::always(property.name(), |system: &System, state: &State| {
            system.sought.is_none_or(|property| !state.broken.has(property))
        }),
    }]
}

/// S1: the workers that believe at this moment to hold the lock are compatible, and each of them
/// holds it.
pub(super) fn check_beliefs(system: &System, state: &mut State) {
    let mut believing = Vec::new();
    for (number, worker) in state.workers.iter().enumerate() {
        let Phase::Holding(Belief { token, until }) = worker.phase else {
            continue;
        };
        let lease_id = lease_id(number, worker.attempt);
        // The holder of a lease that was ended by force cannot know: fencing protects against it.
        let robbed = state.memory.taken.contains(&Write { lease_id, token });
        if until <= state.now || robbed {
            continue;
        }
        believing.push(&**system.request_of(&lease_id));
        let mut leases = state.record.holders.iter();
        let backed = leases.any(|lease| {
            lease.request.lease_id == lease_id && lease.token == token && lease.expires_at >= until
        });
        state.broken.check(Property::BeliefIsBacked, backed);
    }
    state.broken.check(Property::NoTwoBeliefs, fit(&believing));
}

/// Whether these requests may hold one lock at the same time: all shared, or no more than any of
/// them accepts.
pub(super) fn fit(asks: &[&LockRequest]) -> bool {
    let shared = asks.iter().filter(|request| request.mode == Mode::Shared).count();
    let fewest = asks.iter().map(|request| request.slots.get() as usize).min();
    match fewest {
        None => true,
        Some(_) if shared > 0 => shared == asks.len(),
        Some(slots) => asks.len() <= slots,
    }
}
