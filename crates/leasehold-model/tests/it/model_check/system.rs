//! Possible actions, and their effects; also the deletion of the lock while it is idle, its creation
//! afterwards, and a clock that is set back in between.

use std::fmt::Debug;
use std::sync::Arc;

use leasehold_model::{
    Acquire, ForceRelease, Holder, Lease, LeaseId, LockOp, LockRecord, LockRequest, Outcome, Reason, Release,
    Renew, RequestRelease, Sweep, TokenFloor, Ttl, Withdraw,
};
use stateright::{Model, Property as Check};

use super::audit::{Step, audit};
use super::config::Config;
use super::coverage::{Coverage, Situation};
use super::properties::{self, Broken, Property};
use super::rules::Rules;
use super::state::{Operation, Reply, Request, Response, State, owner};
use super::worker::{leave, release};
use crate::shared;

/// Configuration under some rules.
#[derive(Debug)]
pub(super) struct System {
    pub(super) config: Config,
    pub(super) rules: Rules,
    /// The one property to look for; `None` for all of them.
    sought: Option<Property>,
    pub(super) coverage: Coverage,
    /// Requests by worker and attempt.
    requests: Vec<Vec<Arc<LockRequest>>>,
    admin: Holder,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Tick,
    // A worker, by number…
    Acquire(usize),
    RepeatAcquire(usize),
    Withdraw(usize),
    Renew(usize),
    Write(usize),
    Release(usize),
    Crash(usize),
    // …and what is in flight, by index.
    Deliver(usize),
    DeliverAndKeep(usize),
    Receive(usize),
    WriteArrives(usize),
    /// The admin reads the lock…
    AdminReads,
    /// …and acts on what it read.
    Force,
    RequestRelease,
    /// A sweeper looks for dead workers…
    SweeperReads,
    /// …and acts on what it found.
    Sweep(usize),
    /// A sweep that found no dead worker.
    SweepEnded,
    /// A pass that deletes idle locks.
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
            // Only their order matters: a write changes nothing but the resource.
            actions.extend((0..state.writes.len()).map(Action::WriteArrives));
            return;
        }
        if state.now < self.config.end() {
            actions.push(Action::Tick);
        }
        for worker in 0..state.workers.len() {
            self.worker_actions(state, worker, actions);
        }
        for index in 0..state.requests.len() {
            actions.push(Action::Deliver(index));
            if state.left.duplicates > 0 {
                actions.push(Action::DeliverAndKeep(index));
            }
        }
        actions.extend((0..state.replies.len()).map(Action::Receive));

        if state.admin_read.is_some() {
            actions.push(Action::Force);
        } else if state.left.forces > 0 && !state.record.holders.is_empty() {
            actions.push(Action::AdminReads);
        }
        if state.left.stops > 0 && !state.record.holders.is_empty() {
            actions.push(Action::RequestRelease);
        }
        let idle = state.record.holders.is_empty() && state.record.waiters.is_empty();
        if state.left.sweeps > 0 && state.sweeper_reads.len() < 2 && !idle {
            // A sweeper that found no dead worker carries no information, so the time at which it
            // read does not matter.
            let none = dead(state).is_empty();
            actions.push(if none { Action::SweepEnded } else { Action::SweeperReads });
        }
        actions.extend((0..state.sweeper_reads.len()).map(Action::Sweep));
        self.forget_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.broken = Broken::default();
        match action {
            Action::Tick => state.now = state.now.plus(self.config.tick),
            Action::Acquire(worker) => self.start_acquire(&mut state, worker),
            Action::RepeatAcquire(worker) => self.repeat_acquire(&mut state, worker),
            Action::Withdraw(number) => leave(&mut state, number),
            Action::Renew(worker) => self.renew(&mut state, worker),
            Action::Write(worker) => self.write(&mut state, worker),
            Action::Release(number) => release(&mut state, number),
            Action::Crash(worker) => self.crash(&mut state, worker),
            Action::Deliver(index) => {
                let request = state.requests.remove(index);
                self.deliver(&mut state, request);
            }
            Action::DeliverAndKeep(index) => {
                state.left.duplicates -= 1;
                let request = state.requests[index];
                self.deliver(&mut state, request);
            }
            Action::Receive(index) => {
                let reply = state.replies.remove(index);
                self.receive(&mut state, reply);
            }
            Action::WriteArrives(index) => self.write_arrives(&mut state, index),
            Action::AdminReads => {
                state.left.forces -= 1;
                state.admin_read = state.record.holders.first().map(|lease| lease.token);
            }
            Action::Force => {
                let token = state.admin_read.take().expect("the admin has read the lock");
                let (by, reason) = (self.admin.clone(), self.reason.clone());
                self.apply(&mut state, &LockOp::ForceRelease(ForceRelease { token, by, reason }));
            }
            Action::RequestRelease => {
                state.left.stops -= 1;
                let (token, by, reason) = (None, self.admin.clone(), None);
                self.apply(&mut state, &LockOp::RequestRelease(RequestRelease { token, by, reason }));
            }
            Action::SweeperReads => {
                state.left.sweeps -= 1;
                let dead = dead(&state);
                state.sweeper_reads.push(dead);
                if state.sweeper_reads.len() > 1 {
                    self.coverage.record(Situation::TwoSweepersAtOnce);
                }
            }
            Action::Sweep(index) => {
                let dead = state.sweeper_reads.remove(index);
                self.apply(&mut state, &LockOp::Sweep(Sweep { dead }));
            }
            Action::SweepEnded => {
                state.left.sweeps -= 1;
                self.apply(&mut state, &LockOp::Sweep(Sweep::default()));
            }
            Action::Forget => self.forget(&mut state),
            Action::SetBack => self.set_back(&mut state),
        }
        if self.config.clock_resets == 0 {
            properties::check_beliefs(self, &mut state);
        }
        Some(state.canonical())
    }

    fn properties(&self) -> Vec<Check<Self>> {
        shared::checks(self)
    }
}

impl shared::System for System {
    type Config = Config;
    type Rules = Rules;
    type Property = Property;
    const SUBJECT: &'static str = "configuration";

    fn new(config: Config, rules: Rules, sought: Option<Property>) -> Self {
        let requests_of = |worker: usize| {
            let attempts = 1..=config.workers[worker].attempts;
            attempts.map(|attempt| config.request(worker, attempt)).collect()
        };
        Self {
            requests: (0..config.workers.len()).map(requests_of).collect(),
            config,
            rules,
            sought,
            coverage: Coverage::default(),
            admin: Holder::new("admin").unwrap(),
            reason: Reason::new("stuck").unwrap(),
        }
    }

    fn sought(&self) -> Option<Property> {
        self.sought
    }

    fn broken(state: &State) -> Broken {
        state.broken
    }

    fn name_and_depth(&self) -> (&'static str, Option<usize>) {
        (self.config.name, self.config.depth)
    }

    fn uncovered(&self) -> Vec<impl Debug> {
        self.config.must_cover.iter().filter(|situation| !self.coverage.has(**situation)).collect()
    }
}

impl System {
    pub(super) fn request_of(&self, id: &LeaseId) -> &Arc<LockRequest> {
        let requests = &self.requests[owner(id)];
        requests.iter().find(|request| request.lease_id == *id).expect("every id belongs to a worker")
    }

    /// Lets the engine execute a request, and respond.
    fn deliver(&self, state: &mut State, request: Request) {
        let Request { lease_id, operation, sent, floor } = request;
        let plan = &self.config.workers[owner(&lease_id)];
        let ticks = |count: Option<u32>| count.map(|count| self.config.lasting(count));
        let op = match operation {
            Operation::Acquire { queue } => LockOp::Acquire(Acquire {
                request: self.request_of(&lease_id).clone(),
                queue: ticks(plan.queue.filter(|_| queue)),
                steal_after: ticks(plan.steal_after),
            }),
            Operation::Renew(token) => LockOp::Renew(Renew { lease_id, token, ttl: None }),
            Operation::Release(token) => {
                LockOp::Release(Release { lease_id, token, at_least: ticks(plan.at_least) })
            }
            Operation::Withdraw => LockOp::Withdraw(Withdraw { lease_id }),
        };
        let response = match self.apply_sent_at(state, &op, floor) {
            Outcome::Granted(lease) | Outcome::Renewed(lease) => Some(granted_response(&lease)),
            Outcome::Conflict(_) => Some(Response::Conflict),
            Outcome::NotHeld(_) => match operation {
                Operation::Renew(token) => Some(Response::Lost(token)),
                _ => None,
            },
            // A waiter repeats its request with or without a response; a worker that has given up
            // does not listen.
            _ => None,
        };
        if let Some(response) = response {
            state.replies.push(Reply { lease_id, sent, response });
        }
    }

    fn apply(&self, state: &mut State, op: &LockOp) -> Outcome {
        let floor = state.floor;
        self.apply_sent_at(state, op, floor)
    }

    /// Runs one step of the rules, and audits it. `sent` is the minimum token when the request was
    /// sent.
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
        // A waiter that was granted the lock may be notified at once. If it misses the
        // notification, it gets its lease when it repeats its request.
        for lease in &applied.handed_over {
            state.replies.push(Reply {
                lease_id: lease.request.lease_id,
                sent: state.now,
                response: granted_response(lease),
            });
        }
        applied.outcome
    }

    fn write_arrives(&self, state: &mut State, index: usize) {
        let write = state.writes.remove(index);
        if !(self.rules.admit)(&mut state.fence, write.token) {
            self.coverage.record(Situation::StaleWriteRefused);
            return;
        }
        let age = |write| state.memory.grants.iter().rposition(|grant| *grant == write);
        if let Some(before) = state.memory.accepted {
            if before.token > write.token || age(before) > age(write) {
                state.broken.add(Property::WritesNeverGoBack);
            }
            if before.token < write.token {
                self.coverage.record(Situation::NewerWriteAccepted);
            }
        }
        state.memory.accepted = Some(write);
    }
}

impl System {
    fn forget_actions(&self, state: &State, actions: &mut Vec<Action>) {
        // Before the first grant there is nothing to delete.
        if state.left.deletions > 0 && !state.is_forgotten && state.record.token.get() > 0 {
            actions.push(Action::Forget);
        }
        if state.left.clock_resets > 0 && state.now > self.config.start() {
            actions.push(Action::SetBack);
        }
    }

    /// Runs one pass. A lock in use must not be deleted, whatever the rules say.
    fn forget(&self, state: &mut State) {
        state.left.deletions -= 1;
        let idle = self.config.lasting(self.config.idle);
        let (floor, goes) = (self.rules.forget)(&state.record, state.floor, state.now, idle);
        state.broken.check(Property::FloorNeverFalls, floor >= state.floor);
        state.floor = floor;
        if !goes {
            self.coverage.record(Situation::NotDeleted);
            return;
        }
        let LockRecord { holders, waiters, .. } = &state.record;
        state.broken.check(Property::UsedLockIsNotDeleted, holders.is_empty() && waiters.is_empty());
        self.coverage.record(Situation::Deleted);
        state.record = LockRecord::new(state.record.name.clone());
        state.is_forgotten = true;
    }

    /// The lock exists again if the step has changed it; otherwise it is still deleted.
    fn made(&self, state: &mut State, changed: bool) {
        if state.is_forgotten && changed {
            state.is_forgotten = false;
            self.coverage.record(Situation::CreatedAgain);
        }
    }

    /// Sets the clock back to its start. The times in the lock's record stay as they are.
    fn set_back(&self, state: &mut State) {
        state.left.clock_resets -= 1;
        state.now = self.config.start();
    }
}

fn granted_response(lease: &Lease) -> Response {
    let lasts = Ttl::new(lease.expires_at.since(lease.renewed_at));
    Response::Granted(lease.token, lasts.unwrap_or(lease.request.ttl))
}

/// Returns what a sweeper finds: the requests of dead processes. Only dead processes are ever taken
/// for dead.
fn dead(state: &State) -> Vec<LeaseId> {
    let leases = state.record.holders.iter().map(|lease| lease.request.lease_id);
    let tickets = state.record.waiters.iter().map(|ticket| ticket.request.lease_id);
    leases.chain(tickets).filter(|id| state.is_crashed(id)).collect()
}
