//! What one step may do to a task: by its worker with its token, by a sweeper after its lease, by people at any time.

use leasehold_model::{AttemptResult, HeartbeatResult, Settle, Settled, Task, TaskAnswer, TaskOp, TaskState};

use super::audit::{Pair, Step};
use super::config::Config;
use super::promises::{Broken, Promise};
use super::rules::{Answer, Op};

pub(super) fn check(step: &Step, broken: &mut Broken) {
    for pair in step.pairs() {
        broken.keep(Promise::TerminalStays, terminal_stays(step, &pair));
        broken.keep(Promise::TokensRise, token_rises(step, &pair));
        broken.keep(Promise::VersionRises, version_rises(step, &pair));
        broken.keep(Promise::OthersAreSpared, step.is_about(&pair) || is_spared(step, &pair));
        broken.keep(Promise::PlaceIsKept, place_is_kept(step, &pair));
        starts(step, &pair, broken);
    }
    match step.op {
        Op::Beat(..) => broken.keep(Promise::OnlyTheTokenBeats, beat_is_earned(step)),
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

/// Another head, or a worker that gives a task back, is no reason to stand behind those that came later.
fn place_is_kept(step: &Step, pair: &Pair) -> bool {
    let Pair { before, after, .. } = pair;
    let given_back = matches!(step.op, Op::Settle(settle) if settle.verdict == AttemptResult::Return);
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
    let must_rise = match (step.op, step.answer) {
        (Op::Lease(_), _) => known.lapsed(step.now()) || step.is_leased(pair),
        (Op::Recover, _) => known.lapsed(step.now()),
        (Op::Change(_, TaskOp::Expire), _) => {
            step.is_about(pair) && step.is_done() && known.lapsed(step.now())
        }
        (Op::Change(_, TaskOp::Retry(_)), _) => {
            step.is_about(pair) && step.is_done() && before.state.is_terminal()
        }
        _ => false,
    };
    if must_rise { rises } else { after.token == before.token }
}

/// Signs of life are no change; that the time of a task has come, or its lock, is none that anybody made.
fn version_rises(step: &Step, pair: &Pair) -> bool {
    let renews = matches!(step.op, Op::Beat(..) | Op::Change(_, TaskOp::Want(_)));
    let counts = step.is_about(pair) && !renews && pair.before != pair.after;
    if counts { pair.after.version > pair.before.version } else { pair.after.version == pair.before.version }
}

/// Whoever is not meant stays as it was, except that its time or its lock may come, or its key go to another.
fn is_spared(step: &Step, pair: &Pair) -> bool {
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

/// An attempt begins only by a lease, of a task that nobody has, that is due, not cancelled and not used up.
fn starts(step: &Step, pair: &Pair, broken: &mut Broken) {
    let Pair { number, before, after, known } = pair;
    if !step.is_leased(pair) {
        let begun = after.state == TaskState::Running && before.state != TaskState::Running;
        broken.keep(Promise::OneLease, !begun);
        if matches!(step.op, Op::Lease(_)) && known.lapsed(step.now()) {
            broken.keep(Promise::DeadWorkersTaskGoesOn, goes_on(pair, step));
        }
        return;
    }
    let Op::Lease(ask) = step.op else { return };
    // What had run out was ended first.
    let fresh = known.highest == <_>::default();
    let known = {
        let mut known = (*known).clone();
        known.recovered(step.now());
        known
    };
    let given = after.state == TaskState::Running
        && after.worker == Some(ask.worker)
        && after.lease_expires_at == Some(step.now().plus(ask.ttl));
    broken.keep(Promise::OneLease, known.lease.is_none() && given);
    broken.keep(Promise::CancelledNeverStarts, !known.cancelled);
    broken.keep(Promise::NothingRunsEarly, known.not_before.is_none_or(|time| time <= step.now()));
    let most = step.system.config.tasks[*number].attempts;
    broken.keep(Promise::AttemptsAreBounded, known.attempt < most);
    broken.keep(Promise::AheadIsForTheFresh, after.begun || (fresh && most > 1) || known.runs_alone(most));
    let Answer::Leased(leased) = step.answer else { return };
    broken.keep(Promise::CrashersRunAlone, !known.runs_alone(most) || leased.len() == 1);
}

fn beat_is_earned(step: &Step) -> bool {
    let (Op::Beat(_, held, ttl), Answer::Beat(beat), Some(pair)) = (step.op, step.answer, step.named_pair())
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
    let told = matches!(beat, HeartbeatResult::Extended(asked) if asked.is_some() == pair.known.cancelled);
    told && extended == *pair.after
}

fn settlement(step: &Step, settle: &Settle, broken: &mut Broken) {
    let (Answer::Settled(settled), Some(pair)) = (step.answer, step.named_pair()) else {
        return broken.add(Promise::VerdictIsKept);
    };
    let live = pair.known.lease.is_some_and(|(token, _)| token == settle.token);
    if live {
        let state = expected(&settle.verdict, &pair, step);
        let kept = stands(&pair, state) && *settled == Settled::Now(state);
        return broken.keep(Promise::VerdictIsKept, kept);
    }
    if pair.before.token == settle.token {
        // It was made already. Who sends it again is told where the task stands.
        let again = step.changed_nothing() && *settled == Settled::Now(pair.before.state);
        return broken.keep(Promise::SettledOnce, again);
    }
    let refused = step.changed_nothing() && *settled == Settled::Lost;
    broken.keep(Promise::StaleSettlementChangesNothing, refused);
}

/// Where a task stands after its worker has said how its attempt ended.
fn expected(verdict: &AttemptResult, pair: &Pair, step: &Step) -> TaskState {
    let (cancelled, most) = (pair.known.cancelled, step.system.config.tasks[pair.number].attempts);
    match verdict {
        AttemptResult::Done(_) => TaskState::Succeeded,
        AttemptResult::Fail(_) => TaskState::Failed,
        AttemptResult::Abort(_) => TaskState::Aborted,
        AttemptResult::Retry(..)
        | AttemptResult::Snooze(_)
        | AttemptResult::Defer(_)
        | AttemptResult::Return
            if cancelled =>
        {
            TaskState::Aborted
        }
        AttemptResult::Retry(..) if pair.known.attempt >= most => TaskState::Failed,
        AttemptResult::Retry(..) | AttemptResult::Snooze(_) | AttemptResult::Defer(_) => TaskState::Scheduled,
        AttemptResult::Return => TaskState::Pending,
    }
}

/// Whether it stands there, or waits for a task with its lock that comes before it.
fn stands(pair: &Pair, state: TaskState) -> bool {
    let waits = state == TaskState::Pending && pair.after.state == TaskState::Blocked;
    pair.after.state == state || (waits && pair.after.lock.is_some())
}

/// Whether a task stands where it should after its lease has run out: one that was not started is available at once, one that
/// was after a short pause.
fn goes_on(pair: &Pair, step: &Step) -> bool {
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
    let Answer::Recovered(recovered) = step.answer else {
        return broken.add(Promise::RecoveredOnce);
    };
    let mut lapsed = 0;
    for pair in step.pairs() {
        if pair.known.lapsed(step.now()) {
            lapsed += 1;
            broken.keep(Promise::DeadWorkersTaskGoesOn, goes_on(&pair, step));
        } else if pair.is_abandoned(step.now()) {
            lapsed += 1;
            broken.keep(Promise::RunnerIsAwaited, pair.after.state == TaskState::Failed);
        } else if pair.known.lease.is_some() {
            broken.keep(Promise::RecoverySparesTheLiving, pair.before == pair.after);
        } else if pair.known.wanted.is_some() && !pair.before.state.is_terminal() {
            broken.keep(Promise::RunnerIsAwaited, !pair.after.state.is_terminal());
        }
    }
    broken.keep(Promise::RecoveredOnce, recovered.expired() == lapsed);
}

fn by_hand(step: &Step, op: &TaskOp, broken: &mut Broken) {
    let (Answer::Changed(Some(answer)), Some(Pair { before, after, known, number })) =
        (step.answer, step.named_pair())
    else {
        return broken.add(Promise::NothingIsLost);
    };
    let refused = *answer == TaskAnswer::Refused(before.state) && step.changed_nothing();
    match op {
        TaskOp::Expire => {
            if known.lapsed(step.now()) {
                let pair = Pair { number, before, after, known };
                broken.keep(Promise::DeadWorkersTaskGoesOn, goes_on(&pair, step));
            } else {
                broken.keep(Promise::RecoverySparesTheLiving, refused);
            }
        }
        TaskOp::Cancel(_) | TaskOp::Want(_) if before.state.is_terminal() => {
            broken.keep(Promise::TerminalStays, refused);
        }
        TaskOp::Cancel(_) if before.state == TaskState::Running => {
            let lease = |task: &Task| (task.state, task.token, task.lease_expires_at);
            let told = after.cancel.is_some() && step.is_done();
            broken.keep(Promise::CancelWaitsForTheWorker, told && lease(before) == lease(after));
        }
        TaskOp::Cancel(_) => {
            let ended = after.state == TaskState::Aborted && step.is_done();
            broken.keep(Promise::CancelledNeverStarts, ended);
        }
        TaskOp::Retry(_) => {
            let rests = matches!(before.state, TaskState::Scheduled | TaskState::Failed | TaskState::Aborted);
            let ready = matches!(after.state, TaskState::Pending | TaskState::Blocked) && step.is_done();
            broken.keep(Promise::RetryIsForWhatRests, if rests { ready } else { refused });
        }
        TaskOp::Update(change) if change.expected != before.version => {
            let conflict = *answer == TaskAnswer::VersionConflict(before.version);
            broken.keep(Promise::OldVersionChangesNothing, conflict && step.changed_nothing());
        }
        TaskOp::Update(_) => {
            let done = step.is_done() && after.state == TaskState::Scheduled;
            broken.keep(Promise::VerdictIsKept, done || refused);
        }
        TaskOp::Want(ttl) => {
            let renewed = Task { wanted_until: Some(step.now().plus(*ttl)), ..before.clone() };
            broken.keep(Promise::RunnerIsAwaited, step.is_done() && renewed == *after);
        }
        TaskOp::Lease { .. }
        | TaskOp::Beat(..)
        | TaskOp::Settle(_)
        | TaskOp::Promote
        | TaskOp::Unblock
        | TaskOp::Block => {}
    }
}
