//! Actions of a worker, and its reaction to a reply: the client's part of the properties.

use leasehold_model::{TaskState, Timestamp, Token};

use super::config::{AttemptEnd, task_number, worker_id};
use super::coverage::Situation;
use super::properties::Property;
use super::state::{HeldLease, Operation, Reply, ReplyContent, Request, State, Worker, Write};
use super::system::{Action, System};

impl System {
    pub(super) fn worker_actions(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let (worker, config) = (&state.workers[number], &self.config);
        if worker.crashed {
            return;
        }
        // A worker that recovers unconfirmed leases has capacity for more than one.
        let busy = !config.missed_responses && worker.held_leases.iter().any(|held| !held.settling);
        let quiet = worker.requested.is_none() && worker.missed_since.is_none();
        // Equal requests are distinguished by which worker sends first.
        let same = number > 0 && config.workers[number] == config.workers[number - 1];
        let turn = !same || state.workers[number - 1].requests_sent > 0;
        if !busy && quiet && turn && worker.requests_sent < config.workers[number] {
            actions.push(Action::Lease(number));
        }
        if config.missed_responses {
            if worker.requested.is_some() {
                actions.push(Action::MissResponse(number));
            }
            if worker.listed.is_some() && worker.confirming.is_empty() {
                actions.push(Action::ConfirmListed(number));
            } else if worker.missed_since.is_some() && worker.listed.is_none() {
                actions.push(Action::List(number));
            }
        }
        for (index, held) in worker.held_leases.iter().enumerate().filter(|(_, held)| !held.settling) {
            // A paused worker may settle its attempt long after its lease has ended.
            if !held.begun {
                // A task that was not started can only be started or returned.
                if !config.waits_for_locks || !self.rules.reports_starts {
                    actions.push(Action::Begin(number, index));
                } else if !held.reporting && state.left.heartbeat_count > 0 {
                    actions.push(Action::ReportStart(number, index));
                }
                actions.push(Action::Settle(number, index, AttemptEnd::Return));
            } else if held.cancel_requested {
                actions.push(Action::Settle(number, index, AttemptEnd::Abort));
            } else {
                actions.extend(config.results.iter().map(|how| Action::Settle(number, index, *how)));
            }
            if state.left.heartbeat_count > 0 {
                actions.push(Action::Heartbeat(number, index));
            }
            if state.now >= held.until {
                actions.push(Action::DropLease(number, index));
            } else if state.left.writes > 0 && held.begun {
                actions.push(Action::Write(number, index));
            }
        }
        if state.left.crashes > 0 && worker.requests_sent > 0 {
            actions.push(Action::Crash(number));
        }
    }

    pub(super) fn worker_acts(&self, state: &mut State, action: &Action) {
        let now = state.now;
        match *action {
            Action::Lease(number) => {
                let worker = &mut state.workers[number];
                worker.requests_sent += 1;
                worker.requested = Some(now);
                let operation = Operation::Lease { worker: number, number: worker.requests_sent };
                state.requests.push(Request { operation, sent: now });
            }
            Action::MissResponse(number) => {
                let worker = &mut state.workers[number];
                worker.missed_since = worker.requested.take();
            }
            Action::List(number) => {
                let mine = state.table.tasks().filter(|task| {
                    task.state == TaskState::Running && task.worker == Some(worker_id(number))
                });
                let mine = mine.map(|task| (task_number(task.id), task.token)).collect();
                state.workers[number].listed = Some(mine);
            }
            Action::ConfirmListed(number) => self.confirm_listed(state, number),
            Action::Begin(number, index) => {
                let held = &mut state.workers[number].held_leases[index];
                held.begun = true;
                let HeldLease { task, token, .. } = *held;
                state.memory.tasks[task].started(token);
            }
            Action::Heartbeat(number, index) | Action::ReportStart(number, index) => {
                state.left.heartbeat_count -= 1;
                let reports = matches!(action, Action::ReportStart(..));
                let held = &mut state.workers[number].held_leases[index];
                held.reporting |= reports;
                let HeldLease { task, token, .. } = *held;
                let begun = held.begun || reports;
                let operation = Operation::Heartbeat { worker: number, task, token, begun };
                state.requests.push(Request { operation, sent: now });
            }
            // The worker sends a write while it believes to hold the lease. The lease may have
            // ended long before the write arrives.
            Action::Write(number, index) => {
                state.left.writes -= 1;
                let HeldLease { task, token, .. } = state.workers[number].held_leases[index];
                state.writes.push(Write { task, token });
            }
            Action::Settle(number, index, how) => {
                let held = &mut state.workers[number].held_leases[index];
                held.settling = true;
                let HeldLease { task, token, .. } = *held;
                let operation = Operation::Settle { worker: number, task, token, how };
                state.requests.push(Request { operation, sent: Timestamp::default() });
                if !self.config.missed_responses {
                    // Only a worker that recovers unconfirmed leases has to know what is still to
                    // be settled.
                    state.workers[number].drop_lease(task, token);
                }
            }
            Action::DropLease(number, index) => {
                let HeldLease { task, token, .. } = state.workers[number].held_leases[index];
                state.workers[number].drop_lease(task, token);
            }
            // The worker sends nothing more. What it has sent still arrives.
            Action::Crash(number) => {
                state.left.crashes -= 1;
                state.workers[number].crashed = true;
                let had = state.workers[number].held_leases.iter().any(|held| held.until > now);
                if had {
                    self.coverage.record(Situation::CrashedWithALease);
                }
                state.workers[number].held_leases.clear();
            }
            _ => unreachable!("not an action of a worker: {action:?}"),
        }
    }

    pub(super) fn receive(&self, state: &mut State, reply: Reply) {
        let now = state.now;
        let Reply { worker: number, sent, content } = reply;
        match content {
            ReplyContent::Leased { lease, begun, .. } => {
                state.workers[number].requested = None;
                if let Some((task, token)) = lease {
                    self.take(state, number, (task, token, begun), sent);
                }
            }
            ReplyContent::Extended { task, token, .. } | ReplyContent::Lost(task, token)
                if state.workers[number].confirming.contains(&(task, token)) =>
            {
                state.workers[number].confirming.retain(|unconfirmed| *unconfirmed != (task, token));
                if matches!(content, ReplyContent::Extended { .. })
                    && !(self.rules.knows)(&state.workers[number], task, token)
                {
                    self.coverage.record(Situation::UnconfirmedTaken);
                    self.take(state, number, (task, token, true), sent);
                }
                end_recovery(&mut state.workers[number]);
            }
            ReplyContent::Extended { task, token, begun, cancel_requested } => {
                let until = (self.rules.until)(sent, now, self.config.ttl());
                let held_leases = state.workers[number].held_leases.iter_mut();
                for held in held_leases.filter(|held| held.task == task && held.token == token) {
                    held.until = held.until.max(until);
                    held.cancel_requested |= cancel_requested;
                    if begun && held.reporting && !held.cancel_requested && held.until > now {
                        held.begun = true;
                        state.memory.tasks[task].started(token);
                    }
                }
            }
            ReplyContent::Lost(task, token) | ReplyContent::Settled(task, token) => {
                state.workers[number].drop_lease(task, token);
            }
        }
    }

    fn confirm_listed(&self, state: &mut State, number: usize) {
        let listed = state.workers[number].listed.clone().unwrap_or_default();
        let sent = state.workers[number].missed_since.unwrap_or_default();
        for (task, token) in listed {
            if (self.rules.knows)(&state.workers[number], task, token) {
                self.coverage.record(Situation::UnconfirmedWasKnown);
            } else if self.rules.confirms {
                state.workers[number].confirming.push((task, token));
                let operation = Operation::Heartbeat { worker: number, task, token, begun: true };
                state.requests.push(Request { operation, sent: state.now });
            } else {
                self.take(state, number, (task, token, true), sent);
            }
        }
        end_recovery(&mut state.workers[number]);
    }

    /// Adds a lease that was requested at `sent`, unless it may have ended by now.
    fn take(&self, state: &mut State, number: usize, lease: (usize, Token, bool), sent: Timestamp) {
        let (task, token, begun) = lease;
        let (now, ttl) = (state.now, self.config.ttl());
        let until = (self.rules.until)(sent, now, ttl);
        if until <= now {
            return self.coverage.record(Situation::ReplyTooLate);
        }
        state.broken.check(Property::LateReplyIsNoLease, until <= sent.plus(ttl));
        let held_leases = &mut state.workers[number].held_leases;
        if held_leases.iter().any(|held| held.task == task) {
            self.coverage.record(Situation::SameWorkerAgain);
        }
        (self.rules.take)(
            held_leases,
            HeldLease {
                task,
                token,
                until,
                begun,
                reporting: false,
                cancel_requested: false,
                settling: false,
            },
        );
    }
}

/// Once every unconfirmed lease is confirmed or given up, no response is missing any more.
fn end_recovery(worker: &mut Worker) {
    if worker.confirming.is_empty() {
        (worker.missed_since, worker.listed) = (None, None);
        worker.dropped.clear();
    }
}
