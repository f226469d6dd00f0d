//! Queues of tasks: their pause, the number of their tasks per state, and the indexes of the table of
//! tasks: the order in which tasks are leased, due and ended, and the head of each chain.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::record::TaskOrder;
use super::{Chain, LockQueue, Task, TaskId, TaskState};
use crate::{Holder, QueueName, Reason, Timestamp};

/// Number of tasks per state; archived tasks are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts([u64; TaskState::ALL.len()]);

impl Counts {
    /// Returns the number of tasks in this state.
    pub const fn get(&self, state: TaskState) -> u64 {
        self.0[state as usize]
    }

    /// Sets the number of tasks in this state.
    pub const fn set(&mut self, state: TaskState, count: u64) {
        self.0[state as usize] = count;
    }

    const fn increase(&mut self, state: TaskState) {
        self.0[state as usize] += 1;
    }

    const fn decrease(&mut self, state: TaskState) {
        self.0[state as usize] -= 1;
    }

    /// Returns the number of unfinished tasks.
    pub fn open(&self) -> u64 {
        TaskState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| self.get(*state)).sum()
    }
}

/// Pause of a queue, during which no tasks are leased from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// Holder that paused the queue.
    pub by: Holder,
    /// Reason of the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Time at which the queue was paused.
    pub at: Timestamp,
}

/// Public view of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Name of the queue.
    pub queue: QueueName,
    /// Number of its tasks per state.
    pub counts: Counts,
    /// Pause of the queue, if it is paused.
    pub paused: Option<Pause>,
}

/// Entries of one queue in the table of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Queue {
    pub(super) ready: BTreeSet<TaskOrder>,
    pub(super) scheduled: BTreeSet<(Timestamp, TaskId)>,
    pub(super) counts: Counts,
    pub(super) paused: Option<Pause>,
}

/// Indexes of all tasks. An entry is derived from one task and names it by its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Indexes {
    pub(super) queues: BTreeMap<QueueName, Queue>,
    /// Ordered by the end of the lease, or of the deadline of a runner.
    pub(super) deadlines: BTreeSet<(Timestamp, TaskId)>,
    /// Finished tasks: first those that are not archived, each part ordered by the end.
    pub(super) finished: BTreeSet<(bool, Timestamp, TaskId)>,
    /// Head of each chain: the one task that runs or is next to run.
    pub(super) heads: BTreeMap<Chain, TaskId>,
    /// Tasks that wait for the head of their chain to end. While the head is not running, none of
    /// them precedes it in the order.
    blocked: BTreeMap<Chain, BTreeSet<TaskOrder>>,
}

impl Indexes {
    /// Removes the entries of a task.
    pub(super) fn remove(&mut self, task: &Task) {
        let queue = self.queues.get_mut(&task.queue).expect("a task's queue is known");
        let chain = task.chain();
        match (task.state, &chain) {
            (TaskState::Scheduled, _) => _ = queue.scheduled.remove(&(task.run_at, task.id)),
            (TaskState::Pending, _) => _ = queue.ready.remove(&task.order()),
            (TaskState::Blocked, Some(chain)) => {
                if let Some(waiting) = self.blocked.get_mut(chain) {
                    waiting.remove(&task.order());
                    if waiting.is_empty() {
                        self.blocked.remove(chain);
                    }
                }
            }
            _ => {}
        }
        if !task.archived {
            queue.counts.decrease(task.state);
        }
        if let Some(end) = task.deadline() {
            self.deadlines.remove(&(end, task.id));
        }
        if let Some(end) = task.finished_at {
            self.finished.remove(&(task.archived, end, task.id));
        }
        if let Some(chain) = chain.filter(|_| task.state.takes_lock()) {
            self.heads.remove(&chain);
        }
    }

    /// Adds the entries of a task. A task that is ready is blocked if its chain has a head.
    pub(super) fn add(&mut self, task: &mut Task) {
        let chain = task.chain();
        if let Some(chain) = &chain {
            if task.is_ready_for_lock() && self.heads.contains_key(chain) {
                task.state = TaskState::Blocked;
            } else if task.state.takes_lock() {
                self.heads.insert(chain.clone(), task.id);
            }
        }
        if let Some(end) = task.deadline() {
            self.deadlines.insert((end, task.id));
        }
        if let Some(end) = task.finished_at {
            self.finished.insert((task.archived, end, task.id));
        }
        let queue = self.queues.entry(task.queue.clone()).or_default();
        match (task.state, chain) {
            (TaskState::Scheduled, _) => _ = queue.scheduled.insert((task.run_at, task.id)),
            (TaskState::Pending, _) => _ = queue.ready.insert(task.order()),
            (TaskState::Blocked, Some(chain)) => {
                self.blocked.entry(chain).or_default().insert(task.order());
            }
            _ => {}
        }
        if !task.archived {
            queue.counts.increase(task.state);
        }
    }

    /// Returns the head of a chain and the number of its tasks.
    pub(super) fn lock_queue(&self, chain: &Chain) -> Option<LockQueue> {
        let tasks = 1 + self.blocked.get(chain).map_or(0, BTreeSet::len);
        self.heads.get(chain).map(|head| LockQueue { head: *head, tasks })
    }

    /// Returns the first task that waits for the head of its chain.
    pub(super) fn first_blocked(&self, chain: &Chain) -> Option<TaskId> {
        self.blocked.get(chain)?.first().map(|(_, _, id)| *id)
    }
}
