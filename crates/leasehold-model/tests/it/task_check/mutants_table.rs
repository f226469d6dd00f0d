//! Wrong rules for all tasks together: locks, keys, time and counts.

use leasehold_model::{
    AttemptResult, Counts, Enqueued, FinishedFilter, Reuse, Task, TaskOp, TaskState, TaskTable, Timestamp,
    Ttl,
};

use super::mutants_leases::{all, amend};
use super::rules::{Answer, Op, right};

/// Whatever this step has let go on goes on waiting.
fn blocked_stay(table: &mut TaskTable, op: &Op, now: Timestamp, on: bool) -> Answer {
    amend(table, op, now, |before, after| {
        if on && before.state == TaskState::Blocked && after.state == TaskState::Pending {
            after.clone_from(before);
        }
    })
}

pub(super) fn settling_frees_nobody(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let on = matches!(op, Op::Settle(settle) if matches!(settle.verdict, AttemptResult::Done(_)));
    blocked_stay(table, op, now, on)
}

pub(super) fn snoozing_frees_nobody(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let on = matches!(op, Op::Settle(settle) if matches!(settle.verdict, AttemptResult::Snooze(_)));
    blocked_stay(table, op, now, on)
}

pub(super) fn cancelling_frees_nobody(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    blocked_stay(table, op, now, matches!(op, Op::Change(_, TaskOp::Cancel(_))))
}

pub(super) fn putting_off_frees_nobody(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    blocked_stay(table, op, now, matches!(op, Op::Change(_, TaskOp::Update(_))))
}

pub(super) fn recovery_frees_nobody(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    blocked_stay(table, op, now, matches!(op, Op::Recover))
}

pub(super) fn lock_is_forgotten(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.lock = None;
    }
    right(table, &op, now)
}

pub(super) fn due_takes_a_taken_lock(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Scheduled && after.state == TaskState::Blocked {
            (after.state, after.lock) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn all_waiting_go_at_once(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    if matches!(op, Op::Settle(_)) {
        for task in all(table).into_iter().filter(|task| task.state == TaskState::Blocked) {
            table.refile(Task { state: TaskState::Pending, lock: None, ..task });
        }
    }
    answer
}

/// As if all queues of a lock had one head: whoever comes behind a head of another queue waits.
pub(super) fn head_counts_for_all_queues(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    let tasks = all(table);
    let heads: Vec<_> = tasks.iter().filter(|task| task.lock.is_some() && task.state.takes_lock()).collect();
    if let [first, .., last] = heads[..]
        && last.state == TaskState::Pending
        && first.queue != last.queue
    {
        table.refile(Task { state: TaskState::Blocked, ..last.clone() });
    }
    answer
}

pub(super) fn running_head_is_replaced(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    let tasks = all(table);
    let running = tasks.iter().find(|task| task.state == TaskState::Running);
    let better = tasks.iter().find(|task| task.state == TaskState::Blocked);
    if let (Op::Enqueue(_), Some(running), Some(better)) = (op, running, better)
        && better.order() < running.order()
    {
        table.refile(Task { state: TaskState::Blocked, ..running.clone() });
        table.refile(Task { state: TaskState::Pending, ..better.clone() });
    }
    answer
}

pub(super) fn head_is_never_replaced(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let before = all(table);
    let answer = right(table, op, now);
    let replaced = before.into_iter().find(|task| {
        let after = table.get(task.id).map(|after| after.state);
        task.state == TaskState::Pending && after == Some(TaskState::Blocked)
    });
    if let (Op::Enqueue(new), Some(head)) = (op, replaced)
        && let Some(added) = table.get(new.id).cloned()
    {
        table.refile(Task { state: TaskState::Blocked, ..added });
        table.refile(head);
    }
    answer
}

pub(super) fn head_loses_its_place(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Blocked && after.state == TaskState::Pending {
            after.ready_at = now;
        }
    })
}

pub(super) fn returned_loses_its_place(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if before.state == TaskState::Running && after.state == TaskState::Pending {
            after.ready_at = now;
        }
    })
}

/// Recovery sees none of the deadlines of runners.
pub(super) fn gone_runner_is_awaited(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if !matches!(op, Op::Recover) {
        return right(table, op, now);
    }
    let waiting: Vec<_> = all(table).into_iter().filter(|task| task.is_abandoned(now)).collect();
    for task in &waiting {
        table.refile(Task { wanted_until: Some(now.plus(Ttl::MIN)), ..task.clone() });
    }
    right(table, op, now)
}

/// Recovery takes every deadline of a runner for passed.
pub(super) fn live_runner_is_given_up(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if matches!(op, Op::Recover) {
        for task in all(table).into_iter().filter(|task| !task.state.is_terminal()) {
            table.refile(Task { wanted_until: task.wanted_until.map(|_| now), ..task });
        }
    }
    right(table, op, now)
}

pub(super) fn renewal_changes_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::Want(_))) {
            after.wanted_until = before.wanted_until;
        }
    })
}

pub(super) fn cancel_takes_them_all(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if let Op::Change(id, cancel @ TaskOp::Cancel(_)) = op {
        for task in all(table).into_iter().filter(|task| task.id != *id && !task.state.is_terminal()) {
            table.change(task.id, cancel, now);
        }
    }
    right(table, op, now)
}

pub(super) fn key_counts_for_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.key = None;
    }
    right(table, &op, now)
}

pub(super) fn room_is_forgotten(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.room = None;
    }
    right(table, &op, now)
}

/// Those that wait are not counted.
pub(super) fn room_is_for_the_head(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        let waiting = table.tasks().filter(|task| task.state == TaskState::Blocked).count();
        new.room = new.room.map(|room| room + u32::try_from(waiting).unwrap());
    }
    right(table, &op, now)
}

/// Of what stands in the way, only what runs counts: what is about to run does not.
pub(super) fn room_is_free_until_it_runs(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op
        && table.tasks().all(|task| task.state != TaskState::Running)
    {
        new.room = None;
    }
    right(table, &op, now)
}

pub(super) fn room_counts_before_the_key(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if let Op::Enqueue(new) = op
        && new.room == Some(0)
        && table.get(new.id).is_none()
        && let Some(head) = table.tasks().find(|task| task.state.takes_lock())
    {
        return Answer::Enqueued(Enqueued::NoRoom(head.id));
    }
    right(table, op, now)
}

pub(super) fn refused_takes_the_key(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    if let (Op::Enqueue(new), Answer::Enqueued(Enqueued::NoRoom(_))) = (op, &answer)
        && new.key.is_some()
        && let Some(owner) = all(table).into_iter().find(|task| task.key == new.key)
    {
        table.refile(Task { key: None, ..owner });
    }
    answer
}

pub(super) fn key_is_free_when_done(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Enqueue(new) = &mut op {
        new.reuse = Reuse::Finished;
    }
    right(table, &op, now)
}

pub(super) fn key_stays_with_the_old(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Enqueue(_)) {
            after.key.clone_from(&before.key);
        }
    })
}

pub(super) fn added_again_is_begun_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if let Op::Enqueue(new) = op
        && table.get(new.id).is_some()
    {
        table.refile(Task::new(new, now));
    }
    right(table, op, now)
}

pub(super) fn added_is_not_written(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    match op {
        Op::Enqueue(new) => Answer::Enqueued(Enqueued::Added(new.id)),
        _ => right(table, op, now),
    }
}

pub(super) fn given_up_is_forgotten(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    let before = now.plus(Ttl::MIN);
    table.purge(&FinishedFilter { queue: None, state: Some(TaskState::Failed), before, limit: 10 });
    answer
}

/// They are out of sight while anybody looks for what is due.
pub(super) fn time_never_comes(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if !matches!(op, Op::Lease(_) | Op::Recover) {
        return right(table, op, now);
    }
    let waiting = all(table).into_iter().filter(|task| task.state == TaskState::Scheduled);
    let waiting: Vec<_> = waiting.collect();
    for task in &waiting {
        table.refile(Task { run_at: now.plus(Ttl::MIN), ..task.clone() });
    }
    let answer = right(table, op, now);
    for task in waiting {
        table.refile(task);
    }
    answer
}

/// What was promoted still counts as waiting for its time.
pub(super) fn promoted_is_not_counted(table: &TaskTable) -> Counts {
    let mut counts = (super::rules::RIGHT.counts)(table);
    for task in table.tasks() {
        if task.state == TaskState::Pending && task.ready_at > Timestamp::default().plus(Ttl::MIN) {
            counts.set(TaskState::Pending, counts.get(TaskState::Pending) - 1);
            counts.set(TaskState::Scheduled, counts.get(TaskState::Scheduled) + 1);
        }
    }
    counts
}
