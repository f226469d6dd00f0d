//! Issue, network and workers as a state machine.

use stateright::{Model, Property};

use super::rules::Rules;

/// How long a lease lasts, in ticks.
pub(super) const TTL: u8 = 2;
/// How much longer a claim keeps others out: as long as the unit of the service's times.
pub(super) const GRACE: u8 = 2;
/// The service tells times in this unit, rounded down.
pub(super) const UNIT: u8 = 2;

/// A comment with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Comment {
    pub(super) id: u8,
    pub(super) owner: u8,
    pub(super) stage: Stage,
    /// As the service tells it.
    pub(super) updated: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    Raised,
    Held,
    Released,
}

/// What a worker sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Want {
    Raise,
    /// Read the comment, and delete it if it is over.
    Clear(u8),
    /// Edit one's own comment.
    Edit(u8, Stage),
    Delete(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) from: u8,
    pub(super) sent: u8,
    pub(super) want: Want,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Answer {
    Raised(u8),
    Listed(Vec<Comment>, u8),
    /// Whether it is gone.
    Cleared(bool),
    /// Whether it was there.
    Edited(bool),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reply {
    pub(super) to: u8,
    pub(super) sent: u8,
    pub(super) answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Raising,
    /// Is about to look.
    Looking,
    /// Has looked, and has not seen the answer yet.
    Looked,
    Clearing,
    Taking,
    Holding,
    Beating,
    /// Dead, done, or refused.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) phase: Phase,
    pub(super) mine: u8,
    /// Until then it may go on.
    pub(super) deadline: u8,
    pub(super) looks: u8,
    pub(super) beats: u8,
}

impl Worker {
    /// Whether it believes that it has the lock.
    pub(super) fn believes(self, now: u8) -> bool {
        matches!(self.phase, Phase::Holding | Phase::Beating) && now < self.deadline
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: u8,
    pub(super) comments: Vec<Comment>,
    /// How the comments were before, newest last; only kept if lists may be old.
    pub(super) before: Vec<Vec<Comment>>,
    pub(super) workers: Vec<Worker>,
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    /// Somebody was refused because of claims that are all over.
    pub(super) blocked_by_the_dead: bool,
    /// Somebody has taken over from one that was not done.
    pub(super) followed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Tick,
    Start(u8),
    Beat(u8),
    Release(u8),
    /// Looks; at a list that is as old as this, if one is named.
    Look(u8, Option<usize>),
    /// The request at this place arrives; a new comment gets the lowest id or the highest.
    Deliver(usize, bool),
    Receive(usize),
}

/// A world: how many workers, until when, and whether lists may be old.
#[derive(Clone)]
pub(super) struct System {
    pub(super) rules: Rules,
    pub(super) workers: u8,
    pub(super) horizon: u8,
    pub(super) old_lists: bool,
    pub(super) beats: u8,
}

pub(super) const ONE_HOLDER: &str = "there are never two holders";
pub(super) const RECOVERY: &str = "nobody is kept out by the dead alone";
pub(super) const FOLLOWED: &str = "a dead holder is followed";
pub(super) const RACED: &str = "two flags are up at once";

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let worker = Worker { phase: Phase::Idle, mine: 0, deadline: 0, looks: 0, beats: 0 };
        vec![State {
            now: 0,
            comments: Vec::new(),
            before: Vec::new(),
            workers: vec![worker; usize::from(self.workers)],
            requests: Vec::new(),
            replies: Vec::new(),
            blocked_by_the_dead: false,
            followed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        for (number, worker) in (0..).zip(&state.workers) {
            match worker.phase {
                // Somebody is first.
                Phase::Idle if number == 0 || state.workers[0].phase != Phase::Idle => {
                    actions.push(Action::Start(number));
                }
                Phase::Holding if worker.believes(state.now) => {
                    actions.push(Action::Release(number));
                    if worker.beats < self.beats {
                        actions.push(Action::Beat(number));
                    }
                }
                Phase::Looking => {
                    actions.push(Action::Look(number, None));
                    let ages = 0..state.before.len();
                    actions.extend(ages.map(|age| Action::Look(number, Some(age))));
                }
                // Whoever does nothing any more is dead: so everybody may die at any step.
                _ => {}
            }
        }
        for (place, request) in state.requests.iter().enumerate() {
            actions.push(Action::Deliver(place, false));
            if request.want == Want::Raise {
                actions.push(Action::Deliver(place, true));
            }
        }
        actions.extend((0..state.replies.len()).map(Action::Receive));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        next.requests.sort();
        next.replies.sort();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.workers.iter().filter(|worker| worker.believes(state.now)).count() <= 1
            }),
            Property::always(RECOVERY, |_, state: &State| !state.blocked_by_the_dead),
            Property::sometimes(FOLLOWED, |_, state: &State| state.followed),
            Property::sometimes(RACED, |_, state: &State| {
                state.comments.iter().filter(|comment| comment.stage == Stage::Raised).count() > 1
            }),
        ]
    }
}
