//! Decisions about tasks with the same key or the same lock: whether a new task is added or an earlier
//! one keeps it out, and which task of a chain is its head. Engines that decide in Rust call
//! [`NewTask::admit`]; scripts that decide by themselves name it.
//!
//! A chain is the tasks of one queue with one lock. At most one of them, the head, is pending or
//! running; the others that could run are blocked. While the head does not run, no blocked task
//! precedes it.

use super::record::TaskOrder;
use super::{Chain, Enqueued, Fingerprint, NewTask, Reuse, Task, TaskId, TaskState};

/// Earlier task that has the key of a new task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyOwner {
    /// Id of the earlier task.
    pub id: TaskId,
    /// State of the earlier task.
    pub state: TaskState,
    /// Fingerprint that the earlier task was added with.
    pub fingerprint: Fingerprint,
}

impl From<&Task> for KeyOwner {
    fn from(task: &Task) -> Self {
        Self { id: task.id, state: task.state, fingerprint: task.fingerprint }
    }
}

/// Tasks of a chain that hold or await its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockQueue {
    /// Head of the chain.
    pub head: TaskId,
    /// Number of tasks, the head included. An engine may stop counting above the limit of the new
    /// task.
    pub tasks: usize,
}

/// Decision about a new task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The task is added. The earlier task that has its key, if there is one, loses the key.
    Add {
        /// Earlier task that loses the key.
        key_from: Option<TaskId>,
    },
    /// The task is not added, and takes no key.
    Refuse(Enqueued),
}

impl NewTask {
    /// Decides whether the task is added. Its id is not stored yet: a task that is added again is
    /// [`Enqueued::Added`], whatever else is stored. `lock_queue` returns the tasks of its chain, if
    /// the chain has a head; it is called only if the key is free and the lock queue is limited.
    pub fn admit<E>(
        &self,
        owner: Option<KeyOwner>,
        lock_queue: impl FnOnce(&Chain, u32) -> Result<Option<LockQueue>, E>,
    ) -> Result<Admission, E> {
        if let Some(refused) = owner.and_then(|owner| self.refused_by_key(owner)) {
            return Ok(Admission::Refuse(refused));
        }
        if let (Some(limit), Some(chain)) = (self.lock_queue_limit, self.chain())
            && let Some(queue) = lock_queue(&chain, limit)?
            && queue.tasks > limit as usize
        {
            return Ok(Admission::Refuse(Enqueued::LockQueueFull(queue.head)));
        }
        Ok(Admission::Add { key_from: owner.map(|owner| owner.id) })
    }

    /// Returns the response if an earlier task keeps the key of this one. Returns `None` if the key
    /// may be reused; the payload of the earlier task does not matter then.
    fn refused_by_key(&self, owner: KeyOwner) -> Option<Enqueued> {
        if self.reuse.allows(owner.state) {
            return None;
        }
        let same = owner.fingerprint == self.fingerprint();
        Some(if same { Enqueued::Duplicate(owner.id) } else { Enqueued::KeyReused(owner.id) })
    }

    /// Returns the chain that the task will be in: the tasks of its queue with its lock.
    pub fn chain(&self) -> Option<Chain> {
        self.lock.clone().map(|lock| (lock, self.queue.clone()))
    }
}

impl Reuse {
    /// Returns whether the key of a task in this state may be reused.
    pub const fn allows(self, state: TaskState) -> bool {
        match self {
            Self::Never => false,
            Self::Failed => matches!(state, TaskState::Failed),
            Self::Finished => state.is_terminal(),
        }
    }
}

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
    use std::convert::Infallible;

    use uuid::Uuid;

    use super::*;
    use crate::{LockName, Payload, Priority, QueueName, TaskKey, TaskOp, Timestamp, Ttl, WorkerId};

    fn new(number: u128) -> NewTask {
        let id = TaskId::from_uuid(Uuid::from_u128(number));
        NewTask::new(id, QueueName::new("q").unwrap(), Payload::of(&number.to_string()).unwrap())
    }

    fn admit(new: &NewTask, owner: Option<KeyOwner>, tasks: usize) -> Admission {
        let head = TaskId::from_uuid(Uuid::from_u128(9));
        let queue = (tasks > 0).then_some(LockQueue { head, tasks });
        let Ok(admission) = new.admit(owner, |_, _| Ok::<_, Infallible>(queue));
        admission
    }

    #[test]
    fn the_key_decides_before_the_lock_queue() {
        let lock = LockName::new("lock").ok();
        let keyed = NewTask { key: TaskKey::new("k").ok(), lock, lock_queue_limit: Some(0), ..new(1) };
        let owner = KeyOwner { id: new(2).id, state: TaskState::Failed, fingerprint: keyed.fingerprint() };
        let other = KeyOwner { fingerprint: Fingerprint::NONE, ..owner };
        assert_eq!(admit(&keyed, Some(owner), 1), Admission::Refuse(Enqueued::Duplicate(owner.id)));
        assert_eq!(admit(&keyed, Some(other), 1), Admission::Refuse(Enqueued::KeyReused(owner.id)));
        let reusing = NewTask { reuse: Reuse::Failed, ..keyed };
        assert_eq!(admit(&reusing, Some(other), 0), Admission::Add { key_from: Some(owner.id) });
        let head = TaskId::from_uuid(Uuid::from_u128(9));
        assert_eq!(admit(&reusing, Some(other), 1), Admission::Refuse(Enqueued::LockQueueFull(head)));
    }

    #[test]
    fn the_limit_counts_the_other_tasks_of_the_lock() {
        let locked = NewTask { lock: LockName::new("lock").ok(), lock_queue_limit: Some(2), ..new(1) };
        let added = Admission::Add { key_from: None };
        assert_eq!(admit(&locked, None, 2), added);
        assert!(matches!(admit(&locked, None, 3), Admission::Refuse(Enqueued::LockQueueFull(_))));
        assert_eq!(admit(&NewTask { lock_queue_limit: None, ..locked.clone() }, None, 3), added);
        assert_eq!(admit(&NewTask { lock: None, ..locked }, None, 3), added);
    }

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
