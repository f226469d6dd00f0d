//! Size of a configuration: its tasks, its workers, and how often events may happen.

use leasehold_model::{
    AttemptResult, LeaseTasks, LockName, Message, NewTask, Payload, Priority, QueueName, RetryPolicy, Reuse,
    TaskId, TaskKey, Timestamp, Ttl, When, WorkerId, WorkerInfo,
};
use uuid::Uuid;

use super::coverage::Situation;

/// Configuration. Everything that could repeat forever has a bound, so that the state space is
/// finite.
#[expect(clippy::struct_excessive_bools, reason = "each is one choice of the configuration")]
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) name: &'static str,
    pub(super) tasks: Vec<Plan>,
    /// How often each worker requests a task.
    pub(super) workers: &'static [u8],
    /// TTL of a lease in ticks.
    pub(super) ttl: u32,
    pub(super) ticks: u32,
    /// Number of heartbeats, by all workers together.
    pub(super) heartbeat_count: u8,
    /// Possible results of attempts.
    pub(super) results: &'static [AttemptEnd],
    /// Number of writes to the resource of a task, by all workers together.
    pub(super) writes: u8,
    pub(super) crashes: u8,
    pub(super) cancels: u8,
    /// Number of retries by hand.
    pub(super) retries: u8,
    /// Number of changes by hand, by a person who has read the task earlier.
    pub(super) updates: u8,
    /// Number of recoveries…
    pub(super) sweeps: u8,
    /// …and of sweepers that have looked for expired leases earlier.
    pub(super) sweeper_reads: u8,
    /// Number of requests that are delivered twice: by the network, or because they were repeated
    /// after a lost response.
    pub(super) duplicates: u8,
    /// How often runners renew the deadlines of their tasks.
    pub(super) runner_renewals: u8,
    /// Whether each worker leases from one queue, alternating; otherwise each leases from all.
    pub(super) separate_queues: bool,
    /// Whether workers miss responses, and then query which tasks they were given.
    pub(super) missed_responses: bool,
    /// Whether the first task that a worker requests is prefetched; the others start at once.
    pub(super) ahead: bool,
    /// Whether a worker starts a task with a lock only when it knows that the store knows of the start.
    pub(super) waits_for_locks: bool,
    /// How many tasks a worker requests at once. It works on the first, and never sends a heartbeat
    /// for the others.
    pub(super) max: u32,
    /// Maximum number of steps; `None` explores the whole state space.
    pub(super) depth: Option<usize>,
    /// Situations that must occur somewhere in this configuration.
    pub(super) must_cover: &'static [Situation],
}

/// Task of a configuration.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Whether the task has the key; there is only one.
    pub(super) key: bool,
    pub(super) reuse: Reuse,
    /// Whether the task has the lock; there is only one.
    pub(super) lock: bool,
    /// The task is added only if at most this number of others have or await the lock.
    pub(super) room: Option<u32>,
    /// Which of the two queues the task is in.
    pub(super) queue: usize,
    pub(super) priority: i32,
    /// Number of ticks that its runner has to renew its deadline; 0 if the task has no runner.
    pub(super) runner_ttl: u32,
    /// Number of ticks after which the task is due.
    pub(super) after: u32,
    pub(super) attempts: u32,
    /// How often the task is enqueued; if 0, it exists from the start.
    pub(super) adds: u8,
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum AttemptEnd {
    Done,
    /// Failed; retried after a tick.
    Again,
    Fail,
    /// Snoozed for a tick.
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
            heartbeat_count: 0,
            results: &[AttemptEnd::Done],
            writes: 0,
            crashes: 0,
            cancels: 0,
            retries: 0,
            updates: 0,
            sweeps: 1,
            sweeper_reads: 0,
            duplicates: 0,
            runner_renewals: 0,
            separate_queues: false,
            missed_responses: false,
            ahead: false,
            waits_for_locks: false,
            max: 1,
            depth: None,
            must_cover: &[],
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
            runner_ttl: 0,
            after: 0,
            attempts: 2,
            adds: 0,
        }
    }
}

impl Config {
    pub(super) const TICK: Ttl = Ttl::MIN;

    /// Returns this number of ticks as a duration.
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
            lock_queue_limit: plan.room,
            retries: RetryPolicy {
                attempts: plan.attempts,
                initial_delay: Self::TICK,
                max_delay: Self::TICK,
            },
            priority: Priority::new(plan.priority).unwrap(),
            runner_ttl: (plan.runner_ttl > 0).then(|| Self::lasting(plan.runner_ttl)),
            ..NewTask::new(task_id(task), queue_of(plan.queue), Payload::default())
        }
    }

    /// Returns the request of a worker for a task, for the `number`th time.
    pub(super) fn lease_request(&self, worker: usize, number: u8) -> LeaseTasks {
        let queues = if self.separate_queues { vec![queue_of(worker % 2)] } else { queues() };
        let waits_for_locks = self.waits_for_locks;
        let request = LeaseTasks::new(worker_id(worker), queues, self.max, self.ttl());
        let request = LeaseTasks { waits_for_locks, ..request };
        if self.ahead && number == 1 { LeaseTasks { begin: 0, idle: false, ..request } } else { request }
    }
}

impl AttemptEnd {
    pub(super) fn result(self) -> AttemptResult {
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

/// Returns the description of a worker.
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

/// Returns an id that contains the number, so that the audit needs no list.
pub(super) fn task_id(task: usize) -> TaskId {
    TaskId::from_uuid(Uuid::from_u128(task as u128 + 1))
}

pub(super) fn task_number(id: TaskId) -> usize {
    usize::try_from(id.as_uuid().as_u128() - 1).expect("made by task_id")
}

pub(super) fn worker_id(worker: usize) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(worker as u128 + 1))
}
