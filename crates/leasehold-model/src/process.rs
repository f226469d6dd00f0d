//! Processes that hold a lease, so that an engine on the same host can detect their death.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Id of one boot of one machine: the kernel generates a new id at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub Uuid);

/// Processes that hold a lease. They count as dead when *every* member is dead or the machine has restarted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Boot in which the processes run.
    pub boot: BootId,
    /// PID namespace in which the process ids are valid.
    pub pid_namespace: u64,
    /// Process identities; the first is the process that calls the store.
    pub members: Vec<Member>,
}

/// Identity of one process. Process ids are reused, so the start time is part of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Process id.
    pub pid: u32,
    /// Start time in kernel ticks since boot.
    pub started: u64,
    /// Whether the process leads a process group that counts as alive while any of its processes lives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group: bool,
}
