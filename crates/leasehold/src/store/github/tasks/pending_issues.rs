//! Order in which tasks are leased: by the urgency class of their labels, then by the rules in
//! leasehold-model. The client reads the comments of an issue only when it is that issue's turn.

use std::collections::BTreeMap;

use super::labels;
use super::task_view::TaskView;
use crate::model::{QueueName, Task, TaskId, TaskOp, TaskState, Timestamp};
use crate::store::github::api::Issue;

/// Issues in the order in which they are leased.
#[derive(Default)]
pub(super) struct PendingIssues(BTreeMap<SortKey, PendingIssue>);

#[derive(Debug, Clone)]
pub(super) struct PendingIssue {
    pub(super) queue: QueueName,
    pub(super) issue: Issue,
    /// Whether the comments of the issue were read, or there are none.
    pub(super) is_known: bool,
    /// Whether a person has requested a retry on the issue.
    pub(super) retry_requested: bool,
}

/// Position of a task among those of its urgency class.
pub(super) type Order = (i64, Timestamp, TaskId);

/// Position of an issue, which ends with its number. The smallest is next.
type SortKey = (i32, Order, u64);

#[derive(Debug)]
pub(super) enum NextStep {
    /// The task can be leased; this is its position among others.
    Lease(Order),
    /// The task is not due before this time.
    NotDue(Timestamp),
    /// The issue does not match the record of its task.
    UpdateIssue,
    /// Nothing: a worker holds the task, or the task has ended.
    Skip,
}

impl PendingIssues {
    /// Adds an issue at the earliest position that it can have.
    pub(super) fn add(&mut self, queue: &QueueName, issue: Issue, issue_task: &Task, is_known: bool) {
        let key = sort_key(&issue, issue_task.order());
        let queue = queue.clone();
        self.0.insert(key, PendingIssue { queue, issue, is_known, retry_requested: false });
    }

    /// Adds an issue again, now that its position is known.
    pub(super) fn reinsert(&mut self, mut entry: PendingIssue, order: Order) {
        entry.is_known = true;
        self.0.insert(sort_key(&entry.issue, order), entry);
    }

    pub(super) fn next(&mut self) -> Option<PendingIssue> {
        self.0.pop_first().map(|(_, entry)| entry)
    }
}

fn sort_key(issue: &Issue, order: Order) -> SortKey {
    (-labels::urgency(issue).0, order, issue.number)
}

impl NextStep {
    pub(super) fn of(task_view: &TaskView, issue: &Issue) -> Self {
        let mut task = task_view.task.clone();
        if task_view.is_lease_expired() {
            task.apply(&TaskOp::Expire, task_view.now);
            return Self::Lease(task.order());
        }
        match task.state {
            TaskState::Pending => Self::Lease(task.order()),
            TaskState::Scheduled => Self::NotDue(task.run_at),
            _ if task_view.is_issue_outdated(issue) => Self::UpdateIssue,
            _ => Self::Skip,
        }
    }
}
