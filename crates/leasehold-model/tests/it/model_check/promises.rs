//! What must hold, by name; and the promises about what workers believe.

use std::fmt;

use leasehold_model::{Ask, Mode};
use stateright::Property;

use super::state::{Belief, Phase, State, Write, lease_id};
use super::system::System;

/// One promise. The letters are those under which the project states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    NoTwoBeliefs,
    BeliefIsBacked,
    LateReplyIsNoAcquisition,
    TokensRise,
    WritesNeverGoBack,
    OnlyItsOwnTouchesALease,
    OnlyItsOwnTouchesATicket,
    EndedStaysEnded,
    SweepingSparesTheLiving,
    EventsTellTheRecord,
    NobodyIsOvertaken,
    NobodyWaitsForAFreeLock,
    DeadWaiterDelaysByItsTicket,
    AskingAgainIsTheSameLease,
    RoomIsKept,
    ForcedTokenIsOld,
    KeptLeaseStays,
    EngineIsTold,
    WhatIsUsedIsNotForgotten,
    FloorNeverFalls,
}

impl Promise {
    pub(super) const ALL: [Self; 20] = [
        Self::NoTwoBeliefs,
        Self::BeliefIsBacked,
        Self::LateReplyIsNoAcquisition,
        Self::TokensRise,
        Self::WritesNeverGoBack,
        Self::OnlyItsOwnTouchesALease,
        Self::OnlyItsOwnTouchesATicket,
        Self::EndedStaysEnded,
        Self::SweepingSparesTheLiving,
        Self::EventsTellTheRecord,
        Self::NobodyIsOvertaken,
        Self::NobodyWaitsForAFreeLock,
        Self::DeadWaiterDelaysByItsTicket,
        Self::AskingAgainIsTheSameLease,
        Self::RoomIsKept,
        Self::ForcedTokenIsOld,
        Self::KeptLeaseStays,
        Self::EngineIsTold,
        Self::WhatIsUsedIsNotForgotten,
        Self::FloorNeverFalls,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NoTwoBeliefs => "S1 no two workers believe at once",
            Self::BeliefIsBacked => "S1 every belief is backed by a lease",
            Self::LateReplyIsNoAcquisition => "S2 a late reply is no acquisition",
            Self::TokensRise => "S3 every grant has a higher token",
            Self::WritesNeverGoBack => "S4 accepted writes never go back",
            Self::OnlyItsOwnTouchesALease => "S5 only its own id and token touch a lease",
            Self::OnlyItsOwnTouchesATicket => "S5 only its own request touches a ticket",
            Self::EndedStaysEnded => "S5 what has ended stays ended",
            Self::SweepingSparesTheLiving => "S9 sweeping spares the living",
            Self::EventsTellTheRecord => "S10 the events tell the record",
            Self::NobodyIsOvertaken => "L3 nobody is overtaken",
            Self::NobodyWaitsForAFreeLock => "L3 nobody waits for a free lock",
            Self::DeadWaiterDelaysByItsTicket => "L3 a dead waiter delays by its ticket at most",
            Self::AskingAgainIsTheSameLease => "L6 asking again gives the same lease",
            Self::RoomIsKept => "there are no more holders than there is room for",
            Self::ForcedTokenIsOld => "a forced token is old from then on",
            Self::KeptLeaseStays => "a lease kept for its time stays so long",
            Self::EngineIsTold => "the engine is told what to write and whom to wake",
            Self::WhatIsUsedIsNotForgotten => "S3 a lock that is held, waited for or kept is not forgotten",
            Self::FloorNeverFalls => "S3 the floor of tokens never falls",
        }
    }
}

/// The promises that one step broke. Always empty under the right rules, so that it adds no states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Broken(u32);

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = Promise::ALL.iter().filter(|promise| self.has(**promise));
        f.debug_list().entries(broken.map(|promise| promise.name())).finish()
    }
}

impl Broken {
    pub(super) fn add(&mut self, promise: Promise) {
        self.0 |= 1 << promise as u32;
    }

    pub(super) fn keep(&mut self, promise: Promise, holds: bool) {
        if !holds {
            self.add(promise);
        }
    }

    fn has(self, promise: Promise) -> bool {
        self.0 & 1 << promise as u32 != 0
    }
}

/// What the checker asks of every state: one promise if one is sought, else all of them at once. One question and not
/// twenty, because the checker's bookkeeping for each costs more than all the answers; a state tells what broke.
pub(super) fn properties(sought: Option<Promise>) -> Vec<Property<System>> {
    vec![match sought {
        None => Property::always("every promise", |_, state: &State| state.broken == Broken::default()),
        Some(promise) => Property::always(promise.name(), |system: &System, state: &State| {
            system.sought.is_none_or(|promise| !state.broken.has(promise))
        }),
    }]
}

/// S1: those who believe at this moment may all be right at once; and each of them is right.
pub(super) fn check_beliefs(system: &System, state: &mut State) {
    let mut believing = Vec::new();
    for (number, worker) in state.workers.iter().enumerate() {
        let Phase::Holding(Belief { token, until }) = worker.phase else {
            continue;
        };
        let lease_id = lease_id(number, worker.attempt);
        // Whoever was robbed cannot know: fencing is for them.
        let robbed = state.memory.taken.contains(&Write { lease_id, token });
        if until <= state.now || robbed {
            continue;
        }
        believing.push(&**system.ask_of(&lease_id));
        let mut leases = state.record.holders.iter();
        let backed = leases
            .any(|lease| lease.ask.lease_id == lease_id && lease.token == token && lease.expires_at >= until);
        state.broken.keep(Promise::BeliefIsBacked, backed);
    }
    state.broken.keep(Promise::NoTwoBeliefs, fit(&believing));
}

/// Whether these may hold one lock at the same time: all shared, or no more than any of them accepts.
pub(super) fn fit(asks: &[&Ask]) -> bool {
    let shared = asks.iter().filter(|ask| ask.mode == Mode::Shared).count();
    let fewest = asks.iter().map(|ask| ask.slots.get() as usize).min();
    match fewest {
        None => true,
        Some(_) if shared > 0 => shared == asks.len(),
        Some(slots) => asks.len() <= slots,
    }
}
