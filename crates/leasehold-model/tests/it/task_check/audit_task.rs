//! Properties of one task in a step: which changes its worker may make with its token, a sweeper
//! after its lease, and people at any time.

use leasehold_model::{AttemptResult, HeartbeatResult, Settle, Settled, Task, TaskAnswer, TaskOp, TaskState};

use super::audit::{Pair, Step};
use super::config::Config;
use super::properties::{Broken, Property};
use super::rules::{Op, Response};

pub(super) fn check(step: &Step, broken: &mut Broken) {
    for pair in step.pairs() {
        broken.check(Property::TerminalStays, terminal_stays(step, &pair));
        broken.check(Property::TokensRise, token_rises(step, &pair));
        broken.check(Property::VersionRises, version_rises(step, &pair));
        broken.check(Property::OtherTasksAreUnchanged, step.is_about(&pair) || is_unchanged(step, &pair));
        broken.check(Property::PositionIsKept, position_is_kept(step, &pair));
        starts(step, &pair, broken);
    }
    match step.op {
        Op::Heartbeat(..) => broken.check(Property::OnlyTheTokenSendsHeartbeats, heartbeat_is_correct(step)),
        Op::Settle(settle) => settlement(step, settle, broken),
        Op::Recover => recovery(step, broken),
        Op::Change(_, op) => by_hand(step, op, broken),
        Op::Enqueue(_) | Op::Lease(_) => {}
    }
}

fn terminal_stays(step: &Step, pair: &Pair) -> bool {
    let retried = matches!(step.op, Op::Change(_, TaskOp::Retry(_))) && step.is_about(pair);
    !pair.before.state.is_terminal() || retried || pair.after.state == pair.before.state
}

/// Neither another head nor a worker that returns a task is a reason to move it behind later tasks.
fn position_is_kept(step: &Step, pair: &Pair) -> bool {
    let Pair { before, after, .. } = pair;
    let given_back = matches!(step.op, Op::Settle(settle) if settle.result == AttemptResult::Return);
    let stays = match (before.state, after.state) {
        (TaskState::Blocked, TaskState::Pending) | (TaskState::Pending, TaskState::Blocked) => true,
        (TaskState::Running, TaskState::Pending | TaskState::Blocked) => given_back,
        _ => false,
    };
    !stays || before.ready_at == after.ready_at
}

fn token_rises(step: &Step, pair: &Pair) -> bool {
    let Pair { before, after, known, .. } = pair;
    let rises = after.token > before.token && after.token > known.highest;
    let must_rise = match (step.op, step.response) {
        (Op::Lease(_), _) => known.has_expired(step.now()) || step.is_leased(pair),
        (Op::Recover, _) => known.has_expired(step.now()),
        (Op::Change(_, TaskOp::Expire), _) => {
            step.is_about(pair) && step.is_done() && known.has_expired(step.now())
        }
        (Op::Change(_, TaskOp::Retry(_)), _) => {
            step.is_about(pair) && step.is_done() && before.state.is_terminal()
        }
        _ => false,
    };
    if must_rise { rises } else { after.token == before.token }
}

/// Heartbeats are no change of the version; neither is it if a task becomes due or gets its lock.
fn version_rises(step: &Step, pair: &Pair) -> bool {
    let renews = matches!(step.op, Op::Heartbeat(..) | Op::Change(_, TaskOp::RenewRunner(_)));
    let counts = step.is_about(pair) && !renews && pair.before != pair.after;
    if counts { pair.after.version > pair.before.version } else { pair.after.version == pair.before.version }
}

/// A task that the operation does not name is unchanged, except that it may become due, get its
/// lock, or lose its key to another task.
fn is_unchanged(step: &Step, pair: &Pair) -> bool {
    let Pair { before, after, .. } = pair;
    let due = matches!(step.op, Op::Lease(_) | Op::Recover) && before.run_at <= step.now();
    let may_move = match (before.state, after.state) {
        (TaskState::Scheduled, TaskState::Pending | TaskState::Blocked) => due,
        // The head of its lock has changed.
        (TaskState::Blocked, TaskState::Pending) => true,
        (TaskState::Pending, TaskState::Blocked) => before.lock.is_some(),
        (old, new) => old == new && before.ready_at == after.ready_at,
    };
    let mut moved = Task { state: after.state, ready_at: after.ready_at, ..(*before).clone() };
    if matches!(step.op, Op::Enqueue(_)) {
        moved.key.clone_from(&after.key);
    }
    may_move && moved == **after
}

/// An attempt begins only by a lease of a task that is not leased, is due, not cancelled, and has
/// attempts left.
fn starts(step: &Step, pair: &Pair, broken: &mut Broken) {
    let Pair { number, before, after, known } = pair;
    if !step.is_leased(pair) {
        let begun = after.state == TaskState::Running && before.state != TaskState::Running;
        broken.check(Property::OneLease, !begun);
        if matches!(step.op, Op::Lease(_)) && known.has_expired(step.now()) {
            broken.check(Property::DeadWorkersTaskContinues, continues_correctly(pair, step));
        }
        return;
    }
    let Op::Lease(request) = step.op else { return };
    // The expired lease was ended first.
    let fresh = known.highest == <_>::default();
    let known = {
        let mut known = (*known).clone();
        known.recovered(step.now());
        known
    };
    let given = after.state == TaskState::Running
        && after.worker == Some(request.worker)
        && after.lease_expires_at == Some(step.now().plus(request.ttl));
    broken.check(Property::OneLease, known.lease.is_none() && given);
    broken.check(Property::CancelledNeverStarts, !known.cancelled);
    broken.check(Property::NothingRunsEarly, known.not_before.is_none_or(|time| time <= step.now()));
    let most = step.system.config.tasks[*number].attempts;
    broken.check(Property::AttemptsAreBounded, known.attempt < most);
    let starts_later = request.waits_for_locks && after.lock.is_some();
    broken.check(
        Property::OnlyFreshTasksArePrefetched,
        starts_later || after.begun || (fresh && most > 1) || known.runs_alone(most),
    );
    broken.check(Property::AttemptsAreCounted, !(starts_later && after.begun));
    let Response::Leased(leased) = step.response else { return };
    broken.check(Property::RepeatedCrashersRunAlone, !known.runs_alone(most) || leased.len() == 1);
}

fn heartbeat_is_correct(step: &Step) -> bool {
    let (Op::Heartbeat(_, held, ttl), Response::Heartbeat(beat), Some(pair)) =
        (step.op, step.response, step.named_pair())
    else {
        return false;
    };
    if pair.known.lease.is_none_or(|(token, _)| token != held.token) {
        return step.changed_nothing() && *beat == HeartbeatResult::Lost;
    }
    let extended = Task {
        lease_expires_at: Some(step.now().plus(*ttl)),
        begun: pair.before.begun || held.begun,
        ..pair.before.clone()
    };
    let content =
        matches!(beat, HeartbeatResult::Extended(cancel) if cancel.is_some() == pair.known.cancelled);
    content && extended == *pair.after
}

fn settlement(step: &Step, settle: &Settle, broken: &mut Broken) {
    let (Response::Settled(settled), Some(pair)) = (step.response, step.named_pair()) else {
        return broken.add(Property::SettlementIsApplied);
    };
    let live = pair.known.lease.is_some_and(|(token, _)| token == settle.token);
    if live {
        let state = expected(&settle.result, &pair, step);
        let kept = has_state(&pair, state) && *settled == Settled::Now(state);
        return broken.check(Property::SettlementIsApplied, kept);
    }
    if pair.before.token == settle.token {
        // The settlement was made already. A repeated one returns the state of the task.
        let again = step.changed_nothing() && *settled == Settled::Now(pair.before.state);
        return broken.check(Property::SettledOnce, again);
    }
    let refused = step.changed_nothing() && *settled == Settled::Lost;
    broken.check(Property::StaleSettlementChangesNothing, refused);
}

/// Returns the state of a task after its worker has settled the attempt.
fn expected(result: &AttemptResult, pair: &Pair, step: &Step) -> TaskState {
    let (cancelled, most) = (pair.known.cancelled, step.system.config.tasks[pair.number].attempts);
    match result {
        AttemptResult::Done(_) => TaskState::Succeeded,
        AttemptResult::Abort(_) => TaskState::Aborted,
        AttemptResult::Fail(_)
        | AttemptResult::Retry(..)
        | AttemptResult::Snooze(_)
        | AttemptResult::Defer(_)
        | AttemptResult::Return
            if cancelled =>
        {
            TaskState::Aborted
        }
        AttemptResult::Fail(_) => TaskState::Failed,
        AttemptResult::Retry(..) if pair.known.attempt >= most => TaskState::Failed,
        AttemptResult::Retry(..) | AttemptResult::Snooze(_) | AttemptResult::Defer(_) => TaskState::Scheduled,
        AttemptResult::Return => TaskState::Pending,
    }
}

/// Whether the task has this state, or waits for a task with its lock that comes before it.
fn has_state(pair: &Pair, state: TaskState) -> bool {
    let waits = state == TaskState::Pending && pair.after.state == TaskState::Blocked;
    pair.after.state == state || (waits && pair.after.lock.is_some())
}

/// Whether a task has the right state after its lease has expired: one that was not started is
/// available at once, one that was started after a short delay.
fn continues_correctly(pair: &Pair, step: &Step) -> bool {
    let (state, known) = (pair.after.state, pair.known);
    let used_up = known.begun && known.attempt >= step.system.config.tasks[pair.number].attempts;
    if known.cancelled || used_up {
        return state == if known.cancelled { TaskState::Aborted } else { TaskState::Failed };
    }
    let soon = known.lease.is_some_and(|(_, end)| pair.after.run_at <= end.plus(Config::lasting(2)));
    let ready = matches!(state, TaskState::Pending | TaskState::Blocked);
    ready || (state == TaskState::Scheduled && known.begun && soon)
}

fn recovery(step: &Step, broken: &mut Broken) {
    let Response::Recovered(recovered) = step.response else {
        return broken.add(Property::RecoveredOnce);
    };
    let mut has_expired = 0;
    for pair in step.pairs() {
        if pair.known.has_expired(step.now()) {
            has_expired += 1;
            broken.check(Property::DeadWorkersTaskContinues, continues_correctly(&pair, step));
        } else if pair.is_abandoned(step.now()) {
            has_expired += 1;
            broken.check(Property::RunnerIsAwaited, pair.after.state == TaskState::Failed);
        } else if pair.known.lease.is_some() {
            broken.check(Property::RecoveryEndsNoLiveLease, pair.before == pair.after);
        } else if pair.known.runner_deadline.is_some() && !pair.before.state.is_terminal() {
            broken.check(Property::RunnerIsAwaited, !pair.after.state.is_terminal());
        }
    }
    broken.check(Property::RecoveredOnce, recovered.expired() == has_expired);
}

fn by_hand(step: &Step, op: &TaskOp, broken: &mut Broken) {
    let (Response::Changed(Some(response)), Some(Pair { before, after, known, number })) =
        (step.response, step.named_pair())
    else {
        return broken.add(Property::NothingIsLost);
    };
    let refused = *response == TaskAnswer::Refused(before.state) && step.changed_nothing();
    match op {
        TaskOp::Expire => {
            if known.has_expired(step.now()) {
                let pair = Pair { number, before, after, known };
                broken.check(Property::DeadWorkersTaskContinues, continues_correctly(&pair, step));
            } else {
                broken.check(Property::RecoveryEndsNoLiveLease, refused);
            }
        }
        TaskOp::Cancel(_) | TaskOp::RenewRunner(_) if before.state.is_terminal() => {
            broken.check(Property::TerminalStays, refused);
        }
        TaskOp::Cancel(_) if before.state == TaskState::Running => {
            let lease = |task: &Task| (task.state, task.token, task.lease_expires_at);
            let content = after.cancel.is_some() && step.is_done();
            broken.check(Property::CancelWaitsForTheWorker, content && lease(before) == lease(after));
        }
        TaskOp::Cancel(_) => {
            let ended = after.state == TaskState::Aborted && step.is_done();
            broken.check(Property::CancelledNeverStarts, ended);
        }
        TaskOp::Retry(_) => {
            let rests = matches!(before.state, TaskState::Scheduled | TaskState::Failed | TaskState::Aborted);
            let ready = matches!(after.state, TaskState::Pending | TaskState::Blocked) && step.is_done();
            broken.check(Property::RetryOnlyIdleTasks, if rests { ready } else { refused });
        }
        TaskOp::Update(change) if change.expected != before.version => {
            let conflict = *response == TaskAnswer::VersionConflict(before.version);
            broken.check(Property::OldVersionChangesNothing, conflict && step.changed_nothing());
        }
        TaskOp::Update(_) => {
            let done = step.is_done() && after.state == TaskState::Scheduled;
            broken.check(Property::SettlementIsApplied, done || refused);
        }
        TaskOp::RenewRunner(ttl) => {
            let renewed = Task { runner_deadline: Some(step.now().plus(*ttl)), ..before.clone() };
            broken.check(Property::RunnerIsAwaited, step.is_done() && renewed == *after);
        }
        TaskOp::Lease { .. }
        | TaskOp::Heartbeat(..)
        | TaskOp::Settle(_)
        | TaskOp::Promote
        | TaskOp::Unblock
        | TaskOp::Block => {}
    }
}
