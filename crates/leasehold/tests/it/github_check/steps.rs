//! What each step does.

use super::rules::{Ruling, Sight, Times};
use super::system::{
    Action, Answer, Comment, GRACE, Phase, Reply, Request, Stage, State, System, TTL, UNIT, Want, Worker,
};

/// So often a worker looks again.
const LOOKS: u8 = 1;

impl System {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.now += 1,
            Action::Start(worker) => {
                let now = state.now;
                let worker_state = &mut state.workers[usize::from(worker)];
                worker_state.phase = Phase::Raising;
                worker_state.deadline = now + TTL;
                send(state, worker, Want::Raise);
            }
            Action::Beat(worker) => {
                let holder = &mut state.workers[usize::from(worker)];
                holder.phase = Phase::Beating;
                holder.beats += 1;
                let mine = holder.mine;
                send(state, worker, Want::Edit(mine, Stage::Held));
            }
            Action::Release(worker) => {
                let mine = state.workers[usize::from(worker)].mine;
                leave(state, worker, Want::Edit(mine, Stage::Released));
            }
            // To ask later is to be heard later: only the answer is on its way for a while.
            Action::Look(worker, age) => {
                let listed = age.map_or(&state.comments, |age| &state.before[age]).clone();
                let (sent, answer) = (state.now, Answer::Listed(listed, told(state.now)));
                state.workers[usize::from(worker)].phase = Phase::Looked;
                state.replies.push(Reply { to: worker, sent, answer });
            }
            Action::Deliver(place, lowest) => {
                let request = state.requests.remove(place);
                self.deliver(state, &request, lowest);
            }
            Action::Receive(place) => {
                let reply = state.replies.remove(place);
                self.receive(state, reply);
            }
        }
    }

    /// The service does what is asked.
    fn deliver(&self, state: &mut State, request: &Request, lowest: bool) {
        let now = told(state.now);
        match request.want {
            Want::Raise => {
                self.remember(state);
                let id = if lowest { 10 - request.from } else { 10 + request.from };
                state.comments.push(Comment { id, owner: request.from, stage: Stage::Raised, updated: now });
                state.comments.sort();
                answer(state, request, Answer::Raised(id));
            }
            Want::Clear(id) => {
                let over = |comment: &Comment| !(self.rules.is_in_the_way)(*comment, now);
                let gone = state.comments.iter().find(|comment| comment.id == id).is_none_or(over);
                if gone {
                    self.remember(state);
                    state.comments.retain(|comment| comment.id != id);
                }
                answer(state, request, Answer::Cleared(gone));
            }
            Want::Edit(id, becomes) => {
                self.remember(state);
                let found = state.comments.iter_mut().find(|comment| comment.id == id);
                let is_there = found.is_some();
                if let Some(comment) = found {
                    (comment.stage, comment.updated) = (becomes, now);
                }
                answer(state, request, Answer::Edited(is_there));
            }
            Want::Delete(id) => {
                self.remember(state);
                state.comments.retain(|comment| comment.id != id);
            }
        }
    }

    fn remember(&self, state: &mut State) {
        if self.old_lists && state.before.last() != Some(&state.comments) {
            state.before.push(state.comments.clone());
        }
    }

    /// A worker gets an answer.
    fn receive(&self, state: &mut State, reply: Reply) {
        let number = reply.to;
        let worker = state.workers[usize::from(number)];
        let now = state.now;
        match (worker.phase, reply.answer) {
            (Phase::Raising, Answer::Raised(id)) => {
                state.workers[usize::from(number)].mine = id;
                if self.rules.looks {
                    state.workers[usize::from(number)].phase = Phase::Looking;
                } else {
                    go(state, number, Phase::Taking, Want::Edit(id, Stage::Held));
                }
            }
            (Phase::Looked, Answer::Listed(comments, told)) => {
                let sight = Sight { comments: &comments, now: told, mine: worker.mine };
                match (self.rules.judge)(&sight) {
                    Ruling::Take => self.clear_or_take(state, number, &comments),
                    Ruling::LookAgain if worker.looks < LOOKS => {
                        state.workers[usize::from(number)].looks += 1;
                        state.workers[usize::from(number)].phase = Phase::Looking;
                    }
                    verdict => {
                        let dead = |comment: &Comment| {
                            told >= comment.updated + TTL + GRACE || comment.stage == Stage::Released
                        };
                        let mut others = comments.iter().filter(|comment| comment.id != worker.mine);
                        state.blocked_by_the_dead |= verdict == Ruling::GiveUp && others.all(dead);
                        leave(state, number, Want::Delete(worker.mine));
                    }
                }
            }
            (Phase::Clearing, Answer::Cleared(true)) => {
                state.followed = true;
                go(state, number, Phase::Taking, Want::Edit(worker.mine, Stage::Held));
            }
            (Phase::Clearing, Answer::Cleared(false)) => leave(state, number, Want::Delete(worker.mine)),
            (Phase::Taking | Phase::Beating, Answer::Edited(true)) => {
                let times = Times { sent: reply.sent, received: now, deadline: worker.deadline };
                match (self.rules.until)(times) {
                    Some(deadline) => {
                        let holder = &mut state.workers[usize::from(number)];
                        (holder.phase, holder.deadline) = (Phase::Holding, deadline);
                    }
                    None => leave(state, number, Want::Delete(worker.mine)),
                }
            }
            (Phase::Taking | Phase::Beating, Answer::Edited(false)) => die(state, number),
            // An answer to what nobody waits for any more.
            _ => {}
        }
    }

    /// What is over goes first; then the lock is taken.
    fn clear_or_take(&self, state: &mut State, number: u8, comments: &[Comment]) {
        let mine = state.workers[usize::from(number)].mine;
        let left = comments.iter().find(|comment| comment.id != mine && comment.stage != Stage::Released);
        match left {
            Some(left) if self.rules.clears => go(state, number, Phase::Clearing, Want::Clear(left.id)),
            _ => go(state, number, Phase::Taking, Want::Edit(mine, Stage::Held)),
        }
    }
}

/// The time as the service tells it.
fn told(now: u8) -> u8 {
    now / UNIT * UNIT
}

fn send(state: &mut State, from: u8, want: Want) {
    state.requests.push(Request { from, sent: state.now, want });
}

fn go(state: &mut State, number: u8, phase: Phase, want: Want) {
    state.workers[usize::from(number)].phase = phase;
    send(state, number, want);
}

fn answer(state: &mut State, request: &Request, answer: Answer) {
    // Nobody waits for an answer who is gone.
    if state.workers[usize::from(request.from)].phase != Phase::Gone {
        state.replies.push(Reply { to: request.from, sent: request.sent, answer });
    }
}

/// Does a last thing, and does not wait for the answer.
fn leave(state: &mut State, number: u8, want: Want) {
    send(state, number, want);
    die(state, number);
}

/// What it has sent may still arrive; what comes back is not heard. One that is gone is like another.
fn die(state: &mut State, number: u8) {
    let worker = &mut state.workers[usize::from(number)];
    *worker = Worker { phase: Phase::Gone, mine: 0, deadline: 0, looks: 0, beats: 0 };
    state.replies.retain(|reply| reply.to != number);
}
