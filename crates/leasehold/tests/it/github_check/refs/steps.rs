//! Effect of each action.

use super::system::{Action, Phase, Purpose, Push, RESOLUTION, Reply, State, System, TTL, Tip, Worker};

impl System {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.now += 1,
            Action::Start(number) => worker(state, number).phase = Phase::Acquiring,
            Action::Read(number, version) => self.read(state, number, version),
            Action::Wait(number, version) => {
                if state.tips[usize::from(version)].holder.is_some() {
                    worker(state, number).waits += 1;
                    push(state, number, version, Purpose::Wait);
                }
            }
            Action::Renew(number) => {
                worker(state, number).renewals += 1;
                let known = worker(state, number).known;
                push(state, number, known, Purpose::Renew);
            }
            Action::Release(number) => {
                let known = worker(state, number).known;
                push(state, number, known, Purpose::Release);
                end_worker(state, number);
            }
            Action::Deliver(index) => {
                let push = state.pushes.remove(index);
                self.deliver(state, push);
            }
            Action::Receive(index) => {
                let reply = state.replies.remove(index);
                self.receive(state, reply);
            }
        }
    }

    /// Lets a worker read an earlier or the current tip, and act on it.
    fn read(&self, state: &mut State, number: u8, version: u8) {
        let (tip, now) = (state.tips[usize::from(version)], state.now);
        let reader = worker(state, number);
        reader.reads += 1;
        let is_own = tip.holder == Some(number);
        match (reader.phase, tip.holder) {
            (Phase::Acquiring, None) => push(state, number, version, Purpose::Acquire),
            (Phase::Acquiring, Some(_)) if is_own => push(state, number, version, Purpose::Acquire),
            (Phase::Acquiring, Some(_)) => {
                if reader.observed.is_none_or(|(heartbeat, _)| heartbeat != tip.heartbeat)
                    && !self.has_ended(reader, tip, now)
                {
                    reader.observed = Some((tip.heartbeat, now));
                } else if self.has_ended(reader, tip, now) {
                    push(state, number, version, Purpose::Acquire);
                }
            }
            (_, _) if is_own => push(state, number, version, Purpose::Renew),
            (_, _) if self.rules.trusts_reads => {
                let (newest, deadline) = (state.newest(), state.workers[usize::from(number)].deadline);
                state.misinformed |= newest.holder == Some(number) && now < deadline;
                end_worker(state, number);
            }
            (_, _) => push(state, number, version, Purpose::Confirm),
        }
    }

    fn has_ended(&self, reader: &Worker, tip: Tip, now: u8) -> bool {
        (self.rules.has_ended)(tip, reader.observed, now)
    }

    /// Moves the ref, if its tip is the expected one.
    fn deliver(&self, state: &mut State, push: Push) {
        let (newest, index) = (state.newest(), state.tips.len());
        let is_newest = usize::from(push.parent) + 1 == index;
        if !is_newest && !self.rules.force {
            state.refused = true;
            return respond(state, push, None);
        }
        let version = u8::try_from(index).expect("there are few tips");
        let tip = match push.purpose {
            Purpose::Acquire | Purpose::Renew => {
                Tip { holder: Some(push.from), heartbeat: version, date: push.sent / RESOLUTION * RESOLUTION }
            }
            Purpose::Release => Tip { holder: None, heartbeat: version, date: 0 },
            Purpose::Wait | Purpose::Confirm => state.tips[usize::from(push.parent)],
        };
        state.replaced |=
            push.purpose == Purpose::Acquire && newest.holder.is_some_and(|holder| holder != push.from);
        state.tips.push(tip);
        respond(state, push, Some(version));
    }

    /// Lets a worker receive a response.
    fn receive(&self, state: &mut State, reply: Reply) {
        let (number, now, rules) = (reply.push.from, state.now, self.rules);
        let pushed = worker(state, number);
        if pushed.phase != Phase::Pushing {
            return;
        }
        let end = reply.push.sent + TTL;
        match (reply.push.purpose, reply.version) {
            (Purpose::Acquire, Some(version)) if now < end || rules.late_responses_count => {
                let deadline = if rules.late_responses_count { now + TTL } else { end };
                *pushed =
                    Worker { phase: Phase::Holding, known: version, deadline, observed: None, ..*pushed };
            }
            (Purpose::Renew, Some(version)) if now < pushed.deadline || rules.late_responses_count => {
                let deadline = if rules.late_responses_count { now + TTL } else { end };
                *pushed = Worker { phase: Phase::Holding, known: version, deadline, ..*pushed };
            }
            (Purpose::Renew | Purpose::Confirm, None) => pushed.phase = Phase::Uncertain,
            (Purpose::Wait, _) | (Purpose::Acquire, None) => pushed.phase = Phase::Acquiring,
            _ => end_worker(state, number),
        }
    }
}

fn worker(state: &mut State, number: u8) -> &mut Worker {
    &mut state.workers[usize::from(number)]
}

fn push(state: &mut State, from: u8, parent: u8, purpose: Purpose) {
    let sent = state.now;
    worker(state, from).phase = Phase::Pushing;
    state.pushes.push(Push { from, sent, parent, purpose });
}

fn respond(state: &mut State, push: Push, version: Option<u8>) {
    // A dead worker receives no response.
    if state.workers[usize::from(push.from)].phase != Phase::Ended {
        state.replies.push(Reply { push, version });
    }
}

/// Ends a worker. Its requests may still arrive; it receives no responses. All dead workers are
/// equal, which keeps the state space small.
fn end_worker(state: &mut State, number: u8) {
    *worker(state, number) = Worker::new(Phase::Ended);
    state.replies.retain(|reply| reply.push.from != number);
}
