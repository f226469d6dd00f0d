//! What must hold, by name; and the promises about what workers believe, and that everything can end.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_model::{LeaseTasks, Settle, Task, TaskState};
use stateright::Property;

use super::config::{Config, How, queues, task_id, worker_id};
use super::rules::{Answer, Op};
use super::state::State;
use super::system::System;

macro_rules! promises {
    ($($promise:ident: $name:literal,)+) => {
        /// One promise. The letters are those under which the project states it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Promise {
            $($promise,)+
        }

        impl Promise {
            pub(super) const ALL: &'static [Self] = &[$(Self::$promise),+];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$promise => $name,)+
                }
            }
        }
    };
}

promises! {
    LateReplyIsNoLease: "S2 a late reply is no lease",
    TokensRise: "S3 tokens rise with every lease and every end from outside",
    WritesNeverGoBack: "S4 accepted writes never go back",
    OnlyTheTokenBeats: "S5 only the exact token gives a sign of life",
    StaleSettlementChangesNothing: "S5 a stale settlement changes nothing",
    OneLease: "S6 a task has one lease at a time",
    BeliefIsBacked: "S6 every belief is backed by a lease",
    OneAttemptAtATime: "S6 a worker makes one attempt at a task at a time",
    TerminalStays: "S6 what is over stays over",
    SettledOnce: "S6 a token settles once",
    NothingIsLost: "S7 an acknowledged task is there",
    EverythingCanEnd: "S7 every task can end",
    FreeLockIsTaken: "S7 a free lock lets the next one go",
    KeyIsOneTask: "S8 a key belongs to one task",
    RecoverySparesTheLiving: "S9 recovery spares the living",
    RecoveredOnce: "S9 a lease is recovered once",
    DeadWorkersTaskGoesOn: "L1 what a dead worker had goes on or is given up",
    VerdictIsKept: "a settlement does what it says",
    AttemptsAreCounted: "attempts that began are counted, those that were put off aside",
    StartsAreCounted: "of what was started, one attempt at most is not counted, and none of a single one",
    AheadIsForTheFresh: "only what was never leased is fetched ahead",
    CrashersRunAlone: "what lost its leases runs alone",
    AttemptsAreBounded: "there are no more attempts than allowed",
    CancelledNeverStarts: "what is cancelled never starts",
    CancelWaitsForTheWorker: "a running task is stopped by its worker",
    NothingRunsEarly: "nothing runs before its time",
    OneHeadPerLock: "of tasks of a queue with one lock one is pending or running",
    HeadComesFirst: "a head that does not run yet comes before all that wait",
    PlaceIsKept: "a task that waits behind a head or is given back keeps its place",
    RunnerIsAwaited: "a task has failed when its runner is gone, and not before",
    RoomIsKept: "room behind a lock is kept",
    CountsAreTrue: "the counts are what is there",
    VersionRises: "the version rises with every change",
    OldVersionChangesNothing: "an update with an old version changes nothing",
    RetryIsForWhatRests: "a retry by hand begins only what is over or waits",
    OthersAreSpared: "a step touches only the task it is about",
}

/// The promises that one step broke. Always empty under the right rules, so that it adds no states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Broken(u64);

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = Promise::ALL.iter().filter(|promise| self.has(**promise));
        f.debug_list().entries(broken.map(|promise| promise.name())).finish()
    }
}

impl Broken {
    pub(super) fn add(&mut self, promise: Promise) {
        self.0 |= 1 << promise as u64;
    }

    pub(super) fn add_all(&mut self, others: Self) {
        self.0 |= others.0;
    }

    pub(super) fn keep(&mut self, promise: Promise, holds: bool) {
        if !holds {
            self.add(promise);
        }
    }

    pub(super) fn has(self, promise: Promise) -> bool {
        self.0 & 1 << promise as u64 != 0
    }
}

/// What the checker asks of every state: one promise if one is sought, else all of them at once. A state tells which broke.
pub(super) fn properties(sought: Option<Promise>) -> Vec<Property<System>> {
    vec![match sought {
        None => Property::always("every promise", |_, state: &State| state.broken == Broken::default()),
        Some(promise) => Property::always(promise.name(), |system: &System, state: &State| {
            system.sought.is_none_or(|promise| !state.broken.has(promise))
        }),
    }]
}

/// S6: who believes to have a task at this moment has it, and is the only one.
pub(super) fn check_beliefs(state: &mut State) {
    let mut believed = Vec::new();
    for worker in &state.workers {
        for (place, hand) in worker.hands.iter().enumerate().filter(|(_, hand)| !hand.settling) {
            let earlier = worker.hands[..place].iter();
            let twice = earlier.filter(|other| other.task == hand.task && !other.settling).count() > 0;
            state.broken.keep(Promise::OneAttemptAtATime, !twice);
            if hand.until <= state.now {
                continue;
            }
            let task = state.table.get(task_id(hand.task));
            let backed = |task: &Task| {
                task.state == TaskState::Running
                    && task.token == hand.token
                    && task.lease_expires_at.is_some_and(|end| end >= hand.until)
            };
            state.broken.keep(Promise::BeliefIsBacked, task.is_some_and(backed));
            state.broken.keep(Promise::OneLease, !believed.contains(&hand.task));
            believed.push(hand.task);
        }
    }
}

/// S7: with time, a sweeper and one worker that does its work, everything ends. Tried out on a copy of the table.
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
        state.broken.add(Promise::EverythingCanEnd);
    }
}

fn can_end(system: &System, state: &State) -> bool {
    let (mut table, mut now) = (state.table.clone(), state.now);
    let apply = system.rules.apply;
    let ask = LeaseTasks { worker: worker_id(99), max: 10, queues: queues(), ..system.config.ask(0, 2) };
    for _ in 0..=system.config.tasks.len() {
        if table.tasks().all(|task| task.state.is_terminal()) {
            return true;
        }
        now = now.plus(Config::lasting(100));
        apply(&mut table, &Op::Recover, now);
        if let Answer::Leased(leased) = apply(&mut table, &Op::Lease(ask.clone()), now) {
            for Task { id, token, .. } in leased {
                let verdict = How::Done.verdict();
                apply(&mut table, &Op::Settle(Settle { id, token, verdict }), now);
            }
        }
    }
    table.tasks().all(|task| task.state.is_terminal())
}
