//! What one step may do to the queue: keep its order, serve it as soon as there is room, touch only its own tickets.

use leasehold_model::{LeaseId, LockOp, Priority, Ticket, Timestamp, Ttl};

use super::audit::Step;
use super::promises::{Broken, Promise, fit};
use super::state::owner;

pub(super) fn check(step: &Step, broken: &mut Broken) {
    broken.keep(Promise::OnlyItsOwnTouchesATicket, strangers_keep_their_place(step));
    broken.keep(Promise::NobodyIsOvertaken, nobody_is_overtaken(step));
    broken.keep(Promise::NobodyWaitsForAFreeLock, nobody_waits_for_a_free_lock(step));
    broken.keep(Promise::DeadWaiterDelaysByItsTicket, a_dead_waiter_delays_by_its_ticket(step));
}

/// A live ticket goes by being served, by its own request, or by its worker's death; else it stays as it was.
fn strangers_keep_their_place(step: &Step) -> bool {
    step.before.waiting(step.now()).all(|ticket| {
        let id = &ticket.ask.lease_id;
        let named = match step.op {
            LockOp::Acquire(acquire) => acquire.ask.lease_id == *id,
            LockOp::Leave(leave) => leave.lease_id == *id,
            LockOp::Sweep(sweep) => sweep.dead.contains(id) && step.state.is_crashed(id),
            _ => false,
        };
        let served = step.after().lease(id).is_some();
        named || served || step.ticket_after(id) == Some(ticket)
    })
}

/// L3: whoever is granted the lock was ahead of everybody who goes on waiting. Whoever comes in this very step comes
/// after the past was settled, and has nothing to complain of yet.
fn nobody_is_overtaken(step: &Step) -> bool {
    let place = |id: &LeaseId| place(step, id);
    let mut granted = step.new_leases().map(|lease| place(&lease.ask.lease_id));
    granted.all(|winner| {
        let mut waiting = step.after().waiting(step.now()).map(|ticket| &ticket.ask.lease_id);
        waiting.all(|id| !step.waits_on(id) || winner < place(id))
    })
}

/// L3: whenever the rules have looked at a lock, its first ticket has a reason to wait.
fn nobody_waits_for_a_free_lock(step: &Step) -> bool {
    let waiting = step.after().waiting(step.now());
    let Some(first) = waiting.min_by_key(|ticket| place(step, &ticket.ask.lease_id)) else {
        return true;
    };
    let ids = step.after().live(step.now()).map(|lease| lease.ask.lease_id);
    let asks: Vec<_> = ids.chain([first.ask.lease_id]).map(|id| &**step.system.ask_of(&id)).collect();
    !fit(&asks)
}

/// L3: neither a ticket nor the lease it turns into lasts longer than the ticket, unless its worker asks again.
fn a_dead_waiter_delays_by_its_ticket(step: &Step) -> bool {
    let now = step.now();
    let tickets = step.after().waiters.iter().all(|ticket| {
        let whole = now.plus(patience(step, ticket));
        // Whoever asks again has its whole time again: a waiter that lives is not dropped.
        let asks = step.asks_for(&ticket.ask.lease_id);
        if asks { ticket.expires_at == whole } else { ticket.expires_at <= whole }
    });
    let leases = step.new_leases().all(|lease| match step.ticket_before(&lease.ask.lease_id) {
        Some(ticket) if !step.asks_for(&lease.ask.lease_id) => {
            lease.expires_at <= now.plus(patience(step, ticket)).min(now.plus(lease.ask.ttl))
        }
        _ => true,
    });
    tickets && leases
}

/// How long its worker's tickets last, by its plan.
fn patience(step: &Step, ticket: &Ticket) -> Ttl {
    let config = &step.system.config;
    let plan = &config.workers[owner(&ticket.ask.lease_id)];
    config.lasting(plan.queue.expect("only who wants to wait has a ticket"))
}

/// Lower is first. A step of priority is worth its time of waiting; among equals, arrival counts. Whoever has no
/// ticket comes now, and last.
fn place(step: &Step, id: &LeaseId) -> (i128, usize) {
    let arrivals = &step.state.memory.arrivals;
    let arrived = arrivals.iter().position(|(known, _)| known == id && step.waits_on(id));
    let since = arrived.map_or(step.now(), |at| arrivals[at].1);
    let micros = |time: Timestamp| i128::from(time.as_micros());
    let priority = i128::from(step.system.ask_of(id).priority.get());
    let head_start = priority * i128::from(Priority::STEP.as_micros());
    (micros(since) - head_start, arrived.unwrap_or(usize::MAX))
}
