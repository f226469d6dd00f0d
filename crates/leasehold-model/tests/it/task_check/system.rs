//! Possible actions, and their effects.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Mutex;

use leasehold_model::{
    Cancel, HeartbeatResult, HeldTask, Holder, Retry, Settle, TaskOp, TaskState, TaskUpdate, Timestamp,
};
use stateright::{Model, Property as Check};

use super::audit::{Step, audit};
use super::config::{AttemptEnd, Config, info, task_id, task_number};
use super::coverage::{Coverage, Situation};
use super::properties::{self, Broken, Property};
use super::rules::{Op, Response, Rules};
use super::state::{Operation, Reply, ReplyContent, Request, State};
use crate::shared;

/// Configuration under some rules.
#[derive(Debug)]
pub(super) struct System {
    pub(super) config: Config,
    pub(super) rules: Rules,
    /// The one property to look for; `None` for all of them.
    sought: Option<Property>,
    pub(super) coverage: Coverage,
    /// Tables in which every task is known to be able to end.
    pub(super) ended: Mutex<HashSet<u64>>,
    admin: Holder,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Tick,
    Add(usize),
    // A worker, by number…
    Lease(usize),
    MissResponse(usize),
    List(usize),
    ConfirmListed(usize),
    Begin(usize, usize),
    /// A worker that has the lock of a task reports that it starts the task.
    ReportStart(usize, usize),
    Heartbeat(usize, usize),
    Write(usize, usize),
    Settle(usize, usize, AttemptEnd),
    DropLease(usize, usize),
    Crash(usize),
    // …and what is in flight, by index.
    Deliver(usize),
    DeliverAndKeep(usize),
    Receive(usize),
    WriteArrives(usize),
    // A person, with a task.
    Cancel(usize),
    Retry(usize),
    /// The runner of a task renews its deadline.
    RenewRunner(usize),
    /// A person reads a task…
    PersonReads(usize),
    /// …and snoozes it, as it was then.
    Update,
    Recover,
    /// A sweeper looks for expired leases…
    SweeperReads,
    /// …and acts on what it found.
    Sweep(usize),
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.config).canonical(&self.config)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.left.writes == 0 && !state.writes.is_empty() {
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
        for task in 0..self.config.tasks.len() {
            if state.left.adds[task] > 0 {
                actions.push(Action::Add(task));
            }
            if state.table.get(task_id(task)).is_some() {
                actions_by_hand(state, task, actions);
                if state.left.runner_renewals > 0 && self.config.tasks[task].runner_ttl > 0 {
                    actions.push(Action::RenewRunner(task));
                }
            }
        }
        if state.person_read.is_some() {
            actions.push(Action::Update);
        }
        let mut unfinished = state.table.tasks().filter(|task| !task.state.is_terminal());
        if state.left.sweeps > 0 && unfinished.next().is_some() {
            actions.push(Action::Recover);
        }
        if state.left.sweeper_reads > 0 && !expired_leases(state).is_empty() {
            actions.push(Action::SweeperReads);
        }
        actions.extend((0..state.sweeper_reads.len()).map(Action::Sweep));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.broken = Broken::default();
        match action {
            Action::Tick => state.now = state.now.plus(Config::TICK),
            Action::Add(task) => {
                state.left.adds[task] -= 1;
                state.requests.push(Request { operation: Operation::Add(task), sent: Timestamp::default() });
            }
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
            Action::Cancel(_) | Action::Retry(_) | Action::PersonReads(_) | Action::Update => {
                self.act_by_hand(&mut state, &action);
            }
            Action::RenewRunner(task) => {
                state.left.runner_renewals -= 1;
                let ttl = Config::lasting(self.config.tasks[task].runner_ttl);
                self.apply(&mut state, &Op::Change(task_id(task), TaskOp::RenewRunner(ttl)));
            }
            Action::Recover => {
                state.left.sweeps -= 1;
                self.apply(&mut state, &Op::Recover);
            }
            Action::SweeperReads => {
                state.left.sweeper_reads -= 1;
                let found = expired_leases(&state);
                state.sweeper_reads.push(found);
                if state.sweeper_reads.len() > 1 {
                    self.coverage.record(Situation::TwoSweepersAtOnce);
                }
            }
            Action::Sweep(index) => {
                for task in state.sweeper_reads.remove(index) {
                    self.apply(&mut state, &Op::Change(task_id(task), TaskOp::Expire));
                }
            }
            action => self.worker_acts(&mut state, &action),
        }
        properties::check_beliefs(&mut state);
        let mut state = state.canonical(&self.config);
        if last.table != state.table {
            properties::check_end(self, &mut state);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Check<Self>> {
        shared::checks(self)
    }
}

impl shared::System for System {
    type Config = Config;
    type Rules = Rules;
    type Property = Property;
    const SUBJECT: &'static str = "tasks";

    fn new(config: Config, rules: Rules, sought: Option<Property>) -> Self {
        Self {
            config,
            rules,
            sought,
            coverage: Coverage::default(),
            ended: Mutex::default(),
            admin: Holder::new("admin").unwrap(),
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
    /// Lets the store execute a request, and respond.
    fn deliver(&self, state: &mut State, request: Request) {
        let Request { operation, sent } = request;
        match operation {
            Operation::Add(task) => {
                self.apply(state, &Op::Enqueue(self.config.new_task(task)));
            }
            Operation::Lease { worker, number } => {
                let response = self.apply(state, &Op::Lease(self.config.lease_request(worker, number)));
                let Response::Leased(leased) = response else { return };
                let lease = leased.first().map(|task| (task_number(task.id), task.token));
                let begun = leased.first().is_some_and(|task| task.begun);
                self.coverage.record_leased(&leased);
                let content = ReplyContent::Leased { number, lease, begun };
                let listens = state.workers[worker].requested.is_some() && !state.workers[worker].crashed;
                if lease.is_some() && !listens {
                    self.coverage.record(Situation::LeasedToInactiveWorker);
                }
                state.replies.push(Reply { worker, sent, content });
            }
            Operation::Heartbeat { worker, task, token, begun } => {
                let held = HeldTask { begun, ..HeldTask::new(task_id(task), token) };
                let op = Op::Heartbeat(info(worker), held, self.config.ttl());
                let content = match self.apply(state, &op) {
                    Response::Heartbeat(HeartbeatResult::Extended(cancel)) => {
                        ReplyContent::Extended { task, token, begun, cancel_requested: cancel.is_some() }
                    }
                    _ => ReplyContent::Lost(task, token),
                };
                state.replies.push(Reply { worker, sent, content });
            }
            Operation::Settle { worker, task, token, how } => {
                let settle = Settle { id: task_id(task), token, result: how.result() };
                self.apply(state, &Op::Settle(settle));
                state.replies.push(Reply { worker, sent, content: ReplyContent::Settled(task, token) });
            }
        }
    }

    /// Runs one step of the rules, and audits it.
    fn apply(&self, state: &mut State, op: &Op) -> Response {
        let before = state.table.clone();
        let response = (self.rules.apply)(&mut state.table, op, state.now);
        let step = Step { system: self, state, before: &before, op, response: &response };
        let (broken, memory) = audit(&step);
        state.broken.add_all(broken);
        state.memory = memory;
        response
    }

    fn act_by_hand(&self, state: &mut State, action: &Action) {
        let by = self.admin.clone();
        let (task, op) = match *action {
            Action::Cancel(task) => {
                state.left.cancels -= 1;
                (task, TaskOp::Cancel(Cancel { by, reason: None }))
            }
            Action::Retry(task) => {
                state.left.retries -= 1;
                (task, TaskOp::Retry(Retry { by }))
            }
            Action::PersonReads(task) => {
                state.left.updates -= 1;
                state.person_read = state.table.get(task_id(task)).map(|seen| (task, seen.version));
                return;
            }
            _ => {
                let (task, expected) = state.person_read.take().expect("the admin has read the lock");
                let run_at = Some(state.now.plus(Config::TICK));
                (task, TaskOp::Update(TaskUpdate { expected, by: Some(by), run_at, ..TaskUpdate::default() }))
            }
        };
        self.apply(state, &Op::Change(task_id(task), op));
    }

    fn write_arrives(&self, state: &mut State, index: usize) {
        let write = state.writes.remove(index);
        if !(self.rules.admit)(&mut state.fences[write.task], write.token) {
            return self.coverage.record(Situation::StaleWriteRefused);
        }
        let known = &mut state.memory.tasks[write.task];
        state.broken.check(Property::WritesNeverGoBack, write.token >= known.accepted);
        if known.accepted < write.token && known.accepted > <_>::default() {
            self.coverage.record(Situation::NewerWriteAccepted);
        }
        known.accepted = known.accepted.max(write.token);
    }
}

fn actions_by_hand(state: &State, task: usize, actions: &mut Vec<Action>) {
    if state.left.cancels > 0 {
        actions.push(Action::Cancel(task));
    }
    if state.left.retries > 0 {
        actions.push(Action::Retry(task));
    }
    if state.left.updates > 0 && state.person_read.is_none() {
        actions.push(Action::PersonReads(task));
    }
}

/// Returns what a sweeper finds: tasks with an expired lease.
fn expired_leases(state: &State) -> Vec<usize> {
    let running = state.table.tasks().filter(|task| task.state == TaskState::Running);
    running.filter(|task| task.has_expired(state.now)).map(|task| task_number(task.id)).collect()
}
