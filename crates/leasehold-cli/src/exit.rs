//! Exit codes; this is the only file that defines them. `leasehold run` otherwise exits with the
//! code of its command.

use leasehold::{Error, StoreErrorKind};

/// Success.
pub(crate) const SUCCESS: i32 = 0;
/// Any other failure.
pub(crate) const FAILURE: i32 = 1;
/// Invalid command line (`EX_USAGE`).
pub(crate) const USAGE: i32 = 64;
/// From a command of `tasks work`: the task is invalid, and no retry can succeed (`EX_DATAERR`).
pub(crate) const BAD_DATA: i32 = 65;
/// The store cannot be reached, or another program uses the address to listen on
/// (`EX_UNAVAILABLE`).
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
/// The command reached its `--max-runtime` and was ended; the same code as `timeout(1)`.
pub(crate) const TIMED_OUT: i32 = 124;
/// The command exists but cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: i32 = 127;
/// Base for a command killed by signal N: the code is this plus N, as in shells.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// Description of the codes for the help text.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done
  1    a lease is not held, a token is stale, there is no such task, the key belongs to a task or an
       execution that has failed or was aborted, or something else went wrong
  64   the command line makes no sense
  69   the store cannot be reached, or another program listens on the address of leasehold serve
  70   a fault of leasehold, or of what the store contains
  75   the lock was not acquired, or not in time (-E changes it); the workflow is locked, or the key
       belongs to an execution that is not over yet
  77   the store does not let us
  78   the settings or the store's address are wrong
  79   the lease was lost, and the command was ended
  124  the command ran for its --max-runtime, and was ended
  126  the command cannot be run
  127  there is no such command
  and otherwise the code of the command that leasehold run has run; 128+N if signal N ended it";

/// Returns the code for an error of the client library.
pub(crate) fn of(error: &Error) -> i32 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::Conflict { .. } | Error::NoRoom { .. } | Error::WorkflowLocked { .. } => NOT_ACQUIRED,
        Error::Lost { .. } | Error::TaskLost { .. } => LEASE_LOST,
        Error::Store { trouble: StoreErrorKind::Unavailable, .. } => UNAVAILABLE,
        Error::Store { trouble: StoreErrorKind::NotPermitted, .. } => NOT_PERMITTED,
        Error::Store { trouble: StoreErrorKind::Misconfigured | StoreErrorKind::NotSupported, .. } => CONFIG,
        Error::Store { trouble: StoreErrorKind::Broken, .. } => INTERNAL,
        _ => FAILURE,
    }
}
