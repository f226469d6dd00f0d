//! Who works: what a worker says about itself with each sign of life.

use serde::{Deserialize, Serialize};

use super::WorkerId;
use crate::{Invalid, QueueName, Timestamp, Ttl};

/// Longest host name and version of a worker, in bytes of UTF-8.
const MAX_TEXT: usize = 255;
/// Most queues of one worker.
const MAX_QUEUES: usize = 1000;

/// What a worker says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedWorkerInfo")]
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

/// A worker as it is read: from a store, or from a client of a server.
#[derive(Deserialize)]
struct UncheckedWorkerInfo {
    id: WorkerId,
    host: String,
    pid: u32,
    version: String,
    queues: Vec<QueueName>,
    slots: u32,
    busy: u32,
    draining: bool,
    every: Ttl,
}

impl TryFrom<UncheckedWorkerInfo> for WorkerInfo {
    type Error = Invalid;
    fn try_from(read: UncheckedWorkerInfo) -> Result<Self, Invalid> {
        let UncheckedWorkerInfo { id, host, pid, version, queues, slots, busy, draining, every } = read;
        Self { id, host, pid, version, queues, slots, busy, draining, every }.check()
    }
}

impl WorkerInfo {
    /// Checks the bounds: everyone who lists the workers reads these texts.
    pub fn check(self) -> Result<Self, Invalid> {
        for (field, text) in [("host", &self.host), ("version", &self.version)] {
            if text.len() > MAX_TEXT || text.contains(char::is_control) {
                return Err(Invalid(format!(
                    "the {field} of a worker has at most {MAX_TEXT} bytes and no control character"
                )));
            }
        }
        if self.queues.len() > MAX_QUEUES {
            let queues = self.queues.len();
            return Err(Invalid(format!("a worker cannot have {queues} queues; {MAX_QUEUES} are the most")));
        }
        Ok(self)
    }

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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_worker_that_is_read_is_checked() {
        let plain = WorkerInfo::only(WorkerId::from_uuid(Uuid::from_u128(1)));
        let read = |info: &WorkerInfo| {
            let json = serde_json::to_string(info).unwrap();
            serde_json::from_str::<WorkerInfo>(&json)
        };
        assert_eq!(read(&plain).unwrap(), plain);
        for host in ["x".repeat(256), "a\nb".to_owned()] {
            assert!(read(&WorkerInfo { host, ..plain.clone() }).is_err());
        }
        let queues = vec![QueueName::new("q").unwrap(); 1001];
        assert!(read(&WorkerInfo { queues, ..plain }).is_err());
    }
}
