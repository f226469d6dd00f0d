//! Chains: the tasks of one queue with one lock. At most one of them, the head, is pending or
//! running; the others that could run are blocked. While the head does not run, no blocked task
//! precedes it.

use super::record::TaskOrder;
use super::{Task, TaskState};

/// Place of a task in its chain: its state and its order. `None` if the task neither holds nor awaits
/// its lock.
pub type ChainPlace = Option<(TaskState, TaskOrder)>;

impl Task {
    /// Returns the place of the task in its chain.
    pub fn chain_place(&self) -> ChainPlace {
        let in_chain = self.lock.is_some() && (self.state.takes_lock() || self.state == TaskState::Blocked);
        in_chain.then(|| (self.state, self.order()))
    }

    /// Returns whether a change of this task, from the place `before`, may let another task become
    /// the head of its chain, or let this one take the place of the head. A running task stays the
    /// head.
    pub fn may_change_head(&self, before: ChainPlace) -> bool {
        self.state != TaskState::Running && self.chain_place() != before
    }

    /// Returns whether the task becomes the head of its chain, or is blocked if another task is the head.
    pub fn is_ready_for_lock(&self) -> bool {
        self.state == TaskState::Pending && self.lock.is_some()
    }

    /// Returns whether this task, the first that waits in its chain, becomes the head: there is no
    /// head, or it precedes one that does not run yet. That one is blocked then.
    pub fn replaces(&self, head: Option<&Self>) -> bool {
        head.is_none_or(|head| head.state == TaskState::Pending && self.order() < head.order())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{LockName, NewTask, Payload, Priority, QueueName, TaskId, TaskOp, Timestamp, Ttl, WorkerId};

    fn task(number: u128, priority: i32) -> Task {
        let id = TaskId::from_uuid(Uuid::from_u128(number));
        let new = NewTask::new(id, QueueName::new("q").unwrap(), Payload::default());
        let priority = Priority::new(priority).unwrap();
        Task::new(&NewTask { lock: LockName::new("lock").ok(), priority, ..new }, Timestamp::default())
    }

    #[test]
    fn only_a_head_that_does_not_run_is_replaced() {
        let (first, mut head) = (task(2, 1), task(1, 0));
        assert!(first.replaces(None));
        assert!(first.replaces(Some(&head)));
        assert!(!task(2, 0).replaces(Some(&head)));
        let worker = WorkerId::from_uuid(Uuid::from_u128(1));
        let before = head.chain_place();
        head.apply(&TaskOp::Lease { worker, ttl: Ttl::MIN, begun: true }, Timestamp::default());
        assert!(!first.replaces(Some(&head)));
        assert!(!head.may_change_head(before));
    }

    #[test]
    fn the_end_of_a_task_and_a_new_order_change_the_head() {
        let (mut ended, mut moved) = (task(1, 0), task(2, 0));
        let (of_ended, of_moved) = (ended.chain_place(), moved.chain_place());
        assert!(!ended.may_change_head(of_ended));
        ended.state = TaskState::Succeeded;
        moved.priority = Priority::new(-1).unwrap();
        assert!(ended.may_change_head(of_ended));
        assert!(moved.may_change_head(of_moved));
        assert!(!Task { lock: None, ..moved }.may_change_head(None));
    }
}
