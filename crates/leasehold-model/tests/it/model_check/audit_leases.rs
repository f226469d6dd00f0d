//! Properties of leases in one step: a new lease has a higher token, and an operation changes only
//! the leases that it names.

use leasehold_model::{Acquire, EventKind, Lease, LeaseStatus, LockOp, Outcome, TookOver};

use super::audit::Step;
use super::properties::{Broken, Property, fit};

pub(super) fn check(step: &Step, broken: &mut Broken) {
    broken.check(Property::TokensRise, tokens_rise(step));
    let property = match step.op {
        LockOp::Sweep(_) => Property::SweepEndsNoLiveLease,
        _ => Property::OnlyItsOwnRequestChangesALease,
    };
    broken.check(property, other_leases_are_unchanged(step));
    broken.check(Property::OnlyItsOwnRequestChangesALease, outcome_is_correct(step));
    broken.check(Property::EndedStaysEnded, ended_stays_ended(step));
    broken.check(Property::RepeatedAcquireIsTheSameLease, repeated_acquire_is_the_same_lease(step));
    broken.check(Property::EventsMatchTheRecord, takeover_is_correct(step));
    broken.check(Property::RetainedLeaseStays, retained_lease_stays(step));
    broken.check(Property::ForcedTokenIsOld, forced_token_is_old(step));

    // From the requests of the workers, not from what the rules recorded.
    let ids = step.after().holders.iter().map(|lease| &lease.request.lease_id);
    let requests: Vec<_> = ids.map(|id| &**step.system.request_of(id)).collect();
    broken.check(Property::SlotsAreRespected, fit(&requests));
}

/// Returns the live leases that an admin or a steal has ended, and those that one might end. A
/// lease that was ended by mistake is not among them.
pub(super) fn taken<'a>(step: &'a Step) -> impl Iterator<Item = &'a Lease> {
    let may_take =
        matches!(step.op, LockOp::ForceRelease(_) | LockOp::Acquire(Acquire { steal_after: Some(_), .. }));
    let has_ended = |lease: &Lease| step.after_lease(&lease.request.lease_id, lease.token).is_none();
    step.before.live(step.now()).filter(move |lease| may_take && has_ended(lease) && is_named(step, lease))
}

/// A new token is higher than any before it, even if the record was deleted in between; so no token
/// names two leases.
fn tokens_rise(step: &Step) -> bool {
    let mut highest = step.state.memory.highest;
    step.new_leases().all(|lease| {
        let rises = lease.token > highest && lease.token <= step.after().token;
        highest = highest.max(lease.token);
        rises
    })
}

/// A live lease that the operation does not name is unchanged.
fn other_leases_are_unchanged(step: &Step) -> bool {
    step.before.live(step.now()).all(|lease| {
        let after = step.after_lease(&lease.request.lease_id, lease.token);
        is_named(step, lease) || after == Some(lease)
    })
}

fn is_named(step: &Step, lease: &Lease) -> bool {
    let (id, working) = (lease.request.lease_id, lease.status != LeaseStatus::Released);
    match step.op {
        LockOp::Acquire(Acquire { request, steal_after, .. }) => {
            let stale = steal_after.is_some_and(|after| lease.renewed_at.plus(after) <= step.now());
            let others = step.before.live(step.now()).map(|lease| &*lease.request);
            let in_the_way = || !fit(&others.chain([&**request]).collect::<Vec<_>>());
            working && (request.lease_id == id || (stale && in_the_way()))
        }
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => {
            renew.lease_id == id && renew.token == lease.token && working
        }
        LockOp::Release(release) => release.lease_id == id && release.token == lease.token && working,
        LockOp::Withdraw(left) => left.lease_id == id && working,
        LockOp::RequestRelease(request) => request.token.is_none_or(|token| token == lease.token) && working,
        LockOp::ForceRelease(force) => force.token == lease.token,
        LockOp::Sweep(sweep) => sweep.dead.contains(&id) && working && step.state.is_crashed(&id),
        LockOp::Restarted(_) => false,
    }
}

/// The outcome is "renewed", "released" or "forced" if and only if the operation named a live lease
/// exactly; and the lease is as the outcome says.
fn outcome_is_correct(step: &Step) -> bool {
    let (id, token, asked_for) = match step.op {
        LockOp::Withdraw(leave) => {
            let mut mine =
                step.after().holders.iter().filter(|lease| lease.request.lease_id == leave.lease_id);
            let only_kept = mine.all(|lease| lease.status == LeaseStatus::Released);
            return only_kept && step.ticket_after(&leave.lease_id).is_none();
        }
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => (Some(renew.lease_id), renew.token, renew.ttl),
        LockOp::Release(release) => (Some(release.lease_id), release.token, None),
        LockOp::ForceRelease(force) => (None, force.token, None),
        _ => return true,
    };
    let mut live = step.before.live(step.now());
    let named = live.find(|lease| id.is_none_or(|id| id == lease.request.lease_id) && lease.token == token);
    let after = named.and_then(|lease| step.after_lease(&lease.request.lease_id, lease.token));
    match (&step.applied.outcome, named) {
        (Outcome::Renewed(lease), Some(named)) => {
            let whole = step.now().plus(asked_for.unwrap_or(named.request.ttl));
            let counted = lease.renewals == named.renewals + 1;
            after == Some(lease) && lease.expires_at == whole && lease.renewed_at == step.now() && counted
        }
        (Outcome::Released(_), Some(_)) => after.is_none_or(|lease| lease.status == LeaseStatus::Released),
        (Outcome::Forced(lease), Some(named)) => after.is_none() && lease == named,
        (Outcome::NotHeld(_), Some(named)) => {
            matches!(step.op, LockOp::Renew(_) | LockOp::RenewLogged(_))
                && named.status == LeaseStatus::Released
        }
        (Outcome::NotHeld(_), None) => true,
        _ => false,
    }
}

/// No lease that has ended by now is left in the record, and no operation restores it.
fn ended_stays_ended(step: &Step) -> bool {
    let now = step.now();
    let leases_ended = step.before.holders.iter().all(|lease| {
        now < lease.expires_at || step.after_lease(&lease.request.lease_id, lease.token).is_none()
    });
    let tickets_ended = step.before.waiters.iter().all(|ticket| {
        let id = &ticket.request.lease_id;
        let comes_back = step.ticket_after(id).is_some() || step.after().lease(id).is_some();
        now < ticket.expires_at || step.is_acquire_of(id) || !comes_back
    });
    let after = step.after();
    let all_live = after.live(now).count() == after.holders.len();
    leases_ended && tickets_ended && all_live && after.waiting(now).count() == after.waiters.len()
}

/// Returns the lease in an outcome as the record has it: only the outcome names the lease before
/// it.
fn as_recorded(lease: &Lease) -> Lease {
    Lease { took_over: None, ..lease.clone() }
}

/// A new lease names a previous one if and only if this step ended one that its holder had not
/// released, and names such a one.
fn takeover_is_correct(step: &Step) -> bool {
    let ended_unreleased = |lease: &&Lease| {
        let is_recorded = step.applied.events.iter().any(|event| {
            event.token == lease.token && matches!(event.kind, EventKind::Expired | EventKind::Stolen)
        });
        is_recorded && lease.status != LeaseStatus::Released
    };
    let mut ended = step.before.holders.iter().filter(ended_unreleased);
    match &step.applied.outcome {
        Outcome::Granted(lease) if step.before_lease(&lease.request.lease_id, lease.token).is_none() => {
            match &lease.took_over {
                Some(before) => ended.any(|lease| TookOver::of(lease) == **before),
                None => ended.next().is_none(),
            }
        }
        Outcome::Granted(lease) => lease.took_over.is_none() || lease.acquired_at == step.now(),
        _ => true,
    }
}

/// An acquire whose lease is live returns that lease, with its whole TTL.
fn repeated_acquire_is_the_same_lease(step: &Step) -> bool {
    let LockOp::Acquire(Acquire { request, .. }) = step.op else {
        return true;
    };
    let mut live = step.before.live(step.now());
    let Some(mine) = live
        .find(|lease| lease.request.lease_id == request.lease_id && lease.status != LeaseStatus::Released)
    else {
        // A grant of any kind is in the record as it was returned, and lasts for the requested TTL.
        return match &step.applied.outcome {
            Outcome::Granted(lease) => {
                let whole = lease.expires_at == step.now().plus(request.ttl);
                whole && step.after_lease(&request.lease_id, lease.token) == Some(&as_recorded(lease))
            }
            _ => step
                .after()
                .lease(&request.lease_id)
                .is_none_or(|lease| lease.status == LeaseStatus::Released),
        };
    };
    let after = step.after_lease(&request.lease_id, mine.token);
    let same = matches!(&step.applied.outcome, Outcome::Granted(lease) if Some(&as_recorded(lease)) == after);
    same && after.is_some_and(|lease| lease.expires_at == step.now().plus(mine.request.ttl))
}

/// A lease that is released before its `at_least` time keeps others out until then, and not longer.
fn retained_lease_stays(step: &Step) -> bool {
    let LockOp::Release(release) = step.op else {
        return true;
    };
    let Some(at_least) = release.at_least else {
        return true;
    };
    let mut live = step.before.live(step.now());
    let named = live.find(|lease| lease.request.lease_id == release.lease_id && lease.token == release.token);
    named.is_none_or(|lease| {
        let until = lease.acquired_at.plus(at_least);
        let kept = step.after_lease(&release.lease_id, release.token);
        if step.now() < until {
            kept.is_some_and(|kept| kept.expires_at == until && kept.status == LeaseStatus::Released)
        } else {
            kept.is_none()
        }
    })
}

/// Holds also without a later lease: a resource that compares with the newest token refuses the
/// forced one.
fn forced_token_is_old(step: &Step) -> bool {
    match &step.applied.outcome {
        Outcome::Forced(lease) => lease.token < step.after().token,
        _ => true,
    }
}
