//! Mutants of the rules for what a worker and a sweeper may do to one task.

use leasehold_model::{
    AttemptResult, HeartbeatResult, Task, TaskAnswer, TaskOp, TaskState, TaskTable, Timestamp,
};

use super::config::Config;
use super::rules::{Op, Response, correct};

/// Tasks before a step, for a mutant that undoes a part of it.
pub(super) fn all(table: &TaskTable) -> Vec<Task> {
    table.tasks().cloned().collect()
}

/// Applies the correct rules, then changes each task, given before and after the step.
pub(super) fn amend(
    table: &mut TaskTable,
    op: &Op,
    now: Timestamp,
    mut change: impl FnMut(&Task, &mut Task),
) -> Response {
    let before = all(table);
    let mut response = correct(table, op, now);
    for before in &before {
        let Some(mut after) = table.get(before.id).cloned() else { continue };
        change(before, &mut after);
        if let Response::Leased(leased) = &mut response {
            leased.iter_mut().filter(|task| task.id == after.id).for_each(|task| task.clone_from(&after));
        }
        if table.get(before.id) != Some(&after) {
            table.reindex(after);
        }
    }
    response
}

/// Changes each task first, then applies the correct rules.
fn prepare(table: &mut TaskTable, op: &Op, now: Timestamp, mut change: impl FnMut(&mut Task)) -> Response {
    for mut task in all(table) {
        let before = task.clone();
        change(&mut task);
        if task != before {
            table.reindex(task);
        }
    }
    correct(table, op, now)
}

pub(super) fn lease_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Lease(_)) && before.token > <_>::default() {
            after.token = before.token;
        }
    })
}

pub(super) fn recovery_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) {
            after.token = before.token;
        }
    })
}

pub(super) fn retry_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::Retry(_))) {
            after.token = before.token;
        }
    })
}

pub(super) fn any_token_settles(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Settle(settle) = &mut op
        && let Some(task) = table.get(settle.id)
    {
        settle.token = task.token;
    }
    correct(table, &op, now)
}

/// Accepts the number of the attempt instead of the token: after a snooze, two leases have the same
/// number.
pub(super) fn attempt_is_the_fence(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    match op {
        Op::Settle(settle) if table.get(settle.id).is_some_and(|task| task.attempt == 1) => {
            any_token_settles(table, op, now)
        }
        _ => correct(table, op, now),
    }
}

pub(super) fn any_token_sends_heartbeats(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Heartbeat(_, held, _) = &mut op
        && let Some(task) = table.get(held.id)
    {
        held.token = task.token;
    }
    correct(table, &op, now)
}

/// The task is pending again, but not leased yet: so its last worker is still accepted.
pub(super) fn settled_after_recovery(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let Op::Settle(settle) = op else { return correct(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == settle.id && task.state == TaskState::Pending && task.token != settle.token {
            (task.state, task.token, task.lease_expires_at) = (TaskState::Running, settle.token, Some(now));
        }
    })
}

pub(super) fn settled_twice(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let Op::Settle(settle) = op else { return correct(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == settle.id && task.token == settle.token && !task.state.is_terminal() {
            (task.state, task.lease_expires_at) = (TaskState::Running, Some(now));
            task.attempt = task.attempt.max(1);
        }
    })
}

pub(super) fn lease_is_recovered_by_age(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Heartbeat(..)) {
            after.lease_expires_at = before.lease_expires_at;
        }
    })
}

pub(super) fn recovery_ends_all(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.state == TaskState::Running {
            task.lease_expires_at = Some(now);
        }
    })
}

/// A sweeper acts on its stale read.
pub(super) fn sweeper_trusts_stale_read(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let Op::Change(id, TaskOp::Expire) = op else { return correct(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == *id && task.state == TaskState::Running {
            task.lease_expires_at = Some(now);
        }
    })
}

pub(super) fn recovery_is_reported_twice(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut response = correct(table, op, now);
    if let Response::Recovered(recovered) = &mut response {
        recovered.returned *= 2;
    }
    response
}

pub(super) fn recovery_does_not_count(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) && before.state == TaskState::Running && after.state != before.state {
            after.attempt -= 1;
        }
    })
}

pub(super) fn recovery_never_gives_up(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Recover) && after.state == TaskState::Failed {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn nothing_is_recovered(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if matches!(op, Op::Lease(_)) {
        return lease_call_ends_nothing(table, op, now);
    }
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) && before.state == TaskState::Running {
            after.clone_from(before);
        }
    })
}

pub(super) fn snooze_uses_an_attempt(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if let Op::Settle(settle) = op
            && matches!(settle.result, AttemptResult::Snooze(_))
        {
            after.attempt = before.attempt;
        }
    })
}

pub(super) fn return_uses_an_attempt(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if let Op::Settle(settle) = op
            && settle.result == AttemptResult::Return
        {
            after.attempt = before.attempt;
        }
    })
}

pub(super) fn permanent_failure_is_retried(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Settle(_)) && after.state == TaskState::Failed && before.attempt == 1 {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn snoozed_runs_at_once(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Settle(_)) && after.state == TaskState::Scheduled {
            (after.state, after.run_at) = (TaskState::Pending, now);
        }
    })
}

pub(super) fn cancel_kills_at_once(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Change(_, TaskOp::Cancel(_))) && after.state == TaskState::Running {
            (after.state, after.lease_expires_at, after.finished_at) = (TaskState::Aborted, None, Some(now));
        }
    })
}

pub(super) fn cancelled_stays_pending(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::Cancel(_))) && before.state == TaskState::Pending {
            (after.state, after.finished_at) = (before.state, None);
        }
    })
}

pub(super) fn cancelled_is_retried(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        let ended = before.state == TaskState::Running && after.state == TaskState::Aborted;
        if matches!(op, Op::Settle(_) | Op::Recover) && ended && before.attempt == 1 {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn failure_hides_cancel(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        let failed = matches!(op, Op::Settle(settle) if matches!(settle.result, AttemptResult::Fail(_)));
        if failed && before.state == TaskState::Running && after.state == TaskState::Aborted {
            after.state = TaskState::Failed;
        }
    })
}

pub(super) fn waiting_counts(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut started = op.clone();
    if let Op::Lease(request) = &mut started {
        request.waits_for_locks = false;
    }
    correct(table, &started, now)
}

pub(super) fn heartbeat_hides_cancel(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    match correct(table, op, now) {
        Response::Heartbeat(HeartbeatResult::Extended(_)) => {
            Response::Heartbeat(HeartbeatResult::Extended(None))
        }
        response => response,
    }
}

pub(super) fn done_is_leased_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Lease(_)) && task.state == TaskState::Succeeded {
            (task.state, task.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn retry_restarts_succeeded(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let Op::Change(id, TaskOp::Retry(_)) = op else { return correct(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == *id && task.state == TaskState::Succeeded {
            task.state = TaskState::Failed;
        }
    })
}

pub(super) fn leased_stays_pending(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    if let Response::Leased(leased) = &response {
        for leased in leased {
            table.reindex(Task { state: TaskState::Pending, ..leased.clone() });
        }
    }
    response
}

pub(super) fn due_one_tick_early(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Lease(_) | Op::Recover) && task.state == TaskState::Scheduled {
            task.run_at = task.run_at.minus(Config::TICK.as_duration());
        }
    })
}

pub(super) fn version_is_not_raised(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Settle(_)) {
            after.version = before.version;
        }
    })
}

pub(super) fn version_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Change(id, TaskOp::Update(change)) = &mut op
        && let Some(task) = table.get(*id)
    {
        change.expected = task.version;
    }
    correct(table, &op, now)
}

pub(super) fn conflict_is_hidden(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    match correct(table, op, now) {
        Response::Changed(Some(TaskAnswer::VersionConflict(_))) => Response::Changed(Some(TaskAnswer::Done)),
        response => response,
    }
}

/// A started attempt is ended as if it had not been started.
pub(super) fn start_is_not_counted(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.has_expired(now) {
            task.begun = false;
        }
    })
}

/// Every lease counts as an attempt.
pub(super) fn prefetch_counts(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.has_expired(now) {
            task.begun = true;
        }
    })
}

pub(super) fn start_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Heartbeat(_, held, _) = &mut op {
        held.begun = false;
    }
    correct(table, &op, now)
}

/// Every lease may be prefetched, again and again.
pub(super) fn anything_is_prefetched(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut eager = op.clone();
    if let Op::Lease(request) = &mut eager {
        request.begin = u32::MAX;
    }
    let mut response = amend(table, &eager, now, |before, after| {
        if matches!(op, Op::Lease(_)) && after.token != before.token && after.state == TaskState::Running {
            after.begun = false;
        }
    });
    if let Response::Leased(leased) = &mut response {
        for task in leased.iter_mut() {
            task.begun = false;
        }
    }
    response
}

pub(super) fn expiries_are_not_counted(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |_, after| after.expiries = 0)
}

pub(super) fn expired_lease_has_no_delay(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        let lost_leases = before.state == TaskState::Running && after.state == TaskState::Scheduled;
        if lost_leases && matches!(op, Op::Recover | Op::Lease(_)) {
            (after.state, after.run_at) = (TaskState::Pending, now);
        }
    })
}

/// Only a recovery ends expired leases: a lease call does not.
pub(super) fn lease_call_ends_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if !matches!(op, Op::Lease(_)) {
        return correct(table, op, now);
    }
    let run_out: Vec<Task> = all(table).into_iter().filter(|task| task.has_expired(now)).collect();
    for task in &run_out {
        table.reindex(Task { lease_expires_at: Some(now.plus(Config::TICK)), ..task.clone() });
    }
    let response = correct(table, op, now);
    for task in run_out {
        table.reindex(task);
    }
    response
}
