//! What each step does.

use super::system::{Action, Phase, Push, Reply, State, System, TTL, Tip, UNIT, Want, Worker};

impl System {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.now += 1,
            Action::Start(number) => worker(state, number).phase = Phase::Asking,
            Action::Read(number, version) => self.read(state, number, version),
            Action::Wait(number, version) => {
                if state.tips[usize::from(version)].holder.is_some() {
                    worker(state, number).waits += 1;
                    push(state, number, version, Want::Wait);
                }
            }
            Action::Beat(number) => {
                worker(state, number).beats += 1;
                let known = worker(state, number).known;
                push(state, number, known, Want::Beat);
            }
            Action::Release(number) => {
                let known = worker(state, number).known;
                push(state, number, known, Want::Free);
                die(state, number);
            }
            Action::Deliver(place) => {
                let push = state.pushes.remove(place);
                self.deliver(state, push);
            }
            Action::Receive(place) => {
                let reply = state.replies.remove(place);
                self.receive(state, reply);
            }
        }
    }

    /// A worker sees the ref as it was once, and acts on it.
    fn read(&self, state: &mut State, number: u8, version: u8) {
        let (tip, now) = (state.tips[usize::from(version)], state.now);
        let reader = worker(state, number);
        reader.reads += 1;
        let is_mine = tip.holder == Some(number);
        match (reader.phase, tip.holder) {
            (Phase::Asking, None) => push(state, number, version, Want::Take),
            (Phase::Asking, Some(_)) if is_mine => push(state, number, version, Want::Take),
            (Phase::Asking, Some(_)) => {
                if reader.watches.is_none_or(|(sign, _)| sign != tip.sign) && !self.is_over(reader, tip, now)
                {
                    reader.watches = Some((tip.sign, now));
                } else if self.is_over(reader, tip, now) {
                    push(state, number, version, Want::Take);
                }
            }
            (_, _) if is_mine => push(state, number, version, Want::Beat),
            (_, _) if self.ways.believes_reads => {
                let (newest, deadline) = (state.newest(), state.workers[usize::from(number)].deadline);
                state.wronged |= newest.holder == Some(number) && now < deadline;
                die(state, number);
            }
            (_, _) => push(state, number, version, Want::Prove),
        }
    }

    fn is_over(&self, reader: &Worker, tip: Tip, now: u8) -> bool {
        (self.ways.is_over)(tip, reader.watches, now)
    }

    /// The service moves the ref, if it is where it is expected.
    fn deliver(&self, state: &mut State, push: Push) {
        let (newest, place) = (state.newest(), state.tips.len());
        let is_newest = usize::from(push.parent) + 1 == place;
        if !is_newest && !self.ways.forces {
            state.refused = true;
            return answer(state, push, None);
        }
        let version = u8::try_from(place).expect("few tips");
        let becomes = match push.want {
            Want::Take | Want::Beat => {
                Tip { holder: Some(push.from), sign: version, date: push.sent / UNIT * UNIT }
            }
            Want::Free => Tip { holder: None, sign: version, date: 0 },
            Want::Wait | Want::Prove => state.tips[usize::from(push.parent)],
        };
        state.followed |= push.want == Want::Take && newest.holder.is_some_and(|holder| holder != push.from);
        state.tips.push(becomes);
        answer(state, push, Some(version));
    }

    /// A worker gets an answer.
    fn receive(&self, state: &mut State, reply: Reply) {
        let (number, now, ways) = (reply.push.from, state.now, self.ways);
        let pushed = worker(state, number);
        if pushed.phase != Phase::Pushing {
            return;
        }
        let end = reply.push.sent + TTL;
        match (reply.push.want, reply.version) {
            (Want::Take, Some(version)) if now < end || ways.late_answers_count => {
                let deadline = if ways.late_answers_count { now + TTL } else { end };
                *pushed =
                    Worker { phase: Phase::Holding, known: version, deadline, watches: None, ..*pushed };
            }
            (Want::Beat, Some(version)) if now < pushed.deadline || ways.late_answers_count => {
                let deadline = if ways.late_answers_count { now + TTL } else { end };
                *pushed = Worker { phase: Phase::Holding, known: version, deadline, ..*pushed };
            }
            (Want::Beat | Want::Prove, None) => pushed.phase = Phase::Unsure,
            (Want::Wait, _) | (Want::Take, None) => pushed.phase = Phase::Asking,
            _ => die(state, number),
        }
    }
}

fn worker(state: &mut State, number: u8) -> &mut Worker {
    &mut state.workers[usize::from(number)]
}

fn push(state: &mut State, from: u8, parent: u8, want: Want) {
    let sent = state.now;
    worker(state, from).phase = Phase::Pushing;
    state.pushes.push(Push { from, sent, parent, want });
}

fn answer(state: &mut State, push: Push, version: Option<u8>) {
    // Nobody waits for an answer who is gone.
    if state.workers[usize::from(push.from)].phase != Phase::Gone {
        state.replies.push(Reply { push, version });
    }
}

/// What it has sent may still arrive; what comes back is not heard. One that is gone is like another.
fn die(state: &mut State, number: u8) {
    *worker(state, number) = Worker::new(Phase::Gone);
    state.replies.retain(|reply| reply.push.from != number);
}
