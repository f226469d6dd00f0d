//! Wrong rules for what a worker and a sweeper may do to one task.

use leasehold_model::{
    AttemptResult, HeartbeatResult, Task, TaskAnswer, TaskOp, TaskState, TaskTable, Timestamp,
};

use super::config::Config;
use super::rules::{Answer, Op, right};

/// The tasks before a step, for a rule that undoes a part of it.
pub(super) fn all(table: &TaskTable) -> Vec<Task> {
    table.tasks().cloned().collect()
}

/// Lets the right rules act, then changes each task, given as it was before and is now.
pub(super) fn amend(
    table: &mut TaskTable,
    op: &Op,
    now: Timestamp,
    mut change: impl FnMut(&Task, &mut Task),
) -> Answer {
    let before = all(table);
    let mut answer = right(table, op, now);
    for before in &before {
        let Some(mut after) = table.get(before.id).cloned() else { continue };
        change(before, &mut after);
        if let Answer::Leased(leased) = &mut answer {
            leased.iter_mut().filter(|task| task.id == after.id).for_each(|task| task.clone_from(&after));
        }
        if table.get(before.id) != Some(&after) {
            table.refile(after);
        }
    }
    answer
}

/// Changes each task first, then lets the right rules act.
fn prepare(table: &mut TaskTable, op: &Op, now: Timestamp, mut change: impl FnMut(&mut Task)) -> Answer {
    for mut task in all(table) {
        let before = task.clone();
        change(&mut task);
        if task != before {
            table.refile(task);
        }
    }
    right(table, op, now)
}

pub(super) fn lease_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Lease(_)) && before.token > <_>::default() {
            after.token = before.token;
        }
    })
}

pub(super) fn recovery_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) {
            after.token = before.token;
        }
    })
}

pub(super) fn retry_keeps_the_token(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::Retry(_))) {
            after.token = before.token;
        }
    })
}

pub(super) fn any_token_settles(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Settle(settle) = &mut op
        && let Some(task) = table.get(settle.id)
    {
        settle.token = task.token;
    }
    right(table, &op, now)
}

/// Whoever has the number of the attempt is believed: after it was put off, two have the same.
pub(super) fn attempt_is_the_fence(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    match op {
        Op::Settle(settle) if table.get(settle.id).is_some_and(|task| task.attempt == 1) => {
            any_token_settles(table, op, now)
        }
        _ => right(table, op, now),
    }
}

pub(super) fn any_token_beats(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Beat(_, held, _) = &mut op
        && let Some(task) = table.get(held.id)
    {
        held.token = task.token;
    }
    right(table, &op, now)
}

/// The task is in line again, but nobody has it yet: so its last worker is still believed.
pub(super) fn settled_after_recovery(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let Op::Settle(settle) = op else { return right(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == settle.id && task.state == TaskState::Pending && task.token != settle.token {
            (task.state, task.token, task.lease_expires_at) = (TaskState::Running, settle.token, Some(now));
        }
    })
}

pub(super) fn settled_twice(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let Op::Settle(settle) = op else { return right(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == settle.id && task.token == settle.token && !task.state.is_terminal() {
            (task.state, task.lease_expires_at) = (TaskState::Running, Some(now));
            task.attempt = task.attempt.max(1);
        }
    })
}

pub(super) fn lease_is_recovered_by_age(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Beat(..)) {
            after.lease_expires_at = before.lease_expires_at;
        }
    })
}

pub(super) fn recovery_ends_all(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.state == TaskState::Running {
            task.lease_expires_at = Some(now);
        }
    })
}

/// Who looked earlier acts on what it saw then.
pub(super) fn sweeper_does_not_look_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let Op::Change(id, TaskOp::Expire) = op else { return right(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == *id && task.state == TaskState::Running {
            task.lease_expires_at = Some(now);
        }
    })
}

pub(super) fn recovery_is_told_twice(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut answer = right(table, op, now);
    if let Answer::Recovered(recovered) = &mut answer {
        recovered.returned *= 2;
    }
    answer
}

pub(super) fn recovery_does_not_count(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) && before.state == TaskState::Running && after.state != before.state {
            after.attempt -= 1;
        }
    })
}

pub(super) fn recovery_never_gives_up(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Recover) && after.state == TaskState::Failed {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn nothing_is_recovered(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if matches!(op, Op::Lease(_)) {
        return lease_ends_nothing(table, op, now);
    }
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Recover) && before.state == TaskState::Running {
            after.clone_from(before);
        }
    })
}

pub(super) fn snooze_uses_an_attempt(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if let Op::Settle(settle) = op
            && matches!(settle.verdict, AttemptResult::Snooze(_))
        {
            after.attempt = before.attempt;
        }
    })
}

pub(super) fn return_uses_an_attempt(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if let Op::Settle(settle) = op
            && settle.verdict == AttemptResult::Return
        {
            after.attempt = before.attempt;
        }
    })
}

pub(super) fn failing_for_good_is_tried_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Settle(_)) && after.state == TaskState::Failed && before.attempt == 1 {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn put_off_runs_at_once(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Settle(_)) && after.state == TaskState::Scheduled {
            (after.state, after.run_at) = (TaskState::Pending, now);
        }
    })
}

pub(super) fn cancel_kills_at_once(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |_, after| {
        if matches!(op, Op::Change(_, TaskOp::Cancel(_))) && after.state == TaskState::Running {
            (after.state, after.lease_expires_at, after.finished_at) = (TaskState::Aborted, None, Some(now));
        }
    })
}

pub(super) fn cancelled_waits_in_line(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Change(_, TaskOp::Cancel(_))) && before.state == TaskState::Pending {
            (after.state, after.finished_at) = (before.state, None);
        }
    })
}

pub(super) fn cancelled_is_tried_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        let ended = before.state == TaskState::Running && after.state == TaskState::Aborted;
        if matches!(op, Op::Settle(_) | Op::Recover) && ended && before.attempt == 1 {
            (after.state, after.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn beat_does_not_tell(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    match right(table, op, now) {
        Answer::Beat(HeartbeatResult::Extended(_)) => Answer::Beat(HeartbeatResult::Extended(None)),
        answer => answer,
    }
}

pub(super) fn done_is_leased_again(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Lease(_)) && task.state == TaskState::Succeeded {
            (task.state, task.finished_at) = (TaskState::Pending, None);
        }
    })
}

pub(super) fn retry_begins_what_is_done(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let Op::Change(id, TaskOp::Retry(_)) = op else { return right(table, op, now) };
    prepare(table, op, now, |task| {
        if task.id == *id && task.state == TaskState::Succeeded {
            task.state = TaskState::Failed;
        }
    })
}

pub(super) fn leased_stays_in_line(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let answer = right(table, op, now);
    if let Answer::Leased(leased) = &answer {
        for leased in leased {
            table.refile(Task { state: TaskState::Pending, ..leased.clone() });
        }
    }
    answer
}

pub(super) fn time_comes_early(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Lease(_) | Op::Recover) && task.state == TaskState::Scheduled {
            task.run_at = task.run_at.minus(Config::TICK.as_duration());
        }
    })
}

pub(super) fn version_is_not_raised(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        if matches!(op, Op::Settle(_)) {
            after.version = before.version;
        }
    })
}

pub(super) fn version_is_ignored(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Change(id, TaskOp::Update(change)) = &mut op
        && let Some(task) = table.get(*id)
    {
        change.expected = task.version;
    }
    right(table, &op, now)
}

pub(super) fn conflict_is_hidden(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    match right(table, op, now) {
        Answer::Changed(Some(TaskAnswer::VersionConflict(_))) => Answer::Changed(Some(TaskAnswer::Done)),
        answer => answer,
    }
}

/// An attempt that was started is given back as if it had not been.
pub(super) fn begun_is_forgotten(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.has_expired(now) {
            task.begun = false;
        }
    })
}

/// Every lease is an attempt.
pub(super) fn ahead_counts(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    prepare(table, op, now, |task| {
        if matches!(op, Op::Recover) && task.has_expired(now) {
            task.begun = true;
        }
    })
}

pub(super) fn start_is_not_heard(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut op = op.clone();
    if let Op::Beat(_, held, _) = &mut op {
        held.begun = false;
    }
    right(table, &op, now)
}

/// Each lease is one that may be started later, again and again.
pub(super) fn anything_is_fetched_ahead(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    let mut eager = op.clone();
    if let Op::Lease(ask) = &mut eager {
        ask.begin = u32::MAX;
    }
    let mut answer = amend(table, &eager, now, |before, after| {
        if matches!(op, Op::Lease(_)) && after.token != before.token && after.state == TaskState::Running {
            after.begun = false;
        }
    });
    if let Answer::Leased(leased) = &mut answer {
        for task in leased.iter_mut() {
            task.begun = false;
        }
    }
    answer
}

pub(super) fn expiries_are_forgotten(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |_, after| after.expiries = 0)
}

pub(super) fn lost_lease_has_no_pause(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    amend(table, op, now, |before, after| {
        let lost = before.state == TaskState::Running && after.state == TaskState::Scheduled;
        if lost && matches!(op, Op::Recover | Op::Lease(_)) {
            (after.state, after.run_at) = (TaskState::Pending, now);
        }
    })
}

/// Only a recovery ends what has run out: a lease leaves it where it is.
pub(super) fn lease_ends_nothing(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    if !matches!(op, Op::Lease(_)) {
        return right(table, op, now);
    }
    let run_out: Vec<Task> = all(table).into_iter().filter(|task| task.has_expired(now)).collect();
    for task in &run_out {
        table.refile(Task { lease_expires_at: Some(now.plus(Config::TICK)), ..task.clone() });
    }
    let answer = right(table, op, now);
    for task in run_out {
        table.refile(task);
    }
    answer
}
