//! Who works: what a worker says about itself with each sign of life.

use serde::{Deserialize, Serialize};

use super::WorkerId;
use crate::model::{QueueName, Timestamp, Ttl};

/// What a worker says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// New each time it starts.
    pub id: WorkerId,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The version of leasehold in it.
    pub version: String,
    /// The queues it takes tasks from.
    pub queues: Vec<QueueName>,
    /// How many tasks it runs at once.
    pub slots: u32,
    /// How many it runs now.
    pub busy: u32,
    /// Whether it takes new tasks, or only finishes what it has.
    pub draining: bool,
    /// It says something at least this often; thrice without a word means that it is gone.
    pub every: Ttl,
}

impl WorkerInfo {
    /// What is sent for a worker that says nothing about itself but its id: if it is listed, it was heard of, and if not,
    /// it is not listed for that.
    pub fn only(id: WorkerId) -> Self {
        let (host, version, queues) = Default::default();
        Self { id, host, pid: 0, version, queues, slots: 0, busy: 0, draining: false, every: Ttl::MIN }
    }

    /// Whether it says nothing about itself but its id.
    pub fn says_nothing(&self) -> bool {
        self.slots == 0 && self.host.is_empty()
    }
}

/// A worker as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// What it last said about itself.
    pub info: WorkerInfo,
    /// When it was first heard.
    pub started_at: Timestamp,
    /// When it was last heard.
    pub seen_at: Timestamp,
}

impl WorkerStatus {
    /// A worker that has said nothing for so long is forgotten.
    pub const REMEMBERED: Ttl = Ttl::from_secs(3600);

    /// Whether nothing was heard of it for so long that it must be gone.
    pub fn is_gone(&self, now: Timestamp) -> bool {
        now.since(self.seen_at) > self.info.every.as_duration().saturating_mul(3)
    }
}
