//! Properties that must hold, by name; and the check of the workers' beliefs.

use leasehold_model::{LockRequest, Mode};

use super::state::{Belief, Phase, State, Write, lease_id};
use super::system::System;
use crate::shared::{self, properties};

properties! {
    NoTwoBeliefs: "S1 no two workers believe to hold at once",
    BeliefIsBacked: "S1 every belief is backed by a lease",
    LateReplyIsNoAcquisition: "S2 a late reply is no acquisition",
    TokensRise: "S3 every grant has a higher token",
    WritesNeverGoBack: "S4 accepted writes never go back",
    OnlyItsOwnRequestChangesALease: "S5 only its own id and token change a lease",
    OnlyItsOwnRequestChangesATicket: "S5 only its own request changes a ticket",
    EndedStaysEnded: "S5 an ended lease stays ended",
    SweepEndsNoLiveLease: "S9 a sweep ends no live lease",
    EventsMatchTheRecord: "S10 the events match the record",
    NoWaiterIsOvertaken: "L3 no waiter is overtaken",
    NoWaiterWaitsForAFreeLock: "L3 no waiter waits for a free lock",
    DeadWaiterDelaysByItsTicket: "L3 a dead waiter delays by its ticket at most",
    RepeatedAcquireIsTheSameLease: "L6 a repeated acquire returns the same lease",
    SlotsAreRespected: "there are no more holders than slots",
    ForcedTokenIsOld: "a forced token is old from then on",
    RetainedLeaseStays: "a retained lease stays for its time",
    EngineIsInformed: "the engine knows what to write and which waiters to notify",
    UsedLockIsNotDeleted: "S3 a lock that is held, waited for or retained is not deleted",
    FloorNeverFalls: "S3 the minimum token never falls",
}

pub(super) type Broken = shared::Broken<Property>;

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
        let was_taken = state.memory.taken.contains(&Write { lease_id, token });
        if until <= state.now || was_taken {
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
pub(super) fn fit(requests: &[&LockRequest]) -> bool {
    let shared = requests.iter().filter(|request| request.mode == Mode::Shared).count();
    let fewest = requests.iter().map(|request| request.slots.get() as usize).min();
    match fewest {
        None => true,
        Some(_) if shared > 0 => shared == requests.len(),
        Some(slots) => requests.len() <= slots,
    }
}
