//! Effect of each action.

use super::rules::{Decision, Snapshot, Times};
use super::system::{
    Action, Comment, GRACE, Operation, Phase, RESOLUTION, Reply, Request, Response, Stage, State, System,
    TTL, Worker,
};

/// Maximum number of repeated reads of a worker.
const MAX_REREADS: u8 = 1;

impl System {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.now += 1,
            Action::Start(worker) => {
                let now = state.now;
                let worker_state = &mut state.workers[usize::from(worker)];
                worker_state.phase = Phase::Posting;
                worker_state.deadline = now + TTL;
                send(state, worker, Operation::Post);
            }
            Action::Renew(worker) => {
                let holder = &mut state.workers[usize::from(worker)];
                holder.phase = Phase::Renewing;
                holder.renewals += 1;
                let own_id = holder.own_id;
                send(state, worker, Operation::Edit(own_id, Stage::Held));
            }
            Action::Release(worker) => {
                let own_id = state.workers[usize::from(worker)].own_id;
                send_and_end(state, worker, Operation::Edit(own_id, Stage::Released));
            }
            // A read is executed at once, and only its response takes time: sending it later has
            // the same effect as a slow request.
            Action::Read(worker, age) => {
                let listed = age.map_or(&state.comments, |age| &state.before[age]).clone();
                let (sent, response) = (state.now, Response::Listed(listed, service_time(state.now)));
                state.workers[usize::from(worker)].phase = Phase::Reading;
                state.replies.push(Reply { to: worker, sent, response });
            }
            Action::Deliver(index, lowest) => {
                let request = state.requests.remove(index);
                self.deliver(state, &request, lowest);
            }
            Action::Receive(index) => {
                let reply = state.replies.remove(index);
                self.receive(state, reply);
            }
        }
    }

    /// Executes a request.
    fn deliver(&self, state: &mut State, request: &Request, lowest: bool) {
        let now = service_time(state.now);
        match request.operation {
            Operation::Post => {
                self.store_list(state);
                let id = if lowest { 10 - request.from } else { 10 + request.from };
                state.comments.push(Comment {
                    id,
                    owner: request.from,
                    stage: Stage::Candidate,
                    updated: now,
                });
                state.comments.sort();
                respond(state, request, Response::Posted(id));
            }
            Operation::Clear(id) => {
                let over = |comment: &Comment| !(self.rules.conflicts)(*comment, now);
                let gone = state.comments.iter().find(|comment| comment.id == id).is_none_or(over);
                if gone {
                    self.store_list(state);
                    state.comments.retain(|comment| comment.id != id);
                }
                respond(state, request, Response::Cleared(gone));
            }
            Operation::Edit(id, becomes) => {
                self.store_list(state);
                let found = state.comments.iter_mut().find(|comment| comment.id == id);
                let existed = found.is_some();
                if let Some(comment) = found {
                    (comment.stage, comment.updated) = (becomes, now);
                }
                respond(state, request, Response::Edited(existed));
            }
            Operation::Delete(id) => {
                self.store_list(state);
                state.comments.retain(|comment| comment.id != id);
            }
        }
    }

    fn store_list(&self, state: &mut State) {
        if self.stale_lists && state.before.last() != Some(&state.comments) {
            state.before.push(state.comments.clone());
        }
    }

    /// Lets a worker receive a response.
    fn receive(&self, state: &mut State, reply: Reply) {
        let number = reply.to;
        let worker = state.workers[usize::from(number)];
        let now = state.now;
        match (worker.phase, reply.response) {
            (Phase::Posting, Response::Posted(id)) => {
                state.workers[usize::from(number)].own_id = id;
                if self.rules.reads {
                    state.workers[usize::from(number)].phase = Phase::ReadyToRead;
                } else {
                    send_in_phase(state, number, Phase::Acquiring, Operation::Edit(id, Stage::Held));
                }
            }
            (Phase::Reading, Response::Listed(comments, service_time)) => {
                let snapshot = Snapshot { comments: &comments, now: service_time, own_id: worker.own_id };
                match (self.rules.decide)(&snapshot) {
                    Decision::Acquire => self.clear_or_acquire(state, number, &comments),
                    Decision::ReadAgain if worker.reads < MAX_REREADS => {
                        state.workers[usize::from(number)].reads += 1;
                        state.workers[usize::from(number)].phase = Phase::ReadyToRead;
                    }
                    decision => {
                        let dead = |comment: &Comment| {
                            service_time >= comment.updated + TTL + GRACE || comment.stage == Stage::Released
                        };
                        let mut others = comments.iter().filter(|comment| comment.id != worker.own_id);
                        state.blocked_by_ended_claims |= decision == Decision::GiveUp && others.all(dead);
                        send_and_end(state, number, Operation::Delete(worker.own_id));
                    }
                }
            }
            (Phase::Clearing, Response::Cleared(true)) => {
                state.replaced = true;
                send_in_phase(state, number, Phase::Acquiring, Operation::Edit(worker.own_id, Stage::Held));
            }
            (Phase::Clearing, Response::Cleared(false)) => {
                send_and_end(state, number, Operation::Delete(worker.own_id));
            }
            (Phase::Acquiring | Phase::Renewing, Response::Edited(true)) => {
                let times = Times { sent: reply.sent, received: now, deadline: worker.deadline };
                match (self.rules.until)(times) {
                    Some(deadline) => {
                        let holder = &mut state.workers[usize::from(number)];
                        (holder.phase, holder.deadline) = (Phase::Holding, deadline);
                    }
                    None => send_and_end(state, number, Operation::Delete(worker.own_id)),
                }
            }
            (Phase::Acquiring | Phase::Renewing, Response::Edited(false)) => end_worker(state, number),
            // A response that the worker does not wait for any more.
            _ => {}
        }
    }

    /// Deletes an ended claim first; then acquires the lock.
    fn clear_or_acquire(&self, state: &mut State, number: u8, comments: &[Comment]) {
        let own_id = state.workers[usize::from(number)].own_id;
        let left = comments.iter().find(|comment| comment.id != own_id && comment.stage != Stage::Released);
        match left {
            Some(left) if self.rules.clears => {
                send_in_phase(state, number, Phase::Clearing, Operation::Clear(left.id));
            }
            _ => send_in_phase(state, number, Phase::Acquiring, Operation::Edit(own_id, Stage::Held)),
        }
    }
}

/// Returns the time by the service's clock.
fn service_time(now: u8) -> u8 {
    now / RESOLUTION * RESOLUTION
}

fn send(state: &mut State, from: u8, operation: Operation) {
    state.requests.push(Request { from, sent: state.now, operation });
}

fn send_in_phase(state: &mut State, number: u8, phase: Phase, operation: Operation) {
    state.workers[usize::from(number)].phase = phase;
    send(state, number, operation);
}

fn respond(state: &mut State, request: &Request, response: Response) {
    // A dead worker receives no response.
    if state.workers[usize::from(request.from)].phase != Phase::Ended {
        state.replies.push(Reply { to: request.from, sent: request.sent, response });
    }
}

/// Sends a last request, and does not wait for its response.
fn send_and_end(state: &mut State, number: u8, operation: Operation) {
    send(state, number, operation);
    end_worker(state, number);
}

/// Ends a worker. Its requests may still arrive; it receives no responses. All dead workers are
/// equal, which keeps the state space small.
fn end_worker(state: &mut State, number: u8) {
    let worker = &mut state.workers[usize::from(number)];
    *worker = Worker { phase: Phase::Ended, own_id: 0, deadline: 0, reads: 0, renewals: 0 };
    state.replies.retain(|reply| reply.to != number);
}
