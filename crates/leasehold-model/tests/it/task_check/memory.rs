//! What the auditor remembers of the past, apart from the table: wrong rules cannot touch it.

use leasehold_model::{AttemptResult, Enqueued, TaskOp, Timestamp, Token};

use super::audit::Step;
use super::config::{Config, Plan, task_number};
use super::rules::{Answer, Op};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Memory {
    pub(super) tasks: Vec<Known>,
    /// The task that has the key.
    pub(super) key: Option<usize>,
}

/// What is known of one task.
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the task")]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Known {
    /// Its adder was told that it is there.
    pub(super) added: bool,
    /// The highest token of any lease.
    pub(super) highest: Token,
    /// The lease that nobody has ended, and its end without another sign of life.
    pub(super) lease: Option<(Token, Timestamp)>,
    /// Attempts that count.
    pub(super) attempt: u32,
    /// Whether the store was told that the task was started under that lease…
    pub(super) begun: bool,
    /// …and whether it was.
    pub(super) started: bool,
    /// Attempts that were started and do not count, because the store was never told.
    pub(super) uncounted: u32,
    /// Leases in a row that ran out after the store was told of a start.
    pub(super) expiries: u32,
    /// Somebody wants it stopped.
    pub(super) cancelled: bool,
    pub(super) not_before: Option<Timestamp>,
    /// Its runner has said until when it is to be waited for.
    pub(super) wanted: Option<Timestamp>,
    /// The newest token of a write that its resource accepted.
    pub(super) accepted: Token,
}

impl Memory {
    pub(super) fn new(tasks: usize) -> Self {
        Self { tasks: vec![Known::default(); tasks], key: None }
    }

    pub(super) fn added(&mut self, task: usize, plan: &Plan, now: Timestamp) {
        let not_before = (plan.after > 0).then(|| now.plus(Config::lasting(plan.after)));
        let wanted = (plan.wanted > 0).then(|| now.plus(Config::lasting(plan.wanted)));
        self.tasks[task] = Known { added: true, not_before, wanted, ..Known::default() };
        if plan.key {
            self.key = Some(task);
        }
    }

    /// What is remembered after a step.
    pub(super) fn after(mut self, step: &Step) -> Self {
        let now = step.now();
        match (step.op, step.answer) {
            (Op::Enqueue(_), Answer::Enqueued(Enqueued::Added(id))) => {
                let task = task_number(*id);
                if !self.tasks[task].added {
                    self.added(task, &step.system.config.tasks[task], now);
                }
            }
            (Op::Lease(ask), Answer::Leased(leased)) => {
                self.tasks.iter_mut().for_each(|known| known.recovered(now));
                for leased in leased {
                    let known = &mut self.tasks[task_number(leased.id)];
                    known.highest = known.highest.max(leased.token);
                    known.lease = Some((leased.token, now.plus(ask.ttl)));
                    known.attempt += 1;
                    (known.begun, known.started) = (leased.begun, leased.begun);
                }
            }
            (Op::Beat(_, held, ttl), _) => {
                let known = &mut self.tasks[task_number(held.id)];
                if known.lease.is_some_and(|(token, _)| token == held.token) {
                    known.begun |= held.begun;
                }
                let lease = &mut known.lease;
                *lease = lease.map(
                    |(token, end)| {
                        if token == held.token { (token, now.plus(*ttl)) } else { (token, end) }
                    },
                );
            }
            (Op::Settle(settle), _) => self.tasks[task_number(settle.id)].settled(settle, now),
            (Op::Recover, _) => self.tasks.iter_mut().for_each(|known| known.recovered(now)),
            (Op::Change(id, op), _) if step.is_done() => {
                self.tasks[task_number(*id)].changed(op, step);
            }
            _ => {}
        }
        self
    }
}

impl Known {
    /// Whether its lease has run out.
    pub(super) fn lapsed(&self, now: Timestamp) -> bool {
        self.lease.is_some_and(|(_, end)| end <= now)
    }

    /// What is known once the lease was ended by time, if it can be.
    pub(super) fn recovered(&mut self, now: Timestamp) {
        let Some((_, end)) = self.lease.filter(|_| self.lapsed(now)) else { return };
        self.lease = None;
        if self.begun {
            self.expiries += 1;
            if self.expiries > 1 {
                // The usual pause is a tick here, a quarter more or less.
                self.not_before = Some(end.plus(Config::TICK).minus(Config::TICK.as_duration() / 4));
            }
        } else {
            self.attempt -= 1;
            self.uncounted += u32::from(self.started);
        }
        (self.begun, self.started) = (false, false);
    }

    /// A worker has started the task under this token.
    pub(super) fn started(&mut self, token: Token) {
        self.started |= self.lease.is_some_and(|(lease, _)| lease == token);
    }

    /// Whether it must run alone: workers were lost with it again and again, or the next attempt is the last after one was.
    pub(super) fn runs_alone(&self, attempts: u32) -> bool {
        self.expiries > 1 || (self.expiries == 1 && self.attempt + 1 >= attempts)
    }

    fn settled(&mut self, settle: &leasehold_model::Settle, now: Timestamp) {
        if self.lease.is_none_or(|(token, _)| token != settle.token) {
            return;
        }
        self.lease = None;
        (self.begun, self.started) = (false, false);
        match &settle.verdict {
            AttemptResult::Snooze(pause) | AttemptResult::Defer(pause) => {
                if matches!(settle.verdict, AttemptResult::Snooze(_)) {
                    self.expiries = 0;
                }
                self.attempt -= 1;
                self.not_before = Some(now.plus(*pause));
            }
            AttemptResult::Retry(_, Some(pause)) => {
                self.expiries = 0;
                self.not_before = Some(now.plus(*pause));
            }
            AttemptResult::Return => self.attempt -= 1,
            _ => {}
        }
    }

    fn changed(&mut self, op: &TaskOp, step: &Step) {
        match op {
            TaskOp::Expire => self.recovered(step.now()),
            TaskOp::Cancel(_) => self.cancelled = true,
            TaskOp::Want(ttl) => self.wanted = Some(step.now().plus(*ttl)),
            TaskOp::Retry(_) => {
                self.not_before = None;
                if step.named_before().is_some_and(|task| task.state.is_terminal()) {
                    (self.attempt, self.cancelled, self.wanted) = (0, false, None);
                }
            }
            TaskOp::Update(change) => self.not_before = change.run_at.or(self.not_before),
            _ => {}
        }
    }
}
