//! What may happen next in a world, and what comes of it.

use std::collections::HashSet;
use std::sync::Mutex;

use leasehold_model::{
    Cancel, Change, HeartbeatResult, HeldTask, Holder, Retry, Settle, TaskOp, TaskState, Timestamp,
};
use stateright::{Model, Property};

use super::audit::{Step, audit};
use super::config::{Config, How, info, task_id, task_number};
use super::facts::{Fact, Facts};
use super::promises::{self, Promise};
use super::rules::{Answer, Op, Rules};
use super::state::{Reply, Request, State, Told, Want};

/// A world under some rules.
#[derive(Debug)]
pub(super) struct System {
    pub(super) config: Config,
    pub(super) rules: Rules,
    /// The one promise to look for; else all of them.
    pub(super) sought: Option<Promise>,
    pub(super) facts: Facts,
    /// Tables of which is known that everything in them can end.
    pub(super) ended: Mutex<HashSet<u64>>,
    admin: Holder,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    Tick,
    Add(usize),
    // A worker, by number…
    Ask(usize),
    MissAnswer(usize),
    List(usize),
    TakeStrays(usize),
    Begin(usize, usize),
    Beat(usize, usize),
    Write(usize, usize),
    Settle(usize, usize, How),
    LetGo(usize, usize),
    Crash(usize),
    // …and what is in flight, by place.
    Deliver(usize),
    DeliverAndKeep(usize),
    Receive(usize),
    WriteArrives(usize),
    // Somebody, with a task.
    Cancel(usize),
    Retry(usize),
    /// The runner of a task renews its deadline.
    Want(usize),
    /// Somebody looks at a task…
    See(usize),
    /// …and puts it off, as it was then.
    Update,
    Recover,
    /// A sweeper looks for leases that have run out…
    Look,
    /// …and acts on what it saw.
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
        for task in 0..self.config.tasks.len() {
            if state.left.adds[task] > 0 {
                actions.push(Action::Add(task));
            }
            if state.table.get(task_id(task)).is_some() {
                actions_by_hand(state, task, actions);
                if state.left.wants > 0 && self.config.tasks[task].wanted > 0 {
                    actions.push(Action::Want(task));
                }
            }
        }
        if state.seen.is_some() {
            actions.push(Action::Update);
        }
        let mut unfinished = state.table.tasks().filter(|task| !task.state.is_terminal());
        if state.left.sweeps > 0 && unfinished.next().is_some() {
            actions.push(Action::Recover);
        }
        if state.left.looks > 0 && !lapsed(state).is_empty() {
            actions.push(Action::Look);
        }
        actions.extend((0..state.looks.len()).map(Action::Sweep));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.broken = promises::Broken::default();
        match action {
            Action::Tick => state.now = state.now.plus(Config::TICK),
            Action::Add(task) => {
                state.left.adds[task] -= 1;
                state.requests.push(Request { want: Want::Add(task), sent: Timestamp::default() });
            }
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
            Action::Cancel(_) | Action::Retry(_) | Action::See(_) | Action::Update => {
                self.act_by_hand(&mut state, &action);
            }
            Action::Want(task) => {
                state.left.wants -= 1;
                let ttl = Config::lasting(self.config.tasks[task].wanted);
                self.apply(&mut state, &Op::Change(task_id(task), TaskOp::Want(ttl)));
            }
            Action::Recover => {
                state.left.sweeps -= 1;
                self.apply(&mut state, &Op::Recover);
            }
            Action::Look => {
                state.left.looks -= 1;
                let found = lapsed(&state);
                state.looks.push(found);
                if state.looks.len() > 1 {
                    self.facts.note(Fact::TwoSweepersAtOnce);
                }
            }
            Action::Sweep(place) => {
                for task in state.looks.remove(place) {
                    self.apply(&mut state, &Op::Change(task_id(task), TaskOp::Expire));
                }
            }
            action => self.worker_acts(&mut state, &action),
        }
        promises::check_beliefs(&mut state);
        let mut state = state.canonical(&self.config);
        if last.table != state.table {
            promises::check_end(self, &mut state);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::properties(self.sought)
    }
}

impl System {
    pub(super) fn new(config: Config, rules: Rules) -> Self {
        Self {
            config,
            rules,
            sought: None,
            facts: Facts::default(),
            ended: Mutex::default(),
            admin: Holder::new("admin").unwrap(),
        }
    }

    /// The store gets a request, and answers.
    fn deliver(&self, state: &mut State, request: Request) {
        let Request { want, sent } = request;
        match want {
            Want::Add(task) => {
                self.apply(state, &Op::Enqueue(self.config.new_task(task)));
            }
            Want::Lease { worker, number } => {
                let answer = self.apply(state, &Op::Lease(self.config.ask(worker, number)));
                let Answer::Leased(leased) = answer else { return };
                let lease = leased.first().map(|task| (task_number(task.id), task.token));
                let begun = leased.first().is_some_and(|task| task.begun);
                self.facts.note_ahead(&leased);
                let told = Told::Leased { number, lease, begun };
                let listens = state.workers[worker].asking.is_some() && !state.workers[worker].crashed;
                if lease.is_some() && !listens {
                    self.facts.note(Fact::LeasedToNobody);
                }
                state.replies.push(Reply { worker, sent, told });
            }
            Want::Beat { worker, task, token, begun } => {
                let held = HeldTask { begun, ..HeldTask::new(task_id(task), token) };
                let op = Op::Beat(info(worker), held, self.config.ttl());
                let told = match self.apply(state, &op) {
                    Answer::Beat(HeartbeatResult::Extended(asked)) => {
                        Told::Kept { task, token, asked: asked.is_some() }
                    }
                    _ => Told::Lost(task, token),
                };
                state.replies.push(Reply { worker, sent, told });
            }
            Want::Settle { worker, task, token, how } => {
                let settle = Settle { id: task_id(task), token, verdict: how.verdict() };
                self.apply(state, &Op::Settle(settle));
                state.replies.push(Reply { worker, sent, told: Told::Settled(task, token) });
            }
        }
    }

    /// One step of the rules, with the auditor beside it.
    fn apply(&self, state: &mut State, op: &Op) -> Answer {
        let before = state.table.clone();
        let answer = (self.rules.apply)(&mut state.table, op, state.now);
        let step = Step { system: self, state, before: &before, op, answer: &answer };
        let (broken, memory) = audit(&step);
        state.broken.add_all(broken);
        state.memory = memory;
        answer
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
            Action::See(task) => {
                state.left.updates -= 1;
                state.seen = state.table.get(task_id(task)).map(|seen| (task, seen.version));
                return;
            }
            _ => {
                let (task, expected) = state.seen.take().expect("only who has seen acts");
                let run_at = Some(state.now.plus(Config::TICK));
                (task, TaskOp::Update(Change { expected, by: Some(by), run_at, ..Change::default() }))
            }
        };
        self.apply(state, &Op::Change(task_id(task), op));
    }

    fn write_arrives(&self, state: &mut State, place: usize) {
        let write = state.writes.remove(place);
        if !(self.rules.admit)(&mut state.fences[write.task], write.token) {
            return self.facts.note(Fact::StaleWriteRefused);
        }
        let known = &mut state.memory.tasks[write.task];
        state.broken.keep(Promise::WritesNeverGoBack, write.token >= known.accepted);
        if known.accepted < write.token && known.accepted > <_>::default() {
            self.facts.note(Fact::NewerWriteAccepted);
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
    if state.left.updates > 0 && state.seen.is_none() {
        actions.push(Action::See(task));
    }
}

/// What a sweeper sees: tasks whose lease has run out.
fn lapsed(state: &State) -> Vec<usize> {
    let running = state.table.tasks().filter(|task| task.state == TaskState::Running);
    running.filter(|task| task.has_expired(state.now)).map(|task| task_number(task.id)).collect()
}
