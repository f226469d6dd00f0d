//! Exit codes: the one file that knows them. `leasehold run` otherwise ends with the code of its command.

use leasehold::{Error, Trouble};

/// Everything else that went wrong.
pub(crate) const FAILURE: i32 = 1;
/// The command line makes no sense (`EX_USAGE`).
pub(crate) const USAGE: i32 = 64;
/// The store cannot be reached (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: i32 = 69;
/// A fault of this program, or of what the store contains (`EX_SOFTWARE`).
pub(crate) const INTERNAL: i32 = 70;
/// Somebody else has the lock (`EX_TEMPFAIL`: later it may work); `-E` changes it.
pub(crate) const NOT_ACQUIRED: i32 = 75;
/// The store does not let us (`EX_NOPERM`).
pub(crate) const NOT_PERMITTED: i32 = 77;
/// The settings are wrong (`EX_CONFIG`).
pub(crate) const CONFIG: i32 = 78;
/// The lease was lost, and the command ended because of it.
pub(crate) const LEASE_LOST: i32 = 79;
/// The command is there but cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: i32 = 127;
/// Ended by signal N: this and N, as shells have it.
pub(crate) const SIGNAL_BASE: i32 = 128;

/// The code for an error of the library.
pub(crate) fn of(error: &Error) -> i32 {
    match error {
        Error::Invalid(_) => USAGE,
        Error::Conflict { .. } => NOT_ACQUIRED,
        Error::Lost { .. } => LEASE_LOST,
        Error::Store { trouble: Trouble::Unavailable, .. } => UNAVAILABLE,
        Error::Store { trouble: Trouble::NotPermitted, .. } => NOT_PERMITTED,
        Error::Store { trouble: Trouble::Misconfigured, .. } => CONFIG,
        Error::Store { trouble: Trouble::Broken, .. } => INTERNAL,
        _ => FAILURE,
    }
}
