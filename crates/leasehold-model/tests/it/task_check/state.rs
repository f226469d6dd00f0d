//! What a world looks like at one moment: the tasks, the workers, everything in flight, and what the auditor remembers.

use leasehold_model::{Fence, TaskTable, Timestamp, Token};

use super::config::{Config, How, task_id};
use super::memory::Memory;
use super::promises::Broken;
use super::rules::{Op, right};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) table: TaskTable,
    pub(super) workers: Vec<Worker>,
    /// In flight. Kept sorted, as the network keeps no order. What is never delivered is lost: that needs no action.
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    pub(super) writes: Vec<Write>,
    /// The resource of each task, which checks tokens.
    pub(super) fences: Vec<Fence>,
    /// The task that somebody has seen, and its version then.
    pub(super) seen: Option<(usize, u64)>,
    /// For each sweeper that has looked and not yet acted: the tasks whose lease it found to have run out.
    pub(super) looks: Vec<Vec<usize>>,
    pub(super) left: Left,
    pub(super) memory: Memory,
    /// What the last step broke.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Worker {
    pub(super) crashed: bool,
    /// How often it has asked for a task.
    pub(super) asked: u8,
    /// When it asked, if it waits for an answer.
    pub(super) asking: Option<Timestamp>,
    pub(super) hands: Vec<Hand>,
    /// An answer was missed, to what was asked then: it may have brought a task.
    pub(super) astray: Option<Timestamp>,
    /// What the store said it has…
    pub(super) listed: Option<Vec<(usize, Token)>>,
    /// …what of it is news, and awaits the answer to a sign of life…
    pub(super) confirming: Vec<(usize, Token)>,
    /// …and what it has let go of since it asked.
    pub(super) gone: Vec<(usize, Token)>,
}

/// A lease that a worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hand {
    pub(super) task: usize,
    pub(super) token: Token,
    pub(super) until: Timestamp,
    /// The task was started.
    pub(super) begun: bool,
    /// Somebody wants it stopped.
    pub(super) asked: bool,
    /// The attempt is over, but the store has not said that it knows.
    pub(super) settling: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) want: Want,
    /// When it was sent; the start of time if nobody will ever ask.
    pub(super) sent: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Want {
    Add(usize),
    Lease { worker: usize, number: u8 },
    Beat { worker: usize, task: usize, token: Token, begun: bool },
    Settle { worker: usize, task: usize, token: Token, how: How },
}

/// An answer, as far as the worker acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reply {
    pub(super) worker: usize,
    pub(super) sent: Timestamp,
    pub(super) told: Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Told {
    Leased { number: u8, lease: Option<(usize, Token)>, begun: bool },
    Kept { task: usize, token: Token, asked: bool },
    Lost(usize, Token),
    Settled(usize, Token),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) task: usize,
    pub(super) token: Token,
}

/// How often things may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) adds: Vec<u8>,
    pub(super) beats: u8,
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) cancels: u8,
    pub(super) retries: u8,
    pub(super) updates: u8,
    pub(super) sweeps: u8,
    pub(super) looks: u8,
    pub(super) duplicates: u8,
    pub(super) wants: u8,
}

impl State {
    pub(super) fn new(config: &Config) -> Self {
        let now = Config::start();
        let mut table = TaskTable::default();
        let mut memory = Memory::new(config.tasks.len());
        for task in (0..config.tasks.len()).filter(|task| config.tasks[*task].adds == 0) {
            right(&mut table, &Op::Enqueue(config.new_task(task)), now);
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
            seen: None,
            looks: Vec::new(),
            left: Left {
                adds: config.tasks.iter().map(|plan| plan.adds).collect(),
                beats: config.beats,
                writes: config.writes,
                crashes: config.crashes,
                cancels: config.cancels,
                retries: config.retries,
                updates: config.updates,
                sweeps: config.sweeps,
                looks: config.looks,
                duplicates: config.duplicates,
                wants: config.wants,
            },
            memory,
            broken: Broken::default(),
        }
    }

    /// Makes states equal that no step and no promise can tell apart: fewer to visit.
    pub(super) fn canonical(mut self, config: &Config) -> Self {
        let workers = &self.workers;
        // Nobody listens for these any more.
        self.replies.retain(|reply| workers[reply.worker].listens(&reply.told));
        self.replies.sort_unstable();
        self.requests.sort_unstable();
        self.writes.sort_unstable();
        self.looks.sort_unstable();
        for worker in &mut self.workers {
            worker.hands.sort_unstable();
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
        // Written by the rules, read by none of them; the auditor has looked at it by now.
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
    /// Whether it has this lease in hand.
    pub(super) fn has(&self, task: usize, token: Token) -> bool {
        self.hands.iter().any(|hand| hand.task == task && hand.token == token)
    }

    /// It is done with a lease, or has lost it.
    pub(super) fn let_go(&mut self, task: usize, token: Token) {
        let before = self.hands.len();
        self.hands.retain(|hand| hand.task != task || hand.token != token);
        if self.listed.is_some() && self.hands.len() < before {
            self.gone.push((task, token));
            self.gone.sort_unstable();
        }
    }

    fn listens(&self, told: &Told) -> bool {
        match *told {
            Told::Leased { number, .. } => self.asking.is_some() && self.asked == number,
            Told::Kept { task, token, .. } | Told::Lost(task, token) | Told::Settled(task, token) => {
                self.has(task, token) || self.confirming.contains(&(task, token))
            }
        }
    }
}
