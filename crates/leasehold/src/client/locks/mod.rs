//! Locks: acquiring them, holding them with a guard, their status.

mod acquire;
mod builder;
mod guard;
mod guard_core;
pub(super) mod in_doubt;
mod notifications;
mod renewal;
mod status;
mod strategy;

pub use builder::LockBuilder;
pub(super) use builder::check_ttl;
pub use guard::{Guard, GuardState, GuardStatus, LeaseHandle, RunError};
pub(super) use guard_core::Core;
pub(super) use renewal::renew;
pub use status::{EventView, HolderStatus, LastLease, LockStatus, ReleaseRequestStatus, WaiterStatus};
pub(super) use status::{rfc3339, rfc3339_option};
pub use strategy::{Backoff, Strategy};
