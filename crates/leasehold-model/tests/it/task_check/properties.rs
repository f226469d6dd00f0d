//! Properties that must hold, by name; and the checks of the workers' beliefs, and that every task
//! can end.

use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_model::{LeaseTasks, Settle, Task, TaskState};

use super::config::{AttemptEnd, Config, queues, task_id, worker_id};
use super::rules::{Op, Response};
use super::state::State;
use super::system::System;
use crate::shared::{self, properties};

properties! {
    LateReplyIsNoLease: "S2 a late reply is no lease",
    TokensRise: "S3 tokens rise with every lease and every end by another caller",
    WritesNeverGoBack: "S4 accepted writes never go back",
    OnlyTheTokenSendsHeartbeats: "S5 only the exact token sends heartbeats",
    StaleSettlementChangesNothing: "S5 a stale settlement changes nothing",
    OneLease: "S6 a task has one lease at a time",
    BeliefIsBacked: "S6 every belief is backed by a lease",
    OneAttemptAtATime: "S6 a worker makes one attempt at a task at a time",
    TerminalStays: "S6 a finished task stays finished",
    SettledOnce: "S6 a token settles once",
    NothingIsLost: "S7 an acknowledged task is stored",
    EverythingCanEnd: "S7 every task can end",
    FreeLockIsTaken: "S7 a free lock unblocks the next task",
    KeyIsOneTask: "S8 a key belongs to one task",
    RecoveryEndsNoLiveLease: "S9 recovery ends no live lease",
    RecoveredOnce: "S9 a lease is recovered once",
    DeadWorkersTaskContinues: "L1 a dead worker's task is requeued or fails",
    SettlementIsApplied: "a settlement has the requested effect",
    AttemptsAreCounted: "started attempts are counted, except snoozed ones",
    StartsAreCounted: "at most one started attempt is not counted, and none of a single one",
    OnlyFreshTasksArePrefetched: "only tasks that were never leased are prefetched",
    RepeatedCrashersRunAlone: "a task that lost its leases runs alone",
    AttemptsAreBounded: "there are no more attempts than allowed",
    CancelledNeverStarts: "a cancelled task never starts",
    CancelWaitsForTheWorker: "a running task is stopped by its worker",
    NothingRunsEarly: "no task runs before it is due",
    OneHeadPerLock: "of tasks of a queue with one lock one is pending or running",
    HeadComesFirst: "a head that does not run yet comes before all blocked tasks",
    PositionIsKept: "a task that is blocked or returned keeps its position",
    RunnerIsAwaited: "a task fails when its runner is dead, and not before",
    QueueLimitIsRespected: "the limit of a lock queue is respected",
    CountsAreCorrect: "the counts match the stored tasks",
    VersionRises: "the version rises with every change",
    OldVersionChangesNothing: "an update with an old version changes nothing",
    RetryOnlyIdleTasks: "a retry by hand restarts only finished or waiting tasks",
    OtherTasksAreUnchanged: "a step changes only the task that it names",
}

pub(super) type Broken = shared::Broken<Property>;

/// S6: a worker that believes at this moment to hold a task holds it, and is the only one.
pub(super) fn check_beliefs(state: &mut State) {
    let mut believed = Vec::new();
    for worker in &state.workers {
        for (index, held) in worker.held_leases.iter().enumerate().filter(|(_, held)| !held.settling) {
            let earlier = worker.held_leases[..index].iter();
            let twice = earlier.filter(|other| other.task == held.task && !other.settling).count() > 0;
            state.broken.check(Property::OneAttemptAtATime, !twice);
            if held.until <= state.now {
                continue;
            }
            let task = state.table.get(task_id(held.task));
            let backed = |task: &Task| {
                task.state == TaskState::Running
                    && task.token == held.token
                    && task.lease_expires_at.is_some_and(|end| end >= held.until)
            };
            state.broken.check(Property::BeliefIsBacked, task.is_some_and(backed));
            state.broken.check(Property::OneLease, !believed.contains(&held.task));
            believed.push(held.task);
        }
    }
}

/// S7: with time, a sweeper and one working worker, every task ends. Tried on a copy of the table.
pub(super) fn check_end(system: &System, state: &mut State) {
    let mut hash = DefaultHasher::new();
    state.table.hash(&mut hash);
    let hash = hash.finish();
    if system.ended.lock().unwrap().contains(&hash) {
        return;
    }
    if can_end(system, state) {
        system.ended.lock().unwrap().insert(hash);
    } else {
        state.broken.add(Property::EverythingCanEnd);
    }
}

fn can_end(system: &System, state: &State) -> bool {
    let (mut table, mut now) = (state.table.clone(), state.now);
    let apply = system.rules.apply;
    let request =
        LeaseTasks { worker: worker_id(99), max: 10, queues: queues(), ..system.config.lease_request(0, 2) };
    for _ in 0..=system.config.tasks.len() {
        if table.tasks().all(|task| task.state.is_terminal()) {
            return true;
        }
        now = now.plus(Config::lasting(100));
        apply(&mut table, &Op::Recover, now);
        if let Response::Leased(leased) = apply(&mut table, &Op::Lease(request.clone()), now) {
            for Task { id, token, .. } in leased {
                let result = AttemptEnd::Done.result();
                apply(&mut table, &Op::Settle(Settle { id, token, result }), now);
            }
        }
    }
    table.tasks().all(|task| task.state.is_terminal())
}
