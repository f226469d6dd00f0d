//! State of a queue: its tasks that are ready or scheduled, their number per state, and its pause.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::record::TaskOrder;
use super::{TaskId, TaskState};
use crate::{Holder, QueueName, Reason, Timestamp};

/// Entries of one queue in the table of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Queue {
    pub(super) ready: BTreeSet<TaskOrder>,
    pub(super) scheduled: BTreeSet<(Timestamp, TaskId)>,
    pub(super) counts: Counts,
    pub(super) paused: Option<Pause>,
}

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

    pub(super) const fn increase(&mut self, state: TaskState) {
        self.0[state as usize] += 1;
    }

    pub(super) const fn decrease(&mut self, state: TaskState) {
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
