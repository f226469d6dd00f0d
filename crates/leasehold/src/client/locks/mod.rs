//! Locks: acquiring them, holding them with a guard, their status.

mod acquire;
mod admin;
mod builder;
mod deadlock_search;
mod deadlocks;
mod guard;
mod guard_core;
pub(super) mod in_doubt;
mod notifications;
mod renewal;
mod stale_workflow_locks;
mod status;
mod why;

pub use acquire::{Backoff, Strategy};
pub use admin::Locks;
pub use builder::LockBuilder;
pub(super) use builder::check_ttl;
pub use deadlock_search::Deadlocks;
pub use deadlocks::{DeadlockView, DeadlocksView, RingLeaseView, RingWaitView};
pub(super) use guard::scope as within;
pub use guard::{Guard, LeaseHandle, RunError, enclosing_leases};
pub use guard_core::{GuardState, GuardStatus};
pub(super) use stale_workflow_locks::{clear_all_stale, clear_stale};
pub use status::{EventView, HolderStatus, LastLease, LockStatus, ReleaseRequestStatus, WaiterStatus};
pub(super) use status::{rfc3339, rfc3339_option};
pub use why::{LockCommandView, LockExplanation, LockExplanationView, LockReasonView};
