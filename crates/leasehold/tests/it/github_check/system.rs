//! Issue, network and workers as a state machine.

use stateright::{Model, Property};

use super::rules::Rules;

/// TTL of a lease, in ticks.
pub(super) const TTL: u8 = 2;
/// Time for which a claim keeps others out after its end: the resolution of the service's times.
pub(super) const GRACE: u8 = 2;
/// Resolution of the service's times, which are rounded down.
pub(super) const RESOLUTION: u8 = 2;

/// Comment with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Comment {
    pub(super) id: u8,
    pub(super) owner: u8,
    pub(super) stage: Stage,
    /// Time of the last edit by the service's clock.
    pub(super) updated: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    Candidate,
    Held,
    Released,
}

/// Request of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Operation {
    Post,
    /// Reads the comment, and deletes it if it has ended.
    Clear(u8),
    /// Edits the worker's own comment.
    Edit(u8, Stage),
    Delete(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) from: u8,
    pub(super) sent: u8,
    pub(super) operation: Operation,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Response {
    Posted(u8),
    Listed(Vec<Comment>, u8),
    /// Whether the comment is deleted.
    Cleared(bool),
    /// Whether the comment existed.
    Edited(bool),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reply {
    pub(super) to: u8,
    pub(super) sent: u8,
    pub(super) response: Response,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Posting,
    /// About to read.
    ReadyToRead,
    /// Waiting for the response of a read.
    Reading,
    Clearing,
    Acquiring,
    Holding,
    Renewing,
    /// Dead, done, or refused.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) phase: Phase,
    pub(super) own_id: u8,
    /// Time until which the worker may go on.
    pub(super) deadline: u8,
    pub(super) reads: u8,
    pub(super) renewals: u8,
}

impl Worker {
    /// Whether the worker believes that it holds the lock.
    pub(super) fn believes_to_hold(self, now: u8) -> bool {
        matches!(self.phase, Phase::Holding | Phase::Renewing) && now < self.deadline
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: u8,
    pub(super) comments: Vec<Comment>,
    /// Earlier lists of comments, newest last; only kept if lists may be stale.
    pub(super) before: Vec<Vec<Comment>>,
    pub(super) workers: Vec<Worker>,
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    /// Whether a worker was refused although all other claims have ended.
    pub(super) blocked_by_ended_claims: bool,
    /// Whether a worker has taken over from one that had not released.
    pub(super) replaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Tick,
    Start(u8),
    Renew(u8),
    Release(u8),
    /// Reads the current list, or an earlier one.
    Read(u8, Option<usize>),
    /// Executes the request with this index; a new comment gets the lowest id or the highest.
    Deliver(usize, bool),
    Receive(usize),
}

/// Configuration: number of workers, end of time, and whether lists may be stale.
#[derive(Clone)]
pub(super) struct System {
    pub(super) rules: Rules,
    pub(super) workers: u8,
    pub(super) horizon: u8,
    pub(super) stale_lists: bool,
    pub(super) renewals: u8,
}

pub(super) const ONE_HOLDER: &str = "there are never two holders";
pub(super) const RECOVERY: &str = "ended claims alone keep no worker out";
pub(super) const REPLACED: &str = "a dead holder is replaced";
pub(super) const RACED: &str = "two candidates exist at once";

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let worker = Worker { phase: Phase::Idle, own_id: 0, deadline: 0, reads: 0, renewals: 0 };
        vec![State {
            now: 0,
            comments: Vec::new(),
            before: Vec::new(),
            workers: vec![worker; usize::from(self.workers)],
            requests: Vec::new(),
            replies: Vec::new(),
            blocked_by_ended_claims: false,
            replaced: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        for (number, worker) in (0..).zip(&state.workers) {
            match worker.phase {
                // Workers are alike, so the first one starts first.
                Phase::Idle if number == 0 || state.workers[0].phase != Phase::Idle => {
                    actions.push(Action::Start(number));
                }
                Phase::Holding if worker.believes_to_hold(state.now) => {
                    actions.push(Action::Release(number));
                    if worker.renewals < self.renewals {
                        actions.push(Action::Renew(number));
                    }
                }
                Phase::ReadyToRead => {
                    actions.push(Action::Read(number, None));
                    let ages = 0..state.before.len();
                    actions.extend(ages.map(|age| Action::Read(number, Some(age))));
                }
                // A worker that takes no more actions is dead: so every worker may die at any step.
                _ => {}
            }
        }
        for (index, request) in state.requests.iter().enumerate() {
            actions.push(Action::Deliver(index, false));
            if request.operation == Operation::Post {
                actions.push(Action::Deliver(index, true));
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
                state.workers.iter().filter(|worker| worker.believes_to_hold(state.now)).count() <= 1
            }),
            Property::always(RECOVERY, |_, state: &State| !state.blocked_by_ended_claims),
            Property::sometimes(REPLACED, |_, state: &State| state.replaced),
            Property::sometimes(RACED, |_, state: &State| {
                state.comments.iter().filter(|comment| comment.stage == Stage::Candidate).count() > 1
            }),
        ]
    }
}
