//! Actions of a worker, and its reaction to a reply: the client's part of the properties.

use leasehold_model::{Timestamp, TokenFloor};

use super::coverage::Situation;
use super::properties::Property;
use super::state::{Belief, Operation, Phase, Reply, Request, Response, State, Write, lease_id, owner};
use super::system::{Action, System};

impl System {
    pub(super) fn worker_actions(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let (worker, plan) = (&state.workers[number], &self.config.workers[number]);
        let another = worker.attempt < plan.attempts;
        match worker.phase {
            Phase::Crashed => return,
            Phase::Idle => {
                if another {
                    actions.push(Action::Acquire(number));
                }
                if worker.attempt == 0 {
                    return; // Nothing of it is anywhere: it might as well not be there.
                }
            }
            Phase::Requesting => {
                if worker.sent < plan.sends {
                    actions.push(Action::RepeatAcquire(number));
                }
                if plan.withdraws {
                    actions.push(Action::Withdraw(number));
                }
            }
            Phase::Holding(belief) => {
                // It may release a lease that it has lost: it cannot know.
                actions.push(Action::Release(number));
                if state.now < belief.until {
                    if worker.renewed < plan.renewals {
                        actions.push(Action::Renew(number));
                    }
                    if state.left.writes > 0 {
                        actions.push(Action::Write(number));
                    }
                } else if another {
                    actions.push(Action::Acquire(number));
                }
            }
        }
        // Without a later sweep, a crash is the same as no more actions.
        if state.left.crashes > 0 && state.left.sweeps > 0 {
            actions.push(Action::Crash(number));
        }
    }

    /// Sends a new request with a new id.
    pub(super) fn start_acquire(&self, state: &mut State, number: usize) {
        let worker = &mut state.workers[number];
        worker.attempt += 1;
        worker.sent = 0;
        worker.phase = Phase::Requesting;
        self.send_acquire(state, number);
    }

    /// Repeats the request: the first response is late or lost, or the worker waits in the queue
    /// and shows that it is alive.
    pub(super) fn repeat_acquire(&self, state: &mut State, number: usize) {
        self.send_acquire(state, number);
    }

    fn send_acquire(&self, state: &mut State, number: usize) {
        let (worker, plan) = (&mut state.workers[number], &self.config.workers[number]);
        worker.sent += 1;
        let last = worker.sent > 1 && worker.sent == plan.sends;
        let queue = plan.queue.is_some() && !(plan.stops_waiting && last);
        let lease_id = lease_id(number, worker.attempt);
        let floor = state.floor;
        state.requests.push(Request {
            lease_id,
            operation: Operation::Acquire { queue },
            sent: state.now,
            floor,
        });
    }

    pub(super) fn renew(&self, state: &mut State, number: usize) {
        let Write { lease_id, token } = held(state, number);
        let worker = &mut state.workers[number];
        worker.renewed += 1;
        if let (Some(ticks), Phase::Holding(belief)) =
            (self.config.workers[number].renew_for, &mut worker.phase)
        {
            // The lease may be shorter from now on, and the reply may never arrive.
            let until = state.now.plus(self.config.lasting(ticks));
            belief.until = belief.until.min(until);
        }
        let floor = state.floor;
        state.requests.push(Request { lease_id, operation: Operation::Renew(token), sent: state.now, floor });
    }

    /// Sends a write while the worker believes to hold the lock. The lease may have ended long
    /// before the write arrives.
    pub(super) fn write(&self, state: &mut State, number: usize) {
        let write = held(state, number);
        state.left.writes -= 1;
        state.writes.push(write);
        if state.writes.iter().any(|other| other.token != write.token) {
            self.coverage.record(Situation::TwoHoldersWritesInFlight);
        }
    }

    /// The worker sends nothing more. What it has sent still arrives.
    pub(super) fn crash(&self, state: &mut State, number: usize) {
        state.left.crashes -= 1;
        state.workers[number].phase = Phase::Crashed;
        if state.requests.iter().any(|request| owner(&request.lease_id) == number) {
            self.coverage.record(Situation::CrashedWithRequestInFlight);
        }
    }

    pub(super) fn receive(&self, state: &mut State, reply: Reply) {
        let number = owner(&reply.lease_id);
        match (reply.response, state.workers[number].phase) {
            (Response::Granted(token, ttl), phase) => {
                let until = (self.rules.until)(reply.sent, state.now, ttl);
                if until <= state.now {
                    self.coverage.record(Situation::ReplyTooLate);
                    return;
                }
                if until > reply.sent.plus(ttl) {
                    state.broken.add(Property::LateReplyIsNoAcquisition);
                }
                let belief = match phase {
                    // Replies overtake each other: the newer lease counts, and of one lease its
                    // longest time.
                    Phase::Holding(known) if known.token > token => return,
                    Phase::Holding(known) if known.token == token => {
                        Belief { token, until: known.until.max(until) }
                    }
                    _ => Belief { token, until },
                };
                state.workers[number].phase = Phase::Holding(belief);
            }
            (Response::Conflict, Phase::Requesting) => state.workers[number].phase = Phase::Idle,
            (Response::Lost(token), Phase::Holding(belief)) if belief.token == token => {
                state.workers[number].phase = Phase::Idle;
            }
            _ => {}
        }
    }
}

/// The worker gives up and does not listen any more, whatever the outcome of its request.
pub(super) fn leave(state: &mut State, number: usize) {
    let lease_id = lease_id(number, state.workers[number].attempt);
    state.workers[number].phase = Phase::Idle;
    let (sent, floor) = (Timestamp::default(), TokenFloor::default());
    state.requests.push(Request { lease_id, operation: Operation::Withdraw, sent, floor });
}

/// The worker stops believing when it sends its release, not when the release arrives.
pub(super) fn release(state: &mut State, number: usize) {
    let Write { lease_id, token } = held(state, number);
    state.workers[number].phase = Phase::Idle;
    let (sent, floor) = (Timestamp::default(), TokenFloor::default());
    state.requests.push(Request { lease_id, operation: Operation::Release(token), sent, floor });
}

/// Returns the lease of a worker in the phase `Holding`.
fn held(state: &State, number: usize) -> Write {
    let worker = &state.workers[number];
    let Phase::Holding(Belief { token, .. }) = worker.phase else {
        unreachable!("only a holder does this");
    };
    Write { lease_id: lease_id(number, worker.attempt), token }
}
