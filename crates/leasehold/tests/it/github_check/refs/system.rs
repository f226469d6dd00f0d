//! Ref, network and workers as a state machine.

use stateright::{Model, Property};

/// TTL of a lease, in ticks.
pub(super) const TTL: u8 = 2;
/// Resolution of the service's times, which are rounded down.
pub(super) const RESOLUTION: u8 = 2;
/// Maximum number of reads of a worker.
const MAX_READS: u8 = 4;

/// Content of a commit. Its version is its index among the tips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tip {
    pub(super) holder: Option<u8>,
    /// Number that changes with each heartbeat of the holder.
    pub(super) heartbeat: u8,
    /// Time of that heartbeat by the service's clock.
    pub(super) date: u8,
}

/// Purpose of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Purpose {
    Acquire,
    Renew,
    Release,
    /// Adds a ticket to the queue; the holder stays the same.
    Wait,
    /// Changes nothing; succeeds only if the tip that was read is the newest.
    Confirm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Push {
    pub(super) from: u8,
    pub(super) sent: u8,
    /// Tip that was read.
    pub(super) parent: u8,
    pub(super) purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reply {
    pub(super) push: Push,
    /// Index of the commit among the tips; `None` if the push was refused.
    pub(super) version: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    /// About to read, because it wants the lock.
    Acquiring,
    /// Waiting for a response.
    Pushing,
    Holding,
    /// About to read, because a renewal was refused.
    Uncertain,
    /// Dead, done, refused, or informed that it has lost its lease.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) phase: Phase,
    /// Time until which the worker relies on its lease, if it has one.
    pub(super) deadline: u8,
    /// Version of the worker's last commit.
    pub(super) known: u8,
    /// Heartbeat of another worker that this one observes, and since when.
    pub(super) observed: Option<(u8, u8)>,
    pub(super) reads: u8,
    pub(super) renewals: u8,
    pub(super) waits: u8,
}

impl Worker {
    pub(super) const fn new(phase: Phase) -> Self {
        Self { phase, deadline: 0, known: 0, observed: None, reads: 0, renewals: 0, waits: 0 }
    }

    pub(super) fn believes_to_hold(&self, now: u8) -> bool {
        now < self.deadline
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: u8,
    /// All tips that the ref has had, newest last.
    pub(super) tips: Vec<Tip>,
    pub(super) workers: Vec<Worker>,
    pub(super) pushes: Vec<Push>,
    pub(super) replies: Vec<Reply>,
    /// Whether a live holder was informed that it has lost its lease.
    pub(super) misinformed: bool,
    /// Whether a worker has taken over from one that had not released.
    pub(super) replaced: bool,
    /// Whether a push was refused because the worker's read was stale.
    pub(super) refused: bool,
}

impl State {
    pub(super) fn newest(&self) -> Tip {
        *self.tips.last().expect("there is always a tip")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Tick,
    Start(u8),
    /// Reads the tip with this index.
    Read(u8, u8),
    /// Reads the tip with this index, and adds a ticket to the queue.
    Wait(u8, u8),
    Renew(u8),
    Release(u8),
    Deliver(usize),
    Receive(usize),
}

/// Decisions of a worker; a mutant replaces one of them.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Whether a push moves the ref whatever its tip: `force: true`.
    pub(super) force: bool,
    /// Whether the lease of this tip has ended, for a worker that has observed this heartbeat since
    /// then.
    pub(super) has_ended: fn(Tip, Option<(u8, u8)>, u8) -> bool,
    /// Whether a worker trusts a read alone that says that it has lost its lease.
    pub(super) trusts_reads: bool,
    /// Whether a response counts that arrives after the lease could have ended.
    pub(super) late_responses_count: bool,
}

#[derive(Clone)]
pub(super) struct System {
    pub(super) rules: Rules,
    pub(super) workers: u8,
    pub(super) horizon: u8,
    pub(super) renewals: u8,
    pub(super) waits: u8,
}

pub(super) const ONE_HOLDER: &str = "there are never two holders";
pub(super) const NOT_MISINFORMED: &str = "no live holder is informed that it has lost its lease";
pub(super) const REPLACED: &str = "a dead holder is replaced";
pub(super) const REFUSED: &str = "a stale read is detected by a write";

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            tips: vec![Tip { holder: None, heartbeat: 0, date: 0 }],
            workers: vec![Worker::new(Phase::Idle); usize::from(self.workers)],
            pushes: Vec::new(),
            replies: Vec::new(),
            misinformed: false,
            replaced: false,
            refused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        let versions = 0..u8::try_from(state.tips.len()).expect("there are few tips");
        for (number, worker) in (0..).zip(&state.workers) {
            match worker.phase {
                // Workers are alike, so the first one starts first.
                Phase::Idle if number == 0 || state.workers[0].phase != Phase::Idle => {
                    actions.push(Action::Start(number));
                }
                Phase::Acquiring | Phase::Uncertain if worker.reads < MAX_READS => {
                    actions.extend(versions.clone().map(|version| Action::Read(number, version)));
                    if worker.phase == Phase::Acquiring && worker.waits < self.waits {
                        actions.extend(versions.clone().map(|version| Action::Wait(number, version)));
                    }
                }
                Phase::Holding if worker.believes_to_hold(state.now) => {
                    actions.push(Action::Release(number));
                    if worker.renewals < self.renewals {
                        actions.push(Action::Renew(number));
                    }
                }
                // A worker that takes no more actions is dead: so every worker may die at any step.
                _ => {}
            }
        }
        actions.extend((0..state.pushes.len()).map(Action::Deliver));
        actions.extend((0..state.replies.len()).map(Action::Receive));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        next.pushes.sort();
        next.replies.sort();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.workers.iter().filter(|worker| worker.believes_to_hold(state.now)).count() <= 1
            }),
            Property::always(NOT_MISINFORMED, |_, state: &State| !state.misinformed),
            Property::sometimes(REPLACED, |_, state: &State| state.replaced),
            Property::sometimes(REFUSED, |_, state: &State| state.refused),
        ]
    }
}
