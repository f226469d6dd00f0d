//! Exit codes; this is the only file that defines them. `leasehold run` otherwise exits with the
//! code of its command.

use leasehold::{Error, StoreErrorKind};

pub(crate) const SUCCESS: i32 = 0;
/// Any other failure.
pub(crate) const FAILURE: i32 = 1;
/// Invalid command line (`EX_USAGE`).
pub(crate) const USAGE: i32 = 64;
/// From a command of `tasks work`: the task is invalid, and no retry can succeed (`EX_DATAERR`).
pub(crate) const BAD_DATA: i32 = 65;
/// The store cannot be reached, or another program uses the address to listen on (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: i32 = 69;
/// Internal error of this program, or invalid contents of the store (`EX_SOFTWARE`).
pub(crate) const INTERNAL: i32 = 70;
/// Another holder has the lock (`EX_TEMPFAIL`: a later attempt may succeed); `-E` changes it.
pub(crate) const NOT_ACQUIRED: i32 = 75;
/// From a command of `tasks work`: a later attempt may succeed (`EX_TEMPFAIL`).
pub(crate) const TRY_LATER: i32 = 75;
/// The key belongs to a task or an execution that has failed or was aborted: nothing was done, and
/// nothing will be.
pub(crate) const DUPLICATE_FAILED: i32 = 1;
/// The key belongs to an execution that is not over yet: its result is unknown (`EX_TEMPFAIL`).
pub(crate) const DUPLICATE_OPEN: i32 = 75;
/// The store denied permission (`EX_NOPERM`).
pub(crate) const NOT_PERMITTED: i32 = 77;
/// Invalid settings (`EX_CONFIG`).
pub(crate) const CONFIG: i32 = 78;
/// The lease was lost, and the command was ended because of it.
pub(crate) const LEASE_LOST: i32 = 79;
/// Holders wait for each other: `locks deadlocks` found it, or `--check-deadlock` refused to wait.
pub(crate) const DEADLOCK: i32 = 80;
/// The command reached its `--max-runtime` and was ended; the same code as `timeout(1)`.
pub(crate) const TIMED_OUT: i32 = 124;
/// The command exists but cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: i32 = 127;
/// Base for a command killed by signal N: the code is this plus N, as in shells.
pub(crate) const SIGNAL_BASE: i32 = 128;

pub(crate) const HELP: &str = "\
Exit codes:
  0    success
  1    a lease is not held, a token is stale, a task does not exist, the key belongs to a task or an
       execution that has failed or was aborted, or another error
  64   invalid command line
  69   the store cannot be reached, or another program listens on the address of leasehold serve
  70   internal error of leasehold, or invalid contents of the store
  75   the lock was not acquired, or not in time (-E changes it); the workflow is locked, or the key
       belongs to an execution that has not finished yet
  77   the store denied permission
  78   invalid settings or store URL
  79   the lease was lost, and the command was ended
  80   a deadlock was found (locks deadlocks, --check-deadlock)
  124  the command reached its --max-runtime, and was ended
  126  the command cannot be run
  127  the command does not exist
  otherwise the exit code of the command of leasehold run; 128+N if signal N killed it";

/// Returns the code for an error of the client library.
pub(crate) fn of(error: &Error) -> i32 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::Conflict { .. } | Error::LockQueueFull { .. } | Error::WorkflowLocked { .. } => NOT_ACQUIRED,
        Error::Deadlock { .. } => DEADLOCK,
        Error::Lost { .. } | Error::TaskLost { .. } => LEASE_LOST,
        Error::Store { kind: StoreErrorKind::Unavailable, .. } => UNAVAILABLE,
        Error::Store { kind: StoreErrorKind::NotPermitted, .. } => NOT_PERMITTED,
        Error::Store { kind: StoreErrorKind::Misconfigured | StoreErrorKind::NotSupported, .. } => CONFIG,
        Error::Store { kind: StoreErrorKind::Broken, .. } => INTERNAL,
        _ => FAILURE,
    }
}
