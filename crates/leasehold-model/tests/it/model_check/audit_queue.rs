//! Properties of the queue in one step: it keeps its order, the lock is granted as soon as it is
//! free, and an operation changes only its own tickets.

use leasehold_model::{LeaseId, LockOp, Priority, Ticket, Timestamp, Ttl};

use super::audit::Step;
use super::properties::{Broken, Property, fit};
use super::state::owner;

pub(super) fn check(step: &Step, broken: &mut Broken) {
    broken.check(Property::OnlyItsOwnRequestChangesATicket, other_tickets_are_unchanged(step));
    broken.check(Property::NoWaiterIsOvertaken, no_waiter_is_overtaken(step));
    broken.check(Property::NoWaiterWaitsForAFreeLock, no_waiter_waits_for_a_free_lock(step));
    broken.check(Property::DeadWaiterDelaysByItsTicket, a_dead_waiter_delays_by_its_ticket(step));
}

/// A live ticket ends by a grant, by its own request, or by its worker's death; otherwise it is
/// unchanged.
fn other_tickets_are_unchanged(step: &Step) -> bool {
    step.before.waiting(step.now()).all(|ticket| {
        let id = &ticket.request.lease_id;
        let named = match step.op {
            LockOp::Acquire(acquire) => acquire.request.lease_id == *id,
            LockOp::Withdraw(leave) => leave.lease_id == *id,
            LockOp::Sweep(sweep) => sweep.dead.contains(id) && step.state.is_crashed(id),
            _ => false,
        };
        let granted = step.after().lease(id).is_some();
        named || granted || step.ticket_after(id) == Some(ticket)
    })
}

/// L3: a request that is granted the lock was ahead of all that go on waiting. A request that
/// arrives in this step comes after expired leases were ended, so it cannot be overtaken yet.
fn no_waiter_is_overtaken(step: &Step) -> bool {
    let rank = |id: &LeaseId| rank(step, id);
    let mut granted = step.new_leases().map(|lease| rank(&lease.request.lease_id));
    granted.all(|winner| {
        let mut waiting = step.after().waiting(step.now()).map(|ticket| &ticket.request.lease_id);
        waiting.all(|id| !step.waits_on(id) || winner < rank(id))
    })
}

/// L3: after every step, the first ticket conflicts with a holder.
fn no_waiter_waits_for_a_free_lock(step: &Step) -> bool {
    let waiting = step.after().waiting(step.now());
    let Some(first) = waiting.min_by_key(|ticket| rank(step, &ticket.request.lease_id)) else {
        return true;
    };
    let ids = step.after().live(step.now()).map(|lease| lease.request.lease_id);
    let requests: Vec<_> =
        ids.chain([first.request.lease_id]).map(|id| &**step.system.request_of(&id)).collect();
    !fit(&requests)
}

/// L3: neither a ticket nor the lease that it becomes lasts longer than the ticket, unless its
/// worker repeats its request.
fn a_dead_waiter_delays_by_its_ticket(step: &Step) -> bool {
    let now = step.now();
    let tickets = step.after().waiters.iter().all(|ticket| {
        let whole = now.plus(ticket_ttl(step, ticket));
        // A repeated request renews the ticket for its whole time: a live waiter is not dropped.
        let repeats = step.is_acquire_of(&ticket.request.lease_id);
        if repeats { ticket.expires_at == whole } else { ticket.expires_at <= whole }
    });
    let leases = step.new_leases().all(|lease| match step.ticket_before(&lease.request.lease_id) {
        Some(ticket) if !step.is_acquire_of(&lease.request.lease_id) => {
            lease.expires_at <= now.plus(ticket_ttl(step, ticket)).min(now.plus(lease.request.ttl))
        }
        _ => true,
    });
    tickets && leases
}

/// Returns the TTL of its worker's tickets, by its plan.
fn ticket_ttl(step: &Step, ticket: &Ticket) -> Ttl {
    let config = &step.system.config;
    let plan = &config.workers[owner(&ticket.request.lease_id)];
    config.lasting(plan.queue.expect("only a worker that waits has a ticket"))
}

/// Returns the rank of a request; lower is first. A step of priority is worth a fixed waiting time;
/// among equals, arrival counts. A request without a ticket arrives now, and is last.
fn rank(step: &Step, id: &LeaseId) -> (i128, usize) {
    let arrivals = &step.state.memory.arrivals;
    let arrived = arrivals.iter().position(|(known, _)| known == id && step.waits_on(id));
    let since = arrived.map_or(step.now(), |at| arrivals[at].1);
    let micros = |time: Timestamp| i128::from(time.as_micros());
    let priority = i128::from(step.system.request_of(id).priority.get());
    let head_start = priority * i128::from(Priority::STEP.as_micros());
    (micros(since) - head_start, arrived.unwrap_or(usize::MAX))
}
