//! Checks at the steps of a process, against the state of the engine and the faults of the process.

use std::time::Duration;

use leasehold::model::{AttemptResult, LockName, LockOp, Outcome, Settle, Settled, Task, TaskId, Token};
use leasehold::store::Store;
use leasehold::{BootInstant, Error};

use crate::process::Process;
use crate::world::{Hold, OpId, World, micros, now};

/// Notes that the engine has executed an operation.
pub(crate) fn lock_op_executed(
    process: &Process,
    lock: &LockName,
    op: &LockOp,
    sent: BootInstant,
    answer: &Result<Outcome, Error>,
) {
    let is_late = BootInstant::now().after(sent) > Duration::from_secs(5);
    let mut state = process.world.state();
    match (op, answer) {
        (LockOp::Acquire(acquire), _) if is_late => {
            state.late.insert(acquire.request.lease_id);
        }
        // The request may have been late: its holder cannot know of it before.
        (_, Ok(Outcome::Forced(lease))) => {
            state.forced.insert((lock.to_string(), lease.token.get()), now());
        }
        _ => {}
    }
}

/// Notes that the client sends an operation.
pub(crate) fn lock_op_sent(process: &Process, op: &LockOp) {
    if let LockOp::Renew(renew) = op {
        *process.world.state().renewals.entry(renew.lease_id).or_default() += 1;
    }
}

/// Notes that the client has read the answer to an operation.
pub(crate) fn lock_op_answered(process: &Process, op: &LockOp) {
    if let LockOp::Renew(renew) = op {
        process.world.state().renewals.remove(&renew.lease_id);
    }
}

/// Checks that a settlement states what the handler has returned (S6).
pub(crate) fn settled(world: &World, settle: &[Settle], settled: &[Settled]) {
    for (settle, settled) in settle.iter().zip(settled) {
        let attempt = {
            let mut state = world.state();
            state.unsettled.remove(&(settle.id, settle.token));
            let attempt = state.attempts.get_mut(&(settle.id, settle.token));
            attempt.map(|attempt| {
                attempt.is_settled = true;
                attempt.clone()
            })
        };
        let succeeds = matches!(settle.result, AttemptResult::Done(_));
        let has_succeeded =
            attempt.as_ref().and_then(|attempt| attempt.ended).is_some_and(|(_, succeeded)| succeeded);
        if matches!(settled, Settled::Now(_)) && succeeds != has_succeeded {
            let ops = attempt.into_iter().map(|attempt| attempt.op).collect();
            let message = format!(
                "task {} with token {} is settled as {:?}, and its handler has {}",
                settle.id,
                settle.token,
                settle.result,
                if has_succeeded { "succeeded" } else { "not succeeded" }
            );
            world.violation("S6", ops, message);
        }
    }
}

/// Checks a belief against the engine: the lease lasts for at least as long (S1, S2).
pub(crate) async fn believed(process: &Process, op: OpId, hold: &Hold) {
    let world = &process.world;
    if hold.until <= now() && hold.extended == now() {
        let message = format!("process {} is granted '{}' after the end of its lease", op.0, hold.lock);
        world.violation("S2", vec![op], message);
    }
    if !world.has_exact_locks() {
        return;
    }
    if let Some(lease) = world.live_lease(&hold.lock, hold.lease, hold.token).await
        && lease.expires_at.as_micros() < hold.until + world.offset
    {
        let longer = hold.until + world.offset - lease.expires_at.as_micros();
        let message =
            format!("process {} believes to hold '{}' {longer} µs longer than it does", op.0, hold.lock);
        world.violation("S1", vec![op], message);
    }
}

/// Checks that a lost guard had a reason: one failed renewal is none (L4).
pub(crate) fn lost(process: &Process, holds: &[(OpId, Hold)]) {
    let world = &process.world;
    let Some((op, hold)) = holds.first() else { return };
    let (sent, is_forced) = {
        let state = world.state();
        let sent = holds.iter().map(|(_, hold)| state.renewals.get(&hold.lease).copied().unwrap_or_default());
        let is_forced =
            holds.iter().any(|(_, hold)| state.forced.contains_key(&(hold.lock.clone(), hold.token.get())));
        (sent.max().unwrap_or_default(), is_forced)
    };
    let lasted = hold.until.saturating_sub(hold.extended);
    let was_full = lasted * 10 >= micros(world.plan.ttl) * 9;
    if sent < 2 && was_full && !is_forced && !process.is_paused_since(hold.extended) {
        let message = format!(
            "process {} has lost '{}' after {sent} renewals of a lease that lasted for {lasted} µs",
            op.0, hold.lock
        );
        world.violation("L4", vec![*op], message);
    }
}

/// Checks that a release within the lease has ended it (S5).
pub(crate) async fn released(process: &Process, op: OpId, hold: &Hold, error: Option<&Error>) {
    let world = &process.world;
    let is_unknown = error.is_some_and(|error| matches!(error, Error::Store { .. }));
    if world.has_exact_locks()
        && !is_unknown
        && !process.is_killed()
        && world.live_lease(&hold.lock, hold.lease, hold.token).await.is_some()
    {
        let message =
            format!("process {} has released '{}', and the engine still has its lease", op.0, hold.lock);
        world.violation("S5", vec![op], message);
    }
}

/// Checks that a call has ended in time (L5).
pub(crate) fn ended(process: &Process, op: OpId, what: &str, started: u64, limit: Duration) {
    let took = now() - started;
    if took > micros(limit) && !process.is_paused_since(started) {
        let message =
            format!("{what} of process {} took {took} µs, and its limit is {} ms", op.0, limit.as_millis());
        process.world.violation("L5", vec![op], message);
    }
}

/// Checks that an attempt begins under a valid lease (S2).
pub(crate) fn started(process: &Process, op: OpId, task: TaskId, until: u64) {
    if until <= now() && !process.is_killed() {
        let message = format!("process {} starts task {task} after the end of its lease", op.0);
        process.world.violation("S2", vec![op], message);
    }
}

/// Checks the belief of an attempt against the engine: its lease lasts for at least as long (S6).
pub(crate) async fn attempt_believed(
    process: &Process,
    op: OpId,
    (task, token): (TaskId, Token),
    until: u64,
) {
    let world = &process.world;
    let Some(tasks) = world.engine.tasks() else { return };
    let Ok(Some(found)) = tasks.get(task).await else { return };
    let Some(expires_at) = found.lease_expires_at.filter(|_| found.token == token) else { return };
    if !process.is_killed() && expires_at.as_micros() < until + world.offset {
        let longer = until + world.offset - expires_at.as_micros();
        let message =
            format!("process {} believes to hold task {task} {longer} µs longer than it does", op.0);
        world.violation("S6", vec![op], message);
    }
}

/// Checks that an attempt that was not paused since this time holds the lock of its task (S1).
pub(crate) async fn attempt_locked(
    process: &Process,
    op: OpId,
    task: &Task,
    token: Option<Token>,
    since: u64,
) {
    let world = &process.world;
    let (Some(lock), true) = (&task.lock, world.has_exact_locks()) else { return };
    if process.is_killed() || process.is_paused_since(since) {
        return;
    }
    let (Ok(record), Ok(time)) = (world.engine.locks().get(lock).await, world.engine.locks().now().await)
    else {
        return;
    };
    let is_held = record.is_some_and(|record| record.live(time).any(|lease| Some(lease.token) == token));
    if !is_held {
        let message = format!("process {} runs task {} without its lock '{lock}'", op.0, task.id);
        world.violation("S1", vec![op], message);
    }
}
