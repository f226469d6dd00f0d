//! Which processes stand behind a lease, so that an engine on the same host can see that they are gone.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// One boot of one machine: the kernel makes a new one at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub Uuid);

/// The processes behind a lease. They are gone when *every* member is gone, or when the machine has started anew.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The boot they run in.
    pub boot: BootId,
    /// The process-id namespace in which their numbers mean something.
    pub pid_namespace: u64,
    /// The processes; the first is the one that talks to the store.
    pub members: Vec<Member>,
}

/// One process. Numbers are used again, so the time it started at belongs to its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub started: u64,
    /// Whether it leads a process group that counts as long as anything in it lives.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub group: bool,
}
