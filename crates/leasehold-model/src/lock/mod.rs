//! Locks: the record of one lock, the operations on it and their outcomes, and why a request waits.

mod deadlock;
mod forget;
pub(crate) mod op;
pub(crate) mod outcome;
pub(crate) mod record;
pub(crate) mod request;
mod rules;
pub(crate) mod token;
pub(crate) mod why;
pub(crate) mod why_text;

pub use deadlock::{Deadlock, RingLease, RingWait, deadlocks, suspected_locks};
pub use forget::TokenFloor;
pub use op::{Acquire, ForceRelease, LockOp, Release, Renew, RequestRelease, Restarted, Sweep, Withdraw};
pub use outcome::{Acquired, Applied, Conflict, HeldBy, NotHeld, Outcome, Queued, Swept, UnexpectedOutcome};
pub use record::{
    Event, EventKind, Lease, LeaseStatus, LockRecord, MAX_WAITERS, StopRequest, Ticket, TookOver,
};
pub use request::{
    BootId, LeaseId, LeaseRef, LockRequest, MAX_HOLDERS, Member, Metadata, Mode, Priority, Process, Slots,
};
pub use token::{Fence, StaleToken, Token};
pub use why::{LockReason, LockRemedy, LockSurroundings, ReleaseCause, WaitCause};
pub use why_text::TimeWriter;
