//! State at one moment: the tasks, the workers, everything in flight, and the audit memory.

use leasehold_model::{Fence, TaskTable, Timestamp, Token};

use super::config::{AttemptEnd, Config, task_id};
use super::memory::Memory;
use super::properties::Broken;
use super::rules::{Op, correct};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) table: TaskTable,
    pub(super) workers: Vec<Worker>,
    /// Requests in flight. Sorted, because the network keeps no order. A lost message is one that
    /// is never delivered: that needs no action.
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    pub(super) writes: Vec<Write>,
    /// Resource of each task, which checks tokens.
    pub(super) fences: Vec<Fence>,
    /// Task that a person has read, and its version then.
    pub(super) person_read: Option<(usize, u64)>,
    /// For each sweeper that has read and not yet acted: the tasks with an expired lease.
    pub(super) sweeper_reads: Vec<Vec<usize>>,
    pub(super) left: Left,
    pub(super) memory: Memory,
    /// Properties that the last step broke.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Worker {
    pub(super) crashed: bool,
    /// How often the worker has requested a task.
    pub(super) requests_sent: u8,
    /// Time of its request, if it waits for a response.
    pub(super) requested: Option<Timestamp>,
    pub(super) held_leases: Vec<HeldLease>,
    /// Time of a request whose response was missed: it may have leased a task.
    pub(super) missed_since: Option<Timestamp>,
    /// Leases that the store lists for the worker…
    pub(super) listed: Option<Vec<(usize, Token)>>,
    /// …those among them that are new, and wait for the response to a heartbeat…
    pub(super) confirming: Vec<(usize, Token)>,
    /// …and those that the worker has dropped since its query.
    pub(super) dropped: Vec<(usize, Token)>,
}

/// Lease that a worker has.
#[expect(clippy::struct_excessive_bools, reason = "each is one property of the lease")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HeldLease {
    pub(super) task: usize,
    pub(super) token: Token,
    pub(super) until: Timestamp,
    /// Whether the task was started.
    pub(super) begun: bool,
    /// Whether the worker has reported the start, and starts the task when the store knows of it.
    pub(super) reporting: bool,
    /// Whether its cancellation was requested.
    pub(super) cancel_requested: bool,
    /// Whether the attempt is over, but the settlement is not acknowledged.
    pub(super) settling: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) operation: Operation,
    /// Time at which the request was sent; the start of time if the time does not matter.
    pub(super) sent: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Add(usize),
    Lease { worker: usize, number: u8 },
    Heartbeat { worker: usize, task: usize, token: Token, begun: bool },
    Settle { worker: usize, task: usize, token: Token, how: AttemptEnd },
}

/// Response, as far as the worker acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reply {
    pub(super) worker: usize,
    pub(super) sent: Timestamp,
    pub(super) content: ReplyContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ReplyContent {
    Leased { number: u8, lease: Option<(usize, Token)>, begun: bool },
    Extended { task: usize, token: Token, begun: bool, cancel_requested: bool },
    Lost(usize, Token),
    Settled(usize, Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) task: usize,
    pub(super) token: Token,
}

/// How often events may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) adds: Vec<u8>,
    pub(super) heartbeat_count: u8,
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) cancels: u8,
    pub(super) retries: u8,
    pub(super) updates: u8,
    pub(super) sweeps: u8,
    pub(super) sweeper_reads: u8,
    pub(super) duplicates: u8,
    pub(super) runner_renewals: u8,
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        let now = Config::start();
        let mut table = TaskTable::default();
        let mut memory = Memory::new(config.tasks.len());
        for task in (0..config.tasks.len()).filter(|task| config.tasks[*task].adds == 0) {
            correct(&mut table, &Op::Enqueue(config.new_task(task)), now);
            memory.added(task, &config.tasks[task], now);
        }
        Self {
            now,
            table,
            workers: vec![Worker::default(); config.workers.len()],
            requests: Vec::new(),
            replies: Vec::new(),
            writes: Vec::new(),
            fences: vec![Fence::default(); config.tasks.len()],
            person_read: None,
            sweeper_reads: Vec::new(),
            left: Left {
                adds: config.tasks.iter().map(|plan| plan.adds).collect(),
                heartbeat_count: config.heartbeat_count,
                writes: config.writes,
                crashes: config.crashes,
                cancels: config.cancels,
                retries: config.retries,
                updates: config.updates,
                sweeps: config.sweeps,
                sweeper_reads: config.sweeper_reads,
                duplicates: config.duplicates,
                runner_renewals: config.runner_renewals,
            },
            memory,
            broken: Broken::default(),
        }
    }

    /// Makes states equal that no step and no property can distinguish, to visit fewer.
    pub(super) fn canonical(mut self, config: &Config) -> Self {
        let workers = &self.workers;
        // No worker listens for these any more.
        self.replies.retain(|reply| workers[reply.worker].listens(&reply.content));
        self.replies.sort_unstable();
        self.requests.sort_unstable();
        self.writes.sort_unstable();
        self.sweeper_reads.sort_unstable();
        for worker in &mut self.workers {
            worker.held_leases.sort_unstable();
            if worker.crashed {
                *worker = Worker { crashed: true, ..Worker::default() };
            }
        }
        if self.left.writes == 0 && self.writes.is_empty() {
            self.fences.fill(Fence::default());
            self.memory.tasks.iter_mut().for_each(|known| known.accepted = Token::default());
        }
        for known in &mut self.memory.tasks {
            known.not_before = known.not_before.filter(|time| *time > self.now);
        }
        // The rules write this but never read it; the audit has checked it by now.
        let versions = config.updates > 0;
        for task in 0..config.tasks.len() {
            self.table.edit(task_id(task), |task| {
                task.events.clear();
                (task.error, task.result, task.leased_at) = (None, None, None);
                (task.created_at, task.updated_at) = Default::default();
                task.finished_at = task.finished_at.map(|_| Timestamp::default());
                if let Some(cancel) = &mut task.cancel {
                    cancel.at = Timestamp::default();
                }
                if !versions {
                    task.version = 1;
                }
            });
        }
        self
    }
}

impl Worker {
    /// Whether the worker holds this lease.
    pub(super) fn has(&self, task: usize, token: Token) -> bool {
        self.held_leases.iter().any(|held| held.task == task && held.token == token)
    }

    /// Removes a lease that is settled or lost.
    pub(super) fn drop_lease(&mut self, task: usize, token: Token) {
        let before = self.held_leases.len();
        self.held_leases.retain(|held| held.task != task || held.token != token);
        if self.listed.is_some() && self.held_leases.len() < before {
            self.dropped.push((task, token));
            self.dropped.sort_unstable();
        }
    }

    fn listens(&self, content: &ReplyContent) -> bool {
        match *content {
            ReplyContent::Leased { number, .. } => self.requested.is_some() && self.requests_sent == number,
            ReplyContent::Extended { task, token, .. }
            | ReplyContent::Lost(task, token)
            | ReplyContent::Settled(task, token) => {
                self.has(task, token) || self.confirming.contains(&(task, token))
            }
        }
    }
}
