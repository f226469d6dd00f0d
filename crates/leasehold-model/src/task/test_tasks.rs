//! Builder methods for tasks in tests: values that cannot be parsed panic.

use super::{NewTask, When};
use crate::{LockName, Priority, QueueName, TaskKey, Ttl};

impl NewTask {
    /// Sets the queue.
    #[must_use]
    pub fn in_queue(mut self, name: &str) -> Self {
        self.queue = QueueName::new(name).expect("a good name in a test");
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(TaskKey::new(key).expect("a good key in a test"));
        self
    }

    /// Sets the lock.
    #[must_use]
    pub fn with_lock(mut self, lock: &str) -> Self {
        self.lock = Some(LockName::new(lock).expect("a good name in a test"));
        self
    }

    /// Sets the maximum number of other tasks that hold or await the lock.
    #[must_use]
    pub const fn with_lock_queue_limit(mut self, others: u32) -> Self {
        self.lock_queue_limit = Some(others);
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, weight: i32) -> Self {
        self.priority = Priority::new(weight).expect("a good priority in a test");
        self
    }

    /// Delays the task by this number of seconds.
    #[must_use]
    pub const fn after(mut self, seconds: u64) -> Self {
        self.when = When::In(Ttl::from_secs(seconds));
        self
    }

    /// Sets the maximum number of attempts.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.retries.attempts = attempts;
        self
    }
}
