//! What the auditor remembers of the past, apart from the table: wrong rules cannot touch it.

use leasehold::model::{Enqueued, TaskOp, Timestamp, Token, Verdict};

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
    /// Somebody wants it stopped.
    pub(super) cancelled: bool,
    pub(super) not_before: Option<Timestamp>,
    /// The newest token of a write that its resource accepted.
    pub(super) accepted: Token,
}

impl Memory {
    pub(super) fn new(tasks: usize) -> Self {
        Self { tasks: vec![Known::default(); tasks], key: None }
    }

    pub(super) fn added(&mut self, task: usize, plan: &Plan, now: Timestamp) {
        let not_before = (plan.after > 0).then(|| now.plus(Config::lasting(plan.after)));
        self.tasks[task] = Known { added: true, not_before, ..Known::default() };
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
                for leased in leased {
                    let known = &mut self.tasks[task_number(leased.id)];
                    known.highest = known.highest.max(leased.token);
                    known.lease = Some((leased.token, now.plus(ask.ttl)));
                    known.attempt += 1;
                }
            }
            (Op::Beat(_, held, ttl), _) => {
                let lease = &mut self.tasks[task_number(held.id)].lease;
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

    fn recovered(&mut self, now: Timestamp) {
        if self.lapsed(now) {
            self.lease = None;
        }
    }

    fn settled(&mut self, settle: &leasehold::model::Settle, now: Timestamp) {
        if self.lease.is_none_or(|(token, _)| token != settle.token) {
            return;
        }
        self.lease = None;
        match &settle.verdict {
            Verdict::Snooze(pause) => {
                self.attempt -= 1;
                self.not_before = Some(now.plus(*pause));
            }
            Verdict::Retry(_, Some(pause)) => self.not_before = Some(now.plus(*pause)),
            Verdict::Return => self.attempt -= 1,
            _ => {}
        }
    }

    fn changed(&mut self, op: &TaskOp, step: &Step) {
        match op {
            TaskOp::Expire => self.recovered(step.now()),
            TaskOp::Cancel(_) => self.cancelled = true,
            TaskOp::Retry(_) => {
                self.not_before = None;
                if step.named_before().is_some_and(|task| task.state.is_terminal()) {
                    (self.attempt, self.cancelled) = (0, false);
                }
            }
            TaskOp::Update(change) => self.not_before = change.run_at.or(self.not_before),
            _ => {}
        }
    }
}
