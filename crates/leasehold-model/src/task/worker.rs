//! Description of a worker, which it sends with each heartbeat.

use serde::{Deserialize, Serialize};

use super::WorkerId;
use crate::{QueueName, Timestamp, Ttl, ValidationError, ValueKind};

/// Maximum length of the host name and of the version of a worker, in bytes of UTF-8.
const MAX_TEXT: usize = 255;
const MAX_QUEUES: usize = 1000;

/// Description that a worker sends of itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedWorkerInfo")]
pub struct WorkerInfo {
    /// Id of the worker; new at each start.
    pub id: WorkerId,
    /// Host name of the machine that the worker runs on.
    pub host: String,
    /// Process id of the worker on its host.
    pub pid: u32,
    /// Version of leasehold in the worker.
    pub version: String,
    /// Queues that the worker leases tasks from.
    pub queues: Vec<QueueName>,
    /// Maximum number of tasks that the worker runs concurrently.
    pub slots: u32,
    /// Number of tasks that the worker runs now.
    pub busy: u32,
    /// Whether the worker leases no new tasks and only finishes its running ones.
    pub draining: bool,
    /// Heartbeat interval; a worker is considered dead after three missed heartbeats.
    pub every: Ttl,
}

/// Description of a worker before validation, from a store or from a client of a server.
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
    type Error = ValidationError;
    fn try_from(read: UncheckedWorkerInfo) -> Result<Self, ValidationError> {
        let UncheckedWorkerInfo { id, host, pid, version, queues, slots, busy, draining, every } = read;
        Self { id, host, pid, version, queues, slots, busy, draining, every }.check()
    }
}

impl WorkerInfo {
    /// Checks the bounds: every client that lists the workers reads these texts.
    pub fn check(self) -> Result<Self, ValidationError> {
        for (field, text) in [("host", &self.host), ("version", &self.version)] {
            if text.len() > MAX_TEXT || text.contains(char::is_control) {
                let message =
                    format!("the {field} of a worker has at most {MAX_TEXT} bytes and no control character");
                return Err(ValidationError::new(ValueKind::Worker, message));
            }
        }
        if self.queues.len() > MAX_QUEUES {
            let queues = self.queues.len();
            let message = format!("a worker cannot have {queues} queues; {MAX_QUEUES} are the most");
            return Err(ValidationError::new(ValueKind::Worker, message));
        }
        Ok(self)
    }

    /// Creates a description that contains only the id. The heartbeat updates the worker's time of
    /// contact if the worker is listed, but does not add the worker to the list.
    pub fn only(id: WorkerId) -> Self {
        let (host, version, queues) = Default::default();
        Self { id, host, pid: 0, version, queues, slots: 0, busy: 0, draining: false, every: Ttl::MIN }
    }

    /// Returns whether the description contains only the id.
    pub fn is_id_only(&self) -> bool {
        self.slots == 0 && self.host.is_empty()
    }
}

/// Stored status of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Last description that the worker sent.
    pub info: WorkerInfo,
    /// Time of the first heartbeat.
    pub started_at: Timestamp,
    /// Time of the last heartbeat.
    pub seen_at: Timestamp,
}

impl WorkerStatus {
    /// Time without a heartbeat after which a worker is removed from the list.
    pub const LISTED_FOR: Ttl = Ttl::from_secs(3600);

    /// Returns whether the worker has missed three heartbeats and is considered dead.
    pub fn is_dead(&self, now: Timestamp) -> bool {
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
