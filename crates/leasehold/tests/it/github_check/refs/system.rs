//! Ref, network and workers as a state machine.

use stateright::{Model, Property};

/// How long a lease lasts, in ticks.
pub(super) const TTL: u8 = 2;
/// The service tells times in this unit, rounded down.
pub(super) const UNIT: u8 = 2;
/// So often a worker reads before it gives up.
const READS: u8 = 4;

/// What a commit says. Its version is its place among the tips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tip {
    pub(super) holder: Option<u8>,
    /// Another one with each sign of life of the holder.
    pub(super) sign: u8,
    /// Of that sign, as the service tells it.
    pub(super) date: u8,
}

/// Why a worker wants to move the ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Want {
    Take,
    Beat,
    Free,
    /// A place in the queue: who holds is the same as before.
    Wait,
    /// Nothing but to know that what was read is the newest.
    Prove,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Push {
    pub(super) from: u8,
    pub(super) sent: u8,
    /// The tip that was read.
    pub(super) parent: u8,
    pub(super) want: Want,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reply {
    pub(super) push: Push,
    /// Where it is among the tips, if it was not refused.
    pub(super) version: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    /// Is about to read, because it wants the lock.
    Asking,
    /// Waits for an answer.
    Pushing,
    Holding,
    /// A renewal was refused: is about to read.
    Unsure,
    /// Dead, done, refused, or told that it has lost.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) phase: Phase,
    /// Until when it counts on its lease, if it has one.
    pub(super) deadline: u8,
    /// Its own last version.
    pub(super) known: u8,
    /// The sign of life of another that it watches, and since when.
    pub(super) watches: Option<(u8, u8)>,
    pub(super) reads: u8,
    pub(super) beats: u8,
    pub(super) waits: u8,
}

impl Worker {
    pub(super) const fn new(phase: Phase) -> Self {
        Self { phase, deadline: 0, known: 0, watches: None, reads: 0, beats: 0, waits: 0 }
    }

    pub(super) fn believes(&self, now: u8) -> bool {
        now < self.deadline
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: u8,
    /// All the tips that the ref has had, newest last.
    pub(super) tips: Vec<Tip>,
    pub(super) workers: Vec<Worker>,
    pub(super) pushes: Vec<Push>,
    pub(super) replies: Vec<Reply>,
    /// Somebody was told that it has lost what it had.
    pub(super) wronged: bool,
    /// Somebody has followed one that was not done.
    pub(super) followed: bool,
    /// Somebody was refused because what it had read was old.
    pub(super) refused: bool,
}

impl State {
    pub(super) fn newest(&self) -> Tip {
        *self.tips.last().expect("there is always one")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Tick,
    Start(u8),
    /// Reads the ref as it was at this place among its tips.
    Read(u8, u8),
    /// Reads it, and stands in the queue.
    Wait(u8, u8),
    Beat(u8),
    Release(u8),
    Deliver(usize),
    Receive(usize),
}

/// The decisions that can be wrong.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    /// Whether a push moves the ref wherever it is: `force: true`.
    pub(super) forces: bool,
    /// Whether the holder of this tip has to be over, for one who has watched this sign since then.
    pub(super) is_over: fn(Tip, Option<(u8, u8)>, u8) -> bool,
    /// Whether "it is not yours" is believed from a read alone.
    pub(super) believes_reads: bool,
    /// Whether an answer counts that came after the lease could have ended.
    pub(super) late_answers_count: bool,
}

#[derive(Clone)]
pub(super) struct System {
    pub(super) ways: Ways,
    pub(super) workers: u8,
    pub(super) horizon: u8,
    pub(super) beats: u8,
    pub(super) waits: u8,
}

pub(super) const ONE_HOLDER: &str = "there are never two holders";
pub(super) const NOT_WRONGED: &str = "no live holder is told that it has lost";
pub(super) const FOLLOWED: &str = "a dead holder is followed";
pub(super) const REFUSED: &str = "an old read is found out by a write";

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            tips: vec![Tip { holder: None, sign: 0, date: 0 }],
            workers: vec![Worker::new(Phase::Idle); usize::from(self.workers)],
            pushes: Vec::new(),
            replies: Vec::new(),
            wronged: false,
            followed: false,
            refused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        let versions = 0..u8::try_from(state.tips.len()).expect("few tips");
        for (number, worker) in (0..).zip(&state.workers) {
            match worker.phase {
                // Somebody is first.
                Phase::Idle if number == 0 || state.workers[0].phase != Phase::Idle => {
                    actions.push(Action::Start(number));
                }
                Phase::Asking | Phase::Unsure if worker.reads < READS => {
                    actions.extend(versions.clone().map(|version| Action::Read(number, version)));
                    if worker.phase == Phase::Asking && worker.waits < self.waits {
                        actions.extend(versions.clone().map(|version| Action::Wait(number, version)));
                    }
                }
                Phase::Holding if worker.believes(state.now) => {
                    actions.push(Action::Release(number));
                    if worker.beats < self.beats {
                        actions.push(Action::Beat(number));
                    }
                }
                // Whoever does nothing any more is dead: so everybody may die at any step.
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
                state.workers.iter().filter(|worker| worker.believes(state.now)).count() <= 1
            }),
            Property::always(NOT_WRONGED, |_, state: &State| !state.wronged),
            Property::sometimes(FOLLOWED, |_, state: &State| state.followed),
            Property::sometimes(REFUSED, |_, state: &State| state.refused),
        ]
    }
}
