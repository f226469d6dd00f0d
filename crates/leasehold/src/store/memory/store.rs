//! In-memory engine as a whole.

use async_trait::async_trait;

use super::documents::MemoryDocs;
use super::locks::{MemoryLocks, POLL};
use super::tasks::MemoryTasks;
use crate::model::Ttl;
use crate::store::{Capabilities, Clock, DocumentStore, Hosts, LockStore, Store, TaskStore};

/// Locks, tasks and documents in the memory of this process.
#[derive(Debug)]
pub struct MemoryStore {
    locks: MemoryLocks,
    tasks: MemoryTasks,
    docs: MemoryDocs,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Creates an empty store that takes its time from `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            locks: MemoryLocks::new(clock.clone()),
            tasks: MemoryTasks::new(clock.clone()),
            docs: MemoryDocs::with_clock(clock),
        }
    }

    /// For simulations: sets the interval at which a worker without tasks asks again.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn polled_every(mut self, poll: std::time::Duration) -> Self {
        self.tasks.poll = poll;
        self
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            min_ttl: Ttl::MIN,
            poll: POLL,
            push_notifications: true,
            persistent: false,
            shared_locks: true,
            queues: true,
            forgets_locks: true,
            ..Capabilities::new("memory", Hosts::OneProcess)
        }
    }

    fn url(&self) -> String {
        "memory:".to_owned()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(&self.tasks)
    }

    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(&self.docs)
    }
}
