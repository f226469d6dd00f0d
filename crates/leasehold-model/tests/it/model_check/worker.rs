//! What a worker may do, and what it makes of a reply. This is the client's half of the promise.

use leasehold_model::{Timestamp, TokenFloor};

use super::facts::Fact;
use super::promises::Promise;
use super::state::{Answer, Belief, Phase, Reply, Request, State, Want, Write, lease_id, owner};
use super::system::{Action, System};

impl System {
    pub(super) fn worker_actions(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let (worker, plan) = (&state.workers[number], &self.config.workers[number]);
        let another = worker.attempt < plan.attempts;
        match worker.phase {
            Phase::Crashed => return,
            Phase::Idle => {
                if another {
                    actions.push(Action::Ask(number));
                }
                if worker.attempt == 0 {
                    return; // Nothing of it is anywhere: it might as well not be there.
                }
            }
            Phase::Asking => {
                if worker.asked < plan.asks {
                    actions.push(Action::AskAgain(number));
                }
                if plan.leaves {
                    actions.push(Action::Leave(number));
                }
            }
            Phase::Holding(belief) => {
                // It may give back what it has lost: it cannot know.
                actions.push(Action::Release(number));
                if state.now < belief.until {
                    if worker.renewed < plan.renewals {
                        actions.push(Action::Renew(number));
                    }
                    if state.left.writes > 0 {
                        actions.push(Action::Write(number));
                    }
                } else if another {
                    actions.push(Action::Ask(number));
                }
            }
        }
        // Without a sweeper to come, a worker that crashes is one that does nothing more.
        if state.left.crashes > 0 && state.left.sweeps > 0 {
            actions.push(Action::Crash(number));
        }
    }

    /// A new request with an id of its own.
    pub(super) fn ask(&self, state: &mut State, number: usize) {
        let worker = &mut state.workers[number];
        worker.attempt += 1;
        worker.asked = 0;
        worker.phase = Phase::Asking;
        self.send_acquire(state, number);
    }

    /// The same request again: the first answer is late or lost, or it waits in the queue and shows that it lives.
    pub(super) fn ask_again(&self, state: &mut State, number: usize) {
        self.send_acquire(state, number);
    }

    fn send_acquire(&self, state: &mut State, number: usize) {
        let (worker, plan) = (&mut state.workers[number], &self.config.workers[number]);
        worker.asked += 1;
        let last = worker.asked > 1 && worker.asked == plan.asks;
        let queue = plan.queue.is_some() && !(plan.impatient && last);
        let lease_id = lease_id(number, worker.attempt);
        let floor = state.floor;
        state.requests.push(Request { lease_id, want: Want::Acquire { queue }, sent: state.now, floor });
    }

    pub(super) fn renew(&self, state: &mut State, number: usize) {
        let Write { lease_id, token } = held(state, number);
        let worker = &mut state.workers[number];
        worker.renewed += 1;
        if let (Some(ticks), Phase::Holding(belief)) =
            (self.config.workers[number].renew_for, &mut worker.phase)
        {
            // The lease may be shorter from now on, and the reply may never tell.
            let until = state.now.plus(self.config.lasting(ticks));
            belief.until = belief.until.min(until);
        }
        let floor = state.floor;
        state.requests.push(Request { lease_id, want: Want::Renew(token), sent: state.now, floor });
    }

    /// A write sets out while its sender believes. When it arrives, that may be long over.
    pub(super) fn write(&self, state: &mut State, number: usize) {
        let write = held(state, number);
        state.left.writes -= 1;
        state.writes.push(write);
        if state.writes.iter().any(|other| other.token != write.token) {
            self.facts.note(Fact::TwoHoldersWritesInFlight);
        }
    }

    /// It sends nothing more. What it has sent still arrives.
    pub(super) fn crash(&self, state: &mut State, number: usize) {
        state.left.crashes -= 1;
        state.workers[number].phase = Phase::Crashed;
        if state.requests.iter().any(|request| owner(&request.lease_id) == number) {
            self.facts.note(Fact::CrashedWithRequestInFlight);
        }
    }

    pub(super) fn receive(&self, state: &mut State, reply: Reply) {
        let number = owner(&reply.lease_id);
        match (reply.answer, state.workers[number].phase) {
            (Answer::Yours(token, ttl), phase) => {
                let until = (self.rules.until)(reply.sent, state.now, ttl);
                if until <= state.now {
                    self.facts.note(Fact::ReplyTooLate);
                    return;
                }
                if until > reply.sent.plus(ttl) {
                    state.broken.add(Promise::LateReplyIsNoAcquisition);
                }
                let belief = match phase {
                    // Replies overtake each other: the newer lease counts, and of one lease its longest time.
                    Phase::Holding(known) if known.token > token => return,
                    Phase::Holding(known) if known.token == token => {
                        Belief { token, until: known.until.max(until) }
                    }
                    _ => Belief { token, until },
                };
                state.workers[number].phase = Phase::Holding(belief);
            }
            (Answer::Busy, Phase::Asking) => state.workers[number].phase = Phase::Idle,
            (Answer::Lost(token), Phase::Holding(belief)) if belief.token == token => {
                state.workers[number].phase = Phase::Idle;
            }
            _ => {}
        }
    }
}

/// It gives up and listens no more, whatever comes of its request.
pub(super) fn leave(state: &mut State, number: usize) {
    let lease_id = lease_id(number, state.workers[number].attempt);
    state.workers[number].phase = Phase::Idle;
    let (sent, floor) = (Timestamp::default(), TokenFloor::default());
    state.requests.push(Request { lease_id, want: Want::Leave, sent, floor });
}

/// It stops believing when it sends its release, not when that arrives.
pub(super) fn release(state: &mut State, number: usize) {
    let Write { lease_id, token } = held(state, number);
    state.workers[number].phase = Phase::Idle;
    let (sent, floor) = (Timestamp::default(), TokenFloor::default());
    state.requests.push(Request { lease_id, want: Want::Release(token), sent, floor });
}

/// What a worker in its phase `Holding` holds.
fn held(state: &State, number: usize) -> Write {
    let worker = &state.workers[number];
    let Phase::Holding(Belief { token, .. }) = worker.phase else {
        unreachable!("only a holder does this");
    };
    Write { lease_id: lease_id(number, worker.attempt), token }
}
