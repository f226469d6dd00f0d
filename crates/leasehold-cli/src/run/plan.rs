//! What to run, under which locks: what the command line comes to.

use std::ffi::OsString;
use std::time::Duration;

use super::contain::Contain;
use leasehold::model::{Holder, LockName, Mode, Priority, Reason, Slots, Ttl};

/// One `leasehold run`.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    /// Where the locks live. The command finds it as `LEASEHOLD_STORE`, so a path in it should be absolute.
    pub(crate) store_url: String,
    /// The locks; the first is the one that gives its token to the command.
    pub(crate) locks: Vec<LockName>,
    /// How long the lease lasts from each renewal.
    pub(crate) ttl: Ttl,
    /// How long to wait for the locks.
    pub(crate) patience: Patience,
    /// Alone or with others.
    pub(crate) mode: Mode,
    /// Among how many.
    pub(crate) slots: Slots,
    /// Weight in the queue.
    pub(crate) priority: Priority,
    /// Also take a lease that has not been renewed for so long.
    pub(crate) steal_stale: Option<Ttl>,
    /// After which part of the ttl to renew.
    pub(crate) renew_at: f64,
    /// How long the command has between `SIGTERM` and `SIGKILL`.
    pub(crate) kill_after: Option<Duration>,
    /// The command is ended when it has run for this long.
    pub(crate) max_runtime: Option<Ttl>,
    /// What is to keep the processes of the command together.
    pub(crate) contain: Contain,
    /// Keep others out until so long after the lock was acquired.
    pub(crate) at_least: Option<Ttl>,
    /// The exit code when the lock is not to be had.
    pub(crate) conflict_exit: i32,
    /// Why it runs.
    pub(crate) reason: Option<Reason>,
    /// Who holds it.
    pub(crate) holder: Option<Holder>,
    /// Whether the caller gave that name: then a lease under it is the caller's own.
    pub(crate) holder_named: bool,
    /// More facts about the holder.
    pub(crate) metadata: Vec<(String, String)>,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Say nothing about waiting.
    pub(crate) quiet: bool,
    /// Say why it cannot be run as JSON.
    pub(crate) json: bool,
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    FailFast,
    /// So long.
    For(Duration),
    /// Until it is there.
    Forever,
}
