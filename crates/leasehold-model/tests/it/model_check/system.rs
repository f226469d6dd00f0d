//! What may happen next in a world, and what comes of it.

use std::sync::Arc;

use leasehold_model::{
    Acquire, Ask, ForceRelease, Holder, Lease, LeaseId, Leave, LockOp, Outcome, Reason, Release, Renew,
    RequestRelease, Sweep, TokenFloor, Ttl,
};
use stateright::{Model, Property};

use super::audit::{Step, audit};
use super::config::Config;
use super::facts::{Fact, Facts};
use super::promises::{self, Promise};
use super::rules::Rules;
use super::state::{Answer, Reply, Request, State, Want, owner};
use super::worker::{leave, release};

/// A world under some rules.
#[derive(Debug)]
pub(super) struct System {
    pub(super) config: Config,
    pub(super) rules: Rules,
    /// The one promise to look for; else all of them.
    pub(super) sought: Option<Promise>,
    pub(super) facts: Facts,
    /// Who asks for what, by worker and attempt.
    asks: Vec<Vec<Arc<Ask>>>,
    admin: Holder,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Tick,
    // A worker, by number…
    Ask(usize),
    AskAgain(usize),
    Leave(usize),
    Renew(usize),
    Write(usize),
    Release(usize),
    Crash(usize),
    // …and what is in flight, by place.
    Deliver(usize),
    DeliverAndKeep(usize),
    Receive(usize),
    WriteArrives(usize),
    /// The admin looks at the lock…
    See,
    /// …and acts on what it saw.
    Force,
    AskToStop,
    /// A sweeper looks for dead workers…
    Look,
    /// …and acts on what it saw.
    Sweep(usize),
    /// A sweeper that saw nobody dead.
    SweepEnded,
    /// A pass that forgets idle locks.
    Forget,
    /// The engine's clock is set back.
    SetBack,
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.config)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.writes_are_out() {
            // Only their order matters: a write that arrives touches nothing but the resource.
            actions.extend((0..state.writes.len()).map(Action::WriteArrives));
            return;
        }
        if state.now < self.config.end() {
            actions.push(Action::Tick);
        }
        for worker in 0..state.workers.len() {
            self.worker_actions(state, worker, actions);
        }
        for place in 0..state.requests.len() {
            actions.push(Action::Deliver(place));
            if state.left.duplicates > 0 {
                actions.push(Action::DeliverAndKeep(place));
            }
        }
        actions.extend((0..state.replies.len()).map(Action::Receive));

        if state.seen.is_some() {
            actions.push(Action::Force);
        } else if state.left.forces > 0 && !state.record.holders.is_empty() {
            actions.push(Action::See);
        }
        if state.left.stops > 0 && !state.record.holders.is_empty() {
            actions.push(Action::AskToStop);
        }
        let idle = state.record.holders.is_empty() && state.record.waiters.is_empty();
        if state.left.sweeps > 0 && state.looks.len() < 2 && !idle {
            // Who saw nobody dead brings nothing along, so it does not matter when it looked.
            let none = dead(state).is_empty();
            actions.push(if none { Action::SweepEnded } else { Action::Look });
        }
        actions.extend((0..state.looks.len()).map(Action::Sweep));
        self.forget_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.broken = promises::Broken::default();
        match action {
            Action::Tick => state.now = state.now.plus(self.config.tick),
            Action::Ask(worker) => self.ask(&mut state, worker),
            Action::AskAgain(worker) => self.ask_again(&mut state, worker),
            Action::Leave(number) => leave(&mut state, number),
            Action::Renew(worker) => self.renew(&mut state, worker),
            Action::Write(worker) => self.write(&mut state, worker),
            Action::Release(number) => release(&mut state, number),
            Action::Crash(worker) => self.crash(&mut state, worker),
            Action::Deliver(place) => {
                let request = state.requests.remove(place);
                self.deliver(&mut state, request);
            }
            Action::DeliverAndKeep(place) => {
                state.left.duplicates -= 1;
                let request = state.requests[place];
                self.deliver(&mut state, request);
            }
            Action::Receive(place) => {
                let reply = state.replies.remove(place);
                self.receive(&mut state, reply);
            }
            Action::WriteArrives(place) => self.write_arrives(&mut state, place),
            Action::See => {
                state.left.forces -= 1;
                state.seen = state.record.holders.first().map(|lease| lease.token);
            }
            Action::Force => {
                let token = state.seen.take().expect("only who has seen acts");
                let (by, reason) = (self.admin.clone(), self.reason.clone());
                self.apply(&mut state, &LockOp::ForceRelease(ForceRelease { token, by, reason }));
            }
            Action::AskToStop => {
                state.left.stops -= 1;
                let (token, by, reason) = (None, self.admin.clone(), None);
                self.apply(&mut state, &LockOp::RequestRelease(RequestRelease { token, by, reason }));
            }
            Action::Look => {
                state.left.sweeps -= 1;
                let dead = dead(&state);
                state.looks.push(dead);
                if state.looks.len() > 1 {
                    self.facts.note(Fact::TwoSweepersAtOnce);
                }
            }
            Action::Sweep(place) => {
                let dead = state.looks.remove(place);
                self.apply(&mut state, &LockOp::Sweep(Sweep { dead }));
            }
            Action::SweepEnded => {
                state.left.sweeps -= 1;
                self.apply(&mut state, &LockOp::Sweep(Sweep::default()));
            }
            Action::Forget => self.forget(&mut state),
            Action::SetBack => self.set_back(&mut state),
        }
        if self.config.set_backs == 0 {
            promises::check_beliefs(self, &mut state);
        }
        Some(state.canonical())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties(self.sought)
    }
}

impl System {
    pub(super) fn new(config: Config, rules: Rules) -> Self {
        let asks_of = |worker: usize| {
            let attempts = 1..=config.workers[worker].attempts;
            attempts.map(|attempt| config.ask(worker, attempt)).collect()
        };
        Self {
            asks: (0..config.workers.len()).map(asks_of).collect(),
            config,
            rules,
            sought: None,
            facts: Facts::default(),
            admin: Holder::new("admin").unwrap(),
            reason: Reason::new("stuck").unwrap(),
        }
    }

    pub(super) fn ask_of(&self, id: &LeaseId) -> &Arc<Ask> {
        let asks = &self.asks[owner(id)];
        asks.iter().find(|ask| ask.lease_id == *id).expect("every id is a worker's")
    }

    /// The engine gets a request, and answers.
    fn deliver(&self, state: &mut State, request: Request) {
        let Request { lease_id, want, sent, floor } = request;
        let plan = &self.config.workers[owner(&lease_id)];
        let ticks = |count: Option<u32>| count.map(|count| self.config.lasting(count));
        let op = match want {
            Want::Acquire { queue } => LockOp::Acquire(Acquire {
                ask: self.ask_of(&lease_id).clone(),
                queue: ticks(plan.queue.filter(|_| queue)),
                steal_after: ticks(plan.steal_after),
            }),
            Want::Renew(token) => LockOp::Renew(Renew { lease_id, token, ttl: None }),
            Want::Release(token) => {
                LockOp::Release(Release { lease_id, token, at_least: ticks(plan.at_least) })
            }
            Want::Leave => LockOp::Leave(Leave { lease_id }),
        };
        let answer = match self.apply_sent_at(state, &op, floor) {
            Outcome::Granted(lease) | Outcome::Renewed(lease) => Some(yours(&lease)),
            Outcome::Conflict(_) => Some(Answer::Busy),
            Outcome::NotHeld(_) => match want {
                Want::Renew(token) => Some(Answer::Lost(token)),
                _ => None,
            },
            // Whoever waits asks again, told or not; whoever has given up does not listen.
            _ => None,
        };
        if let Some(answer) = answer {
            state.replies.push(Reply { lease_id, sent, answer });
        }
    }

    fn apply(&self, state: &mut State, op: &LockOp) -> Outcome {
        let floor = state.floor;
        self.apply_sent_at(state, op, floor)
    }

    /// One step of the rules, with the auditor beside it. `sent` is the floor when the request was sent.
    fn apply_sent_at(&self, state: &mut State, op: &LockOp, sent: TokenFloor) -> Outcome {
        if state.is_forgotten {
            state.record = (self.rules.make)(state.record.name.clone(), state.floor, sent);
        }
        let before = state.record.clone();
        let applied = (self.rules.apply)(&mut state.record, op, state.now);
        self.made(state, applied.changed);
        let step = Step { system: self, state, before: &before, op, applied: &applied };
        let (broken, memory) = audit(&step);
        state.broken = broken;
        state.memory = memory;
        // Who was served may be told so at once. It may also miss it: then it learns of it when it asks again.
        for lease in &applied.handed_over {
            state.replies.push(Reply { lease_id: lease.ask.lease_id, sent: state.now, answer: yours(lease) });
        }
        applied.outcome
    }

    fn write_arrives(&self, state: &mut State, place: usize) {
        let write = state.writes.remove(place);
        if !(self.rules.admit)(&mut state.fence, write.token) {
            self.facts.note(Fact::StaleWriteRefused);
            return;
        }
        let age = |write| state.memory.grants.iter().rposition(|grant| *grant == write);
        if let Some(before) = state.memory.accepted {
            if before.token > write.token || age(before) > age(write) {
                state.broken.add(Promise::WritesNeverGoBack);
            }
            if before.token < write.token {
                self.facts.note(Fact::NewerWriteAccepted);
            }
        }
        state.memory.accepted = Some(write);
    }
}

fn yours(lease: &Lease) -> Answer {
    let lasts = Ttl::new(lease.expires_at.since(lease.renewed_at));
    Answer::Yours(lease.token, lasts.unwrap_or(lease.ask.ttl))
}

/// What a sweeper sees: the requests whose processes are gone. Only the dead are ever taken for dead.
fn dead(state: &State) -> Vec<LeaseId> {
    let leases = state.record.holders.iter().map(|lease| lease.ask.lease_id);
    let tickets = state.record.waiters.iter().map(|ticket| ticket.ask.lease_id);
    leases.chain(tickets).filter(|id| state.is_crashed(id)).collect()
}
