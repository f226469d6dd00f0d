//! Audit memory of the past, apart from the table: mutants cannot change it.

use leasehold_model::{AttemptResult, Enqueued, TaskOp, Timestamp, Token};

use super::audit::Step;
use super::config::{Config, Plan, task_number};
use super::rules::{Op, Response};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Memory {
    pub(super) tasks: Vec<Known>,
    /// Task that has the key.
    pub(super) key: Option<usize>,
}

/// Knowledge about one task.
#[expect(clippy::struct_excessive_bools, reason = "each is one property of the task")]
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Known {
    /// Whether its enqueue was acknowledged.
    pub(super) added: bool,
    /// Highest token of any lease.
    pub(super) highest: Token,
    /// Lease that was not ended, and its end without another heartbeat.
    pub(super) lease: Option<(Token, Timestamp)>,
    /// Number of attempts that count.
    pub(super) attempt: u32,
    /// Whether the store knows that the task was started under that lease…
    pub(super) begun: bool,
    /// …and whether it was started.
    pub(super) started: bool,
    /// Number of attempts that were started and do not count, because the store does not know of
    /// the start.
    pub(super) uncounted: u32,
    /// Number of consecutive leases that expired after the store knew of the start.
    pub(super) expiries: u32,
    /// Whether its cancellation was requested.
    pub(super) cancelled: bool,
    pub(super) not_before: Option<Timestamp>,
    /// Deadline of its runner.
    pub(super) runner_deadline: Option<Timestamp>,
    /// Newest token of a write that its resource accepted.
    pub(super) accepted: Token,
}

impl Memory {
    pub(super) fn new(tasks: usize) -> Self {
        Self { tasks: vec![Known::default(); tasks], key: None }
    }

    pub(super) fn added(&mut self, task: usize, plan: &Plan, now: Timestamp) {
        let not_before = (plan.after > 0).then(|| now.plus(Config::lasting(plan.after)));
        let runner_deadline = (plan.runner_ttl > 0).then(|| now.plus(Config::lasting(plan.runner_ttl)));
        self.tasks[task] = Known { added: true, not_before, runner_deadline, ..Known::default() };
        if plan.key {
            self.key = Some(task);
        }
    }

    /// Returns the memory after a step.
    pub(super) fn after(mut self, step: &Step) -> Self {
        let now = step.now();
        match (step.op, step.response) {
            (Op::Enqueue(_), Response::Enqueued(Enqueued::Added(id))) => {
                let task = task_number(*id);
                if !self.tasks[task].added {
                    self.added(task, &step.system.config.tasks[task], now);
                }
            }
            (Op::Lease(request), Response::Leased(leased)) => {
                self.tasks.iter_mut().for_each(|known| known.recovered(now));
                for leased in leased {
                    let known = &mut self.tasks[task_number(leased.id)];
                    known.highest = known.highest.max(leased.token);
                    known.lease = Some((leased.token, now.plus(request.ttl)));
                    known.attempt += 1;
                    (known.begun, known.started) = (leased.begun, leased.begun);
                }
            }
            (Op::Heartbeat(_, held, ttl), _) => {
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
    /// Whether the lease has expired.
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        self.lease.is_some_and(|(_, end)| end <= now)
    }

    /// Returns the knowledge after the lease was ended by time, if it can be.
    pub(super) fn recovered(&mut self, now: Timestamp) {
        let Some((_, end)) = self.lease.filter(|_| self.has_expired(now)) else { return };
        self.lease = None;
        if self.begun {
            self.expiries += 1;
            if self.expiries > 1 {
                // The default delay is a tick here, a quarter more or less.
                self.not_before = Some(end.plus(Config::TICK).minus(Config::TICK.as_duration() / 4));
            }
        } else {
            self.attempt -= 1;
            self.uncounted += u32::from(self.started);
        }
        (self.begun, self.started) = (false, false);
    }

    /// Records that a worker has started the task under this token.
    pub(super) fn started(&mut self, token: Token) {
        self.started |= self.lease.is_some_and(|(lease, _)| lease == token);
    }

    /// Whether the task must run alone: it lost its workers repeatedly, or its next attempt is the
    /// last one after a lost lease.
    pub(super) fn runs_alone(&self, attempts: u32) -> bool {
        self.expiries > 1 || (self.expiries == 1 && self.attempt + 1 >= attempts)
    }

    fn settled(&mut self, settle: &leasehold_model::Settle, now: Timestamp) {
        if self.lease.is_none_or(|(token, _)| token != settle.token) {
            return;
        }
        self.lease = None;
        (self.begun, self.started) = (false, false);
        match &settle.result {
            AttemptResult::Snooze(pause) | AttemptResult::Defer(pause) => {
                if matches!(settle.result, AttemptResult::Snooze(_)) {
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
            TaskOp::RenewRunner(ttl) => self.runner_deadline = Some(step.now().plus(*ttl)),
            TaskOp::Retry(_) => {
                self.not_before = None;
                if step.named_before().is_some_and(|task| task.state.is_terminal()) {
                    (self.attempt, self.cancelled, self.runner_deadline) = (0, false, None);
                }
            }
            TaskOp::Update(change) => self.not_before = change.run_at.or(self.not_before),
            _ => {}
        }
    }
}
