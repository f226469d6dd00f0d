//! Command line of `leasehold run` in resolved form: the command and its locks; and what its processes share.

use std::ffi::OsString;
use std::time::Duration;

use leasehold::Strategy;
use leasehold::model::{Holder, LockName, Mode, Priority, Reason, Slots, Ttl};
use nix::unistd::Pid;

use super::contain::{Contain, Containment};
use super::sys::Shared;
use super::terminal::Terminal;
use super::timing::Timing;

/// Parameters of one `leasehold run`.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of the command line")]
pub(crate) struct RunPlan {
    /// URL of the store that holds the locks. The command receives it as `LEASEHOLD_STORE`, so a
    /// path in it should be absolute.
    pub(crate) store_url: String,
    /// Locks to acquire; the command receives the token of the first one.
    pub(crate) locks: Vec<LockName>,
    pub(crate) ttl: Ttl,
    pub(crate) wait_timeout: WaitTimeout,
    pub(crate) mode: Mode,
    pub(crate) slots: Slots,
    pub(crate) priority: Priority,
    /// Also takes over a lease that has not been renewed for this long.
    pub(crate) steal_stale: Option<Ttl>,
    /// Fraction of the ttl after which the lease is renewed.
    pub(crate) renew_at: f64,
    /// Time between `SIGTERM` and `SIGKILL` for the command.
    pub(crate) kill_after: Option<Duration>,
    pub(crate) max_runtime: Option<Ttl>,
    pub(crate) contain: Contain,
    /// Minimum time, counted from the acquisition, for which other holders are kept out.
    pub(crate) at_least: Option<Ttl>,
    /// Exit code if the lock cannot be acquired.
    pub(crate) conflict_exit: i32,
    pub(crate) reason: Option<Reason>,
    /// Fails instead of waiting in a deadlock.
    pub(crate) check_deadlock: bool,
    pub(crate) holder: Holder,
    /// Whether the caller specified the holder name: then a lease under this name belongs to the caller.
    pub(crate) holder_is_explicit: bool,
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) command: Vec<OsString>,
    /// Suppresses messages about waiting.
    pub(crate) quiet: bool,
    /// Prints the reason as JSON if the command cannot be run.
    pub(crate) json: bool,
}

impl RunPlan {
    /// Returns the process id in the metadata.
    pub(super) fn pid(&self) -> Option<String> {
        self.metadata.iter().find(|(key, _)| key == "pid").map(|(_, pid)| pid.clone())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitTimeout {
    FailFast,
    For(Duration),
    Forever,
}

impl WaitTimeout {
    pub(crate) fn strategy(self) -> Strategy {
        match self {
            Self::FailFast => Strategy::FailFast,
            Self::For(timeout) => Strategy::Wait(Some(timeout)),
            Self::Forever => Strategy::Wait(None),
        }
    }
}

/// State that SUPERVISOR and MONITOR share.
pub(super) struct RunContext<'a> {
    pub(super) plan: &'a RunPlan,
    pub(super) timing: Timing,
    pub(super) shared: Shared,
    pub(super) terminal: Terminal,
    pub(super) supervisor: Pid,
    pub(super) containment: Containment,
}
