//! Order in which tasks are leased: by the urgency class of their labels, then by the rules in
//! leasehold-model. The client reads the comments of an issue only when it is that issue's turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::labels;
use super::sight::Sight;
use crate::model::{QueueName, Task, TaskId, TaskOp, TaskState, Timestamp};
use crate::store::github::answers::Issue;

/// Issues in the order in which they are leased.
#[derive(Default)]
pub(super) struct Line(BinaryHeap<Reverse<Entry>>);

/// Queued issue. The smallest is next.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    place: Place,
    pub(super) queue: QueueName,
    pub(super) issue: Issue,
    /// Whether the comments of the issue were read, or there are none.
    pub(super) is_known: bool,
    /// Whether a person has requested a retry on the issue.
    pub(super) is_wanted_again: bool,
}

type Place = (i32, (i64, Timestamp, TaskId), u64);

/// Next step for a task.
#[derive(Debug)]
pub(super) enum Turn {
    /// The task can be leased; this is its position among others.
    Take((i64, Timestamp, TaskId)),
    /// The task is not due before this time.
    Later(Timestamp),
    /// The issue does not match the record of its task.
    Finish,
    /// Nothing: a worker holds the task, or the task has ended.
    Pass,
}

impl Line {
    /// Adds an issue at the earliest position that it can have.
    pub(super) fn add(&mut self, queue: &QueueName, issue: Issue, plain: &Task, is_known: bool) {
        let place = place(&issue, plain.order());
        self.0.push(Reverse(Entry { place, queue: queue.clone(), issue, is_known, is_wanted_again: false }));
    }

    /// Adds an issue again, now that its position is known.
    pub(super) fn put_back(&mut self, mut entry: Entry, order: (i64, Timestamp, TaskId)) {
        (entry.place, entry.is_known) = (place(&entry.issue, order), true);
        self.0.push(Reverse(entry));
    }

    pub(super) fn next(&mut self) -> Option<Entry> {
        self.0.pop().map(|Reverse(entry)| entry)
    }
}

fn place(issue: &Issue, order: (i64, Timestamp, TaskId)) -> Place {
    (-labels::urgency(issue).0, order, issue.number)
}

impl Turn {
    /// Returns the next step for a task as it was read.
    pub(super) fn of(sight: &Sight, issue: &Issue) -> Self {
        let mut task = sight.task.clone();
        if sight.has_lapsed() {
            task.apply(&TaskOp::Expire, sight.now);
            return Self::Take(task.order());
        }
        match task.state {
            TaskState::Pending => Self::Take(task.order()),
            TaskState::Scheduled => Self::Later(task.run_at),
            _ if sight.is_unfinished(issue) => Self::Finish,
            _ => Self::Pass,
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place.cmp(&other.place)
    }
}
