//! Mutants of the rules for all tasks together: locks, keys, time and counts.

use leasehold_model::{
    AttemptResult, Counts, Enqueued, FinishedFilter, Reuse, Task, TaskOp, TaskState, TaskTable, Timestamp,
    Ttl,
};

use super::mutants_leases::{all, amend};
use super::rules::{Op, Response, correct};

/// Tasks that this step has unblocked stay blocked.
fn blocked_stay(table: &mut TaskTable, op: &Op, now: Timestamp, on: bool) -> Response {
    amend(table, op, now, |before, after| {
        if on && before.state == TaskState::Blocked && after.state == TaskState::Pending {
            after.clone_from(before);
        }
    })
}

pub(super) fn settlement_unblocks_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let on = matches!(op, Op::Settle(settle) if matches!(settle.result, AttemptResult::Done(_)));
    blocked_stay(table, op, now, on)
}

pub(super) fn snooze_unblocks_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let on = matches!(op, Op::Settle(settle) if matches!(settle.result, AttemptResult::Snooze(_)));
    blocked_stay(table, op, now, on)
}

pub(super) fn cancel_unblocks_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    blocked_stay(table, op, now, matches!(op, Op::Change(_, TaskOp::Cancel(_))))
}

pub(super) fn update_unblocks_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    blocked_stay(table, op, now, matches!(op, Op::Change(_, TaskOp::Update(_))))
}

pub(super) fn recovery_unblocks_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    blocked_stay(table, op, now, matches!(op, Op::Recover))
}

pub(super) fn lock_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.lock = None;
    }
    correct(table, &op, now)
}

pub(super) fn due_task_takes_a_held_lock(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Scheduled && after.state == TaskState::Blocked {
            (after.state, after.lock) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn all_blocked_are_unblocked(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    if matches!(op, Op::Settle(_)) {
        for task in all(table).into_iter().filter(|task| task.state == TaskState::Blocked) {
            table.reindex(Task { state: TaskState::Pending, lock: None, ..task });
        }
    }
    response
}

/// As if all queues of a lock had one head: a task behind a head of another queue waits.
pub(super) fn head_counts_for_all_queues(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    let tasks = all(table);
    let heads: Vec<_> = tasks.iter().filter(|task| task.lock.is_some() && task.state.takes_lock()).collect();
    if let [first, .., last] = heads[..]
        && last.state == TaskState::Pending
        && first.queue != last.queue
    {
        table.reindex(Task { state: TaskState::Blocked, ..last.clone() });
    }
    response
}

pub(super) fn running_head_is_replaced(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    let tasks = all(table);
    let running = tasks.iter().find(|task| task.state == TaskState::Running);
    let priorities = tasks.iter().find(|task| task.state == TaskState::Blocked);
    if let (Op::Enqueue(_), Some(running), Some(priorities)) = (op, running, priorities)
        && priorities.order() < running.order()
    {
        table.reindex(Task { state: TaskState::Blocked, ..running.clone() });
        table.reindex(Task { state: TaskState::Pending, ..priorities.clone() });
    }
    response
}

pub(super) fn head_is_never_replaced(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let before = all(table);
    let response = correct(table, op, now);
    let replaced = before.into_iter().find(|task| {
        let after = table.get(task.id).map(|after| after.state);
        task.state == TaskState::Pending && after == Some(TaskState::Blocked)
    });
    if let (Op::Enqueue(new), Some(head)) = (op, replaced)
        && let Some(added) = table.get(new.id).cloned()
    {
        table.reindex(Task { state: TaskState::Blocked, ..added });
        table.reindex(head);
    }
    response
}

pub(super) fn head_loses_its_position(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Blocked && after.state == TaskState::Pending {
            after.ready_at = now;
        }
    })
}

pub(super) fn returned_loses_its_position(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Running && after.state == TaskState::Pending {
            after.ready_at = now;
        }
    })
}

/// Recovery ignores the deadlines of runners.
pub(super) fn dead_runner_is_awaited(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if !matches!(op, Op::Recover) {
        return correct(table, op, now);
    }
    let waiting: Vec<_> = all(table).into_iter().filter(|task| task.is_abandoned(now)).collect();
    for task in &waiting {
        table.reindex(Task { runner_deadline: Some(now.plus(Ttl::MIN)), ..task.clone() });
    }
    correct(table, op, now)
}

/// Recovery takes every deadline of a runner for passed.
pub(super) fn live_runner_is_failed(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if matches!(op, Op::Recover) {
        for task in all(table).into_iter().filter(|task| !task.state.is_terminal()) {
            table.reindex(Task { runner_deadline: task.runner_deadline.map(|_| now), ..task });
        }
    }
    correct(table, op, now)
}

pub(super) fn renewal_changes_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::RenewRunner(_))) {
            after.runner_deadline = before.runner_deadline;
        }
    })
}

pub(super) fn cancel_affects_all(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if let Op::Change(id, cancel @ TaskOp::Cancel(_)) = op {
        for task in all(table).into_iter().filter(|task| task.id != *id && !task.state.is_terminal()) {
            table.change(task.id, cancel, now);
        }
    }
    correct(table, op, now)
}

pub(super) fn key_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.key = None;
    }
    correct(table, &op, now)
}

pub(super) fn queue_limit_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.lock_queue_limit = None;
    }
    correct(table, &op, now)
}

/// Blocked tasks are not counted.
pub(super) fn blocked_ignore_queue_limit(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        let waiting = table.tasks().filter(|task| task.state == TaskState::Blocked).count();
        new.lock_queue_limit = new.lock_queue_limit.map(|room| room + u32::try_from(waiting).unwrap());
    }
    correct(table, &op, now)
}

/// Only running tasks count against the limit, pending ones do not.
pub(super) fn pending_ignore_queue_limit(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op
        && table.tasks().all(|task| task.state != TaskState::Running)
    {
        new.lock_queue_limit = None;
    }
    correct(table, &op, now)
}

pub(super) fn queue_limit_precedes_key(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if let Op::Enqueue(new) = op
        && new.lock_queue_limit == Some(0)
        && table.get(new.id).is_none()
        && let Some(head) = table.tasks().find(|task| task.state.takes_lock())
    {
        return Response::Enqueued(Enqueued::LockQueueFull(head.id));
    }
    correct(table, op, now)
}

pub(super) fn refused_takes_the_key(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    if let (Op::Enqueue(new), Response::Enqueued(Enqueued::LockQueueFull(_))) = (op, &response)
        && new.key.is_some()
        && let Some(owner) = all(table).into_iter().find(|task| task.key == new.key)
    {
        table.reindex(Task { key: None, ..owner });
    }
    response
}

pub(super) fn key_is_free_when_done(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.reuse = Reuse::Finished;
    }
    correct(table, &op, now)
}

pub(super) fn key_stays_with_old_task(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Enqueue(_)) {
            after.key.clone_from(&before.key);
        }
    })
}

pub(super) fn enqueued_again_restarts(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if let Op::Enqueue(new) = op
        && table.get(new.id).is_some()
    {
        table.reindex(Task::new(new, now));
    }
    correct(table, op, now)
}

pub(super) fn enqueued_is_not_stored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    match op {
        Op::Enqueue(new) => Response::Enqueued(Enqueued::Added(new.id)),
        _ => correct(table, op, now),
    }
}

pub(super) fn failed_is_deleted(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    let response = correct(table, op, now);
    let before = now.plus(Ttl::MIN);
    table.purge(&FinishedFilter { queue: None, state: Some(TaskState::Failed), before, limit: 10 });
    response
}

/// Tasks are hidden while the rules look for due ones.
pub(super) fn never_due(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    if !matches!(op, Op::Lease(_) | Op::Recover) {
        return correct(table, op, now);
    }
    let waiting = all(table).into_iter().filter(|task| task.state == TaskState::Scheduled);
    let waiting: Vec<_> = waiting.collect();
    for task in &waiting {
        table.reindex(Task { run_at: now.plus(Ttl::MIN), ..task.clone() });
    }
    let response = correct(table, op, now);
    for task in waiting {
        table.reindex(task);
    }
    response
}

/// A promoted task still counts as scheduled.
pub(super) fn promoted_is_not_counted(table: &TaskTable) -> Counts {
    let mut counts = (super::rules::CORRECT.counts)(table);
    for task in table.tasks() {
        if task.state == TaskState::Pending && task.ready_at > Timestamp::default().plus(Ttl::MIN) {
            counts.set(TaskState::Pending, counts.get(TaskState::Pending) - 1);
            counts.set(TaskState::Scheduled, counts.get(TaskState::Scheduled) + 1);
        }
    }
    counts
}
