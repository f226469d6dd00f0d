//! Exit codes: the one file that knows them. `leasehold run` otherwise ends with the code of its command.

use leasehold::{Error, Trouble};

/// As it should be.
pub(crate) const SUCCESS: i32 = 0;
/// Everything else that went wrong.
pub(crate) const FAILURE: i32 = 1;
/// The command line makes no sense (`EX_USAGE`).
pub(crate) const USAGE: i32 = 64;
/// From a command of `tasks work`: its task makes no sense, and never will (`EX_DATAERR`).
pub(crate) const BAD_DATA: i32 = 65;
/// The store cannot be reached, or another program has the address to listen on (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: i32 = 69;
/// A fault of this program, or of what the store contains (`EX_SOFTWARE`).
pub(crate) const INTERNAL: i32 = 70;
/// Somebody else has the lock (`EX_TEMPFAIL`: later it may work); `-E` changes it.
pub(crate) const NOT_ACQUIRED: i32 = 75;
/// From a command of `tasks work`: not now, but later it may work (`EX_TEMPFAIL`).
pub(crate) const TRY_LATER: i32 = 75;
/// The key belongs to a task or an execution that has failed or was aborted: nothing was done, and nothing will be.
pub(crate) const DUPLICATE_FAILED: i32 = 1;
/// The key belongs to an execution that is not over yet: how it ends is not known (`EX_TEMPFAIL`).
pub(crate) const DUPLICATE_OPEN: i32 = 75;
/// The store does not let us (`EX_NOPERM`).
pub(crate) const NOT_PERMITTED: i32 = 77;
/// The settings are wrong (`EX_CONFIG`).
pub(crate) const CONFIG: i32 = 78;
/// The lease was lost, and the command ended because of it.
pub(crate) const LEASE_LOST: i32 = 79;
/// The command ran for its `--max-runtime` and was ended, as `timeout(1)` has it.
pub(crate) const TIMED_OUT: i32 = 124;
/// The command is there but cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: i32 = 127;
/// Ended by signal N: this and N, as shells have it.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The codes, for whoever asks for help.
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

/// The code for an error of the library.
pub(crate) fn of(error: &Error) -> i32 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::Conflict { .. } | Error::NoRoom { .. } | Error::WorkflowLocked { .. } => NOT_ACQUIRED,
        Error::Lost { .. } | Error::TaskLost { .. } => LEASE_LOST,
        Error::Store { trouble: Trouble::Unavailable, .. } => UNAVAILABLE,
        Error::Store { trouble: Trouble::NotPermitted, .. } => NOT_PERMITTED,
        Error::Store { trouble: Trouble::Misconfigured | Trouble::NotSupported, .. } => CONFIG,
        Error::Store { trouble: Trouble::Broken, .. } => INTERNAL,
        _ => FAILURE,
    }
}
