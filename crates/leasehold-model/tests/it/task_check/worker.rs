//! What a worker may do, and what it makes of a reply. This is the client's half of the promise.

use leasehold_model::{TaskState, Timestamp, Token};

use super::config::{How, task_number, worker_id};
use super::facts::Fact;
use super::promises::Promise;
use super::state::{Hand, Reply, Request, State, Told, Want, Worker, Write};
use super::system::{Action, System};

impl System {
    pub(super) fn worker_actions(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let (worker, config) = (&state.workers[number], &self.config);
        if worker.crashed {
            return;
        }
        // Who looks for strays has room for more than one.
        let busy = !config.strays && worker.hands.iter().any(|hand| !hand.settling);
        let quiet = worker.asking.is_none() && worker.astray.is_none();
        // Those that want the same are told apart by who asks first.
        let same = number > 0 && config.workers[number] == config.workers[number - 1];
        let turn = !same || state.workers[number - 1].asked > 0;
        if !busy && quiet && turn && worker.asked < config.workers[number] {
            actions.push(Action::Ask(number));
        }
        if config.strays {
            if worker.asking.is_some() {
                actions.push(Action::MissAnswer(number));
            }
            if worker.listed.is_some() && worker.confirming.is_empty() {
                actions.push(Action::TakeStrays(number));
            } else if worker.astray.is_some() && worker.listed.is_none() {
                actions.push(Action::List(number));
            }
        }
        for (place, hand) in worker.hands.iter().enumerate().filter(|(_, hand)| !hand.settling) {
            // Paused, it may say how its attempt ended long after its time was over.
            if !hand.begun {
                // What was not started can only be started or given back.
                actions.push(Action::Begin(number, place));
                actions.push(Action::Settle(number, place, How::Return));
            } else if hand.asked {
                actions.push(Action::Settle(number, place, How::Abort));
            } else {
                actions.extend(config.verdicts.iter().map(|how| Action::Settle(number, place, *how)));
            }
            if state.left.beats > 0 {
                actions.push(Action::Beat(number, place));
            }
            if state.now >= hand.until {
                actions.push(Action::LetGo(number, place));
            } else if state.left.writes > 0 && hand.begun {
                actions.push(Action::Write(number, place));
            }
        }
        if state.left.crashes > 0 && worker.asked > 0 {
            actions.push(Action::Crash(number));
        }
    }

    pub(super) fn worker_acts(&self, state: &mut State, action: &Action) {
        let now = state.now;
        match *action {
            Action::Ask(number) => {
                let worker = &mut state.workers[number];
                worker.asked += 1;
                worker.asking = Some(now);
                let want = Want::Lease { worker: number, number: worker.asked };
                state.requests.push(Request { want, sent: now });
            }
            Action::MissAnswer(number) => {
                let worker = &mut state.workers[number];
                worker.astray = worker.asking.take();
            }
            Action::List(number) => {
                let mine = state.table.tasks().filter(|task| {
                    task.state == TaskState::Running && task.worker == Some(worker_id(number))
                });
                let mine = mine.map(|task| (task_number(task.id), task.token)).collect();
                state.workers[number].listed = Some(mine);
            }
            Action::TakeStrays(number) => self.take_strays(state, number),
            Action::Begin(number, place) => {
                let hand = &mut state.workers[number].hands[place];
                hand.begun = true;
                let Hand { task, token, .. } = *hand;
                state.memory.tasks[task].started(token);
            }
            Action::Beat(number, place) => {
                state.left.beats -= 1;
                let Hand { task, token, begun, .. } = state.workers[number].hands[place];
                let want = Want::Beat { worker: number, task, token, begun };
                state.requests.push(Request { want, sent: now });
            }
            // A write sets out while its sender believes. When it arrives, that may be long over.
            Action::Write(number, place) => {
                state.left.writes -= 1;
                let Hand { task, token, .. } = state.workers[number].hands[place];
                state.writes.push(Write { task, token });
            }
            Action::Settle(number, place, how) => {
                let hand = &mut state.workers[number].hands[place];
                hand.settling = true;
                let Hand { task, token, .. } = *hand;
                let want = Want::Settle { worker: number, task, token, how };
                state.requests.push(Request { want, sent: Timestamp::default() });
                if !self.config.strays {
                    // Only who looks for strays has to know what is still to be settled.
                    state.workers[number].let_go(task, token);
                }
            }
            Action::LetGo(number, place) => {
                let Hand { task, token, .. } = state.workers[number].hands[place];
                state.workers[number].let_go(task, token);
            }
            // It sends nothing more. What it has sent still arrives.
            Action::Crash(number) => {
                state.left.crashes -= 1;
                state.workers[number].crashed = true;
                let had = state.workers[number].hands.iter().any(|hand| hand.until > now);
                if had {
                    self.facts.note(Fact::CrashedWithALease);
                }
                state.workers[number].hands.clear();
            }
            _ => unreachable!("no worker does {action:?}"),
        }
    }

    pub(super) fn receive(&self, state: &mut State, reply: Reply) {
        let now = state.now;
        let Reply { worker: number, sent, told } = reply;
        match told {
            Told::Leased { lease, begun, .. } => {
                state.workers[number].asking = None;
                if let Some((task, token)) = lease {
                    self.take(state, number, (task, token, begun), sent);
                }
            }
            Told::Kept { task, token, .. } | Told::Lost(task, token)
                if state.workers[number].confirming.contains(&(task, token)) =>
            {
                state.workers[number].confirming.retain(|stray| *stray != (task, token));
                if matches!(told, Told::Kept { .. })
                    && !(self.rules.knows)(&state.workers[number], task, token)
                {
                    self.facts.note(Fact::StrayTaken);
                    self.take(state, number, (task, token, true), sent);
                }
                looked_through(&mut state.workers[number]);
            }
            Told::Kept { task, token, asked } => {
                let until = (self.rules.until)(sent, now, self.config.ttl());
                let hands = state.workers[number].hands.iter_mut();
                for hand in hands.filter(|hand| hand.task == task && hand.token == token) {
                    hand.until = hand.until.max(until);
                    hand.asked |= asked;
                }
            }
            Told::Lost(task, token) | Told::Settled(task, token) => state.workers[number].let_go(task, token),
        }
    }

    fn take_strays(&self, state: &mut State, number: usize) {
        let listed = state.workers[number].listed.clone().unwrap_or_default();
        let sent = state.workers[number].astray.unwrap_or_default();
        for (task, token) in listed {
            if (self.rules.knows)(&state.workers[number], task, token) {
                self.facts.note(Fact::StrayWasKnown);
            } else if self.rules.confirms {
                state.workers[number].confirming.push((task, token));
                let want = Want::Beat { worker: number, task, token, begun: true };
                state.requests.push(Request { want, sent: state.now });
            } else {
                self.take(state, number, (task, token, true), sent);
            }
        }
        looked_through(&mut state.workers[number]);
    }

    /// Takes a lease in hand that was asked for at `sent`, unless it may be over by now.
    fn take(&self, state: &mut State, number: usize, lease: (usize, Token, bool), sent: Timestamp) {
        let (task, token, begun) = lease;
        let (now, ttl) = (state.now, self.config.ttl());
        let until = (self.rules.until)(sent, now, ttl);
        if until <= now {
            return self.facts.note(Fact::ReplyTooLate);
        }
        state.broken.keep(Promise::LateReplyIsNoLease, until <= sent.plus(ttl));
        let hands = &mut state.workers[number].hands;
        if hands.iter().any(|hand| hand.task == task) {
            self.facts.note(Fact::SameWorkerAgain);
        }
        (self.rules.take)(hands, Hand { task, token, until, begun, asked: false, settling: false });
    }
}

/// Once every stray is taken or given up, no answer is missing any more.
fn looked_through(worker: &mut Worker) {
    if worker.confirming.is_empty() {
        (worker.astray, worker.listed) = (None, None);
        worker.gone.clear();
    }
}
