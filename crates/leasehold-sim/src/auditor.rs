//! Checks at intervals: the processes against the state of the engine and against their faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LeaseStatus, LockName};
use leasehold::store::{ListLocks, Store};

use crate::processes::Processes;
use crate::world::{World, micros, now, op_of_holder};

/// Interval of the audit.
const EVERY: Duration = Duration::from_secs(3);
/// Time after its end within which an undisturbed request has left no lease and no ticket, in
/// microseconds.
const LEAVES_WITHIN: u64 = 2_000_000;
/// Time within which an undisturbed process reacts, in microseconds.
const REACTS_WITHIN: u64 = 1_000_000;
/// Time within which a free lock is granted to a request that waits for it, in microseconds: the
/// lifetime of a ticket of a dead waiter, and a poll.
const GRANTED_WITHIN: u64 = 20_000_000;
/// Time within which a settlement reaches the engine after the end of all faults, in microseconds.
const SETTLES_WITHIN: u64 = 10_000_000;

/// Audits all locks and tasks until the future is dropped.
pub(crate) async fn run(world: Arc<World>, processes: Arc<Processes>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let at = now();
        if world.has_exact_locks() {
            ended_requests_leave_nothing(&world, &processes, at).await;
            beliefs_have_leases(&world, &processes, at).await;
            free_locks_are_granted(&world, &processes, at).await;
        }
        guards_are_lost_in_time(&world, &processes, at);
        attempts_are_settled(&world, &processes, at);
    }
}

/// A request that has ended leaves no lease and no ticket, unless faults prevent it (L1, L2).
async fn ended_requests_leave_nothing(world: &World, processes: &Processes, at: u64) {
    let query = ListLocks::default().limit(1000);
    let Ok(locks) = world.engine.locks().list(&query).await else { return };
    let Ok(time) = world.engine.locks().now().await else { return };
    for record in locks.items {
        let leases = record.live(time).filter(|lease| lease.status != LeaseStatus::Released);
        let leases = leases.map(|lease| (&lease.request, "lease"));
        let tickets = record.waiting(time).map(|ticket| (&ticket.request, "ticket"));
        for (request, what) in leases.chain(tickets) {
            let Some(op) = op_of_holder(request.holder.as_str()) else { continue };
            let ended = {
                let state = world.state();
                state.ended.get(&op).copied().filter(|_| !state.late.contains(&request.lease_id))
            };
            let (Some(ended), Some(process)) = (ended, processes.get(op.0)) else { continue };
            if at - ended > LEAVES_WITHIN && !process.is_killed() && !process.is_disturbed_since(ended) {
                let message = format!(
                    "a request of process {} for '{}' has ended and left a {what}",
                    op.0, record.name
                );
                world.violation("L2", vec![op], message);
            }
        }
    }
}

/// A process that believes to hold a lease holds it, or notices in time that it does not (S1).
async fn beliefs_have_leases(world: &World, processes: &Processes, at: u64) {
    let holds: Vec<_> = world.state().holds.iter().map(|(op, hold)| (*op, hold.clone())).collect();
    for (op, hold) in holds {
        let Some(process) = processes.get(op.0).filter(|process| !process.is_killed()) else { continue };
        let is_held = world.live_lease(&hold.lock, hold.lease, hold.token).await.is_some();
        if is_held || hold.until <= at {
            continue;
        }
        let forced = world.state().forced.get(&(hold.lock.clone(), hold.token.get())).copied();
        let noticed_by = forced.map_or(0, |forced| forced + micros(world.plan.ttl) / 2);
        let since = forced.unwrap_or(hold.extended);
        if at > noticed_by && (forced.is_none() || !process.is_disturbed_since(since)) {
            let message = format!(
                "process {} believes to hold '{}', and the engine has no such lease",
                op.0, hold.lock
            );
            world.violation("S1", vec![op], message);
        }
    }
}

/// A lock without a lease is granted to a request that waits for it (L1).
async fn free_locks_are_granted(world: &World, processes: &Processes, at: u64) {
    let waiting: Vec<_> = world.state().waiting.iter().map(|(op, lock)| (*op, lock.clone())).collect();
    let mut free = BTreeMap::new();
    for (op, lock) in waiting {
        let Ok(name) = LockName::new(lock.as_str()) else { continue };
        let Ok(record) = world.engine.locks().get(&name).await else { continue };
        let Ok(time) = world.engine.locks().now().await else { continue };
        if record.is_some_and(|record| record.live(time).next().is_some()) {
            continue;
        }
        let since = world.state().free_since.get(&lock).copied().unwrap_or(at);
        free.insert(lock.clone(), since);
        let Some(process) = processes.get(op.0) else { continue };
        let is_fit = !process.is_killed() && !process.is_disturbed_since(at.saturating_sub(GRANTED_WITHIN));
        if at - since > GRANTED_WITHIN && is_fit {
            let message = format!("'{lock}' is free, and process {} waits for it", op.0);
            world.violation("L1", vec![op], message);
        }
    }
    world.state().free_since = free;
}

/// A guard is lost at the end of its lease (S11).
fn guards_are_lost_in_time(world: &World, processes: &Processes, at: u64) {
    let holds: Vec<_> = world.state().holds.iter().map(|(op, hold)| (*op, hold.clone())).collect();
    for (op, hold) in holds {
        let Some(process) = processes.get(op.0).filter(|process| !process.is_killed()) else { continue };
        if at > hold.until + REACTS_WITHIN && !process.is_paused_since(hold.until) {
            let message = format!(
                "the guard of process {} for '{}' is not lost at the end of its lease",
                op.0, hold.lock
            );
            world.violation("S11", vec![op], message);
        }
    }
}

/// An attempt that has ended is settled, whatever was lost (S6).
fn attempts_are_settled(world: &World, processes: &Processes, at: u64) {
    let mut found = Vec::new();
    {
        let state = world.state();
        for (task, token) in &state.unsettled {
            let Some(attempt) = state.attempts.get(&(*task, *token)) else { continue };
            let Some((ended, _)) = attempt.ended else { continue };
            let Some(process) = processes.get(attempt.op.0).filter(|process| !process.is_killed()) else {
                continue;
            };
            let next = state.attempts.range((*task, *token)..).nth(1);
            let has_newer =
                next.is_some_and(|((other, _), newer)| other == task && newer.op.0 == attempt.op.0);
            if !has_newer
                && !process.is_disturbed_since(at.saturating_sub(SETTLES_WITHIN))
                && at - ended > SETTLES_WITHIN
            {
                found.push((attempt.op, *task, *token));
            }
        }
    }
    for (op, task, token) in found {
        let message = format!(
            "the attempt of process {} at task {task} with token {token} has ended and is not settled",
            op.0
        );
        world.violation("S6", vec![op], message);
        world.state().unsettled.remove(&(task, token));
    }
}
