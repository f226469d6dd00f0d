//! How large a world is: which tasks there are, who works, and how often things may happen.

use leasehold_model::{
    AttemptResult, LeaseTasks, LockName, Message, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse,
    TaskId, TaskKey, Timestamp, Ttl, When, WorkerId, WorkerInfo,
};
use uuid::Uuid;

use super::facts::Fact;

/// One world. Everything that could go on for ever has a bound, so that the world has an end.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) name: &'static str,
    pub(super) tasks: Vec<Plan>,
    /// How often each worker asks for a task.
    pub(super) workers: &'static [u8],
    /// How many ticks a lease lasts without a sign of life.
    pub(super) ttl: u32,
    pub(super) ticks: u32,
    /// Signs of life, by all workers together.
    pub(super) beats: u8,
    /// How attempts may end.
    pub(super) verdicts: &'static [How],
    /// Writes to the resource of a task, by all workers together.
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) cancels: u8,
    /// Retries by hand.
    pub(super) retries: u8,
    /// Changes by hand, by somebody who looked earlier.
    pub(super) updates: u8,
    /// Recoveries…
    pub(super) sweeps: u8,
    /// …and sweepers that looked earlier for what has run out.
    pub(super) looks: u8,
    /// Requests that are delivered twice: by the network, or because they were sent again after a lost answer.
    pub(super) duplicates: u8,
    /// How often runners renew the deadlines of their tasks.
    pub(super) wants: u8,
    /// Each worker serves one queue, in turns; else each serves all.
    pub(super) apart: bool,
    /// Workers miss answers, and then look for what they were given.
    pub(super) strays: bool,
    /// The first task that a worker asks for is fetched ahead, the others start at once.
    pub(super) ahead: bool,
    /// How many tasks a worker asks for at once. It works on the first, and never says a word about the others.
    pub(super) max: u32,
    /// Look no further than so many steps; without it, the world is explored to its end.
    pub(super) depth: Option<usize>,
    /// What must have happened somewhere in this world.
    pub(super) must_see: &'static [Fact],
}

/// One task.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// It has the one key that there is.
    pub(super) key: bool,
    pub(super) reuse: Reuse,
    /// It has the one lock that there is.
    pub(super) lock: bool,
    /// It is added only if at most so many others have or await the lock.
    pub(super) room: Option<u32>,
    /// Which of the two queues it is in.
    pub(super) queue: usize,
    pub(super) priority: i32,
    /// Its runner has so many ticks to renew its deadline; 0 if it has no runner.
    pub(super) wanted: u32,
    /// Not before so many ticks after it was added.
    pub(super) after: u32,
    pub(super) attempts: u32,
    /// How often its adder sends it; if never, it is there from the start.
    pub(super) adds: u8,
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum How {
    Done,
    /// Failed; again after a tick.
    Again,
    Fail,
    /// Put off for a tick.
    Snooze,
    Return,
    Abort,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "",
            tasks: vec![Plan::default()],
            workers: &[1, 1],
            ttl: 1,
            ticks: 2,
            beats: 0,
            verdicts: &[How::Done],
            writes: 0,
            crashes: 0,
            cancels: 0,
            retries: 0,
            updates: 0,
            sweeps: 1,
            looks: 0,
            duplicates: 0,
            wants: 0,
            apart: false,
            strays: false,
            ahead: false,
            max: 1,
            depth: None,
            must_see: &[],
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            key: false,
            reuse: Reuse::Never,
            lock: false,
            room: None,
            queue: 0,
            priority: 0,
            wanted: 0,
            after: 0,
            attempts: 2,
            adds: 0,
        }
    }
}

impl Config {
    pub(super) const TICK: Ttl = Ttl::MIN;

    /// So many ticks.
    pub(super) fn lasting(ticks: u32) -> Ttl {
        Ttl::new(Self::TICK.as_duration() * ticks).unwrap()
    }

    pub(super) fn ttl(&self) -> Ttl {
        Self::lasting(self.ttl)
    }

    /// The clock starts one tick after zero: zero itself would hide a token that was never set.
    pub(super) fn start() -> Timestamp {
        Timestamp::default().plus(Self::TICK)
    }

    pub(super) fn end(&self) -> Timestamp {
        Self::start().plus(Self::lasting(self.ticks))
    }

    pub(super) fn new_task(&self, task: usize) -> NewTask {
        let plan = &self.tasks[task];
        NewTask {
            when: if plan.after == 0 { When::Now } else { When::In(Self::lasting(plan.after)) },
            key: plan.key.then(key),
            reuse: plan.reuse,
            lock: plan.lock.then(|| LockName::new("l").unwrap()),
            room: plan.room,
            retries: RetryPolicy { attempts: plan.attempts, first: Self::TICK, longest: Self::TICK },
            priority: Priority::new(plan.priority).unwrap(),
            wanted: (plan.wanted > 0).then(|| Self::lasting(plan.wanted)),
            ..NewTask::new(task_id(task), queue_of(plan.queue), Payload::default())
        }
    }

    /// What a worker asks for, for the `number`th time.
    pub(super) fn ask(&self, worker: usize, number: u8) -> LeaseTasks {
        let queues = if self.apart { vec![queue_of(worker % 2)] } else { queues() };
        let ask = LeaseTasks::new(worker_id(worker), queues, self.max, self.ttl());
        if self.ahead && number == 1 { LeaseTasks { begin: 0, idle: false, ..ask } } else { ask }
    }
}

impl How {
    pub(super) fn verdict(self) -> AttemptResult {
        match self {
            Self::Done => AttemptResult::Done(None),
            Self::Again => AttemptResult::Retry(Message::new("it failed"), Some(Config::TICK)),
            Self::Fail => AttemptResult::Fail(Message::new("it cannot be done")),
            Self::Snooze => AttemptResult::Snooze(Config::TICK),
            Self::Return => AttemptResult::Return,
            Self::Abort => AttemptResult::Abort(None),
        }
    }
}

pub(super) fn queue() -> QueueName {
    queue_of(0)
}

pub(super) fn queue_of(number: usize) -> QueueName {
    QueueName::new(["q", "r"][number]).unwrap()
}

pub(super) fn queues() -> Vec<QueueName> {
    vec![queue_of(0), queue_of(1)]
}

pub(super) fn key() -> TaskKey {
    TaskKey::new("k").unwrap()
}

/// What a worker says about itself.
pub(super) fn info(worker: usize) -> WorkerInfo {
    WorkerInfo {
        id: worker_id(worker),
        host: String::new(),
        pid: 1,
        version: String::new(),
        queues: vec![queue()],
        slots: 1,
        busy: 1,
        draining: false,
        every: Config::TICK,
    }
}

/// Ids tell which they are, so that the auditor needs no list.
pub(super) fn task_id(task: usize) -> TaskId {
    TaskId::from_uuid(Uuid::from_u128(task as u128 + 1))
}

pub(super) fn task_number(id: TaskId) -> usize {
    usize::try_from(id.as_uuid().as_u128() - 1).expect("made by task_id")
}

pub(super) fn worker_id(worker: usize) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(worker as u128 + 1))
}
