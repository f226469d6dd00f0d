//! Deadlocks among the locks of a store, for users and programs.

use serde::Serialize;

use super::admin::Locks;
use super::deadlock_search::{Deadlocks, find};
use super::status::rfc3339;
use super::why::LockCommandView;
use crate::error::Result;
use crate::model::{Deadlock, LockRemedy, RingLease, RingWait, Timestamp};

impl Locks {
    /// Finds deadlocks: rings of leases and requests that wait for each other. Fails on a store without
    /// a queue, which does not know who waits.
    ///
    /// A request is part of a ring only if it is declared within which leases it was made: by
    /// [`Guard::run`](super::Guard::run), by the lock of a task, by a request for several locks, or by
    /// [`LockBuilder::within`](super::LockBuilder::within).
    ///
    /// Reads all locks with waiters page by page, and those of a possible ring again.
    pub async fn deadlocks(&self) -> Result<Deadlocks> {
        find(&self.inner).await
    }
}

/// JSON view of a search; the binary and the server write the same view.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeadlocksView {
    /// Deadlocks, in the order of the names of their locks.
    pub deadlocks: Vec<DeadlockView>,
    /// Number of locks with waiters that were read.
    pub examined: u64,
    /// Whether all locks with waiters were read.
    pub complete: bool,
    /// Store time of the search.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub now: Timestamp,
}

/// Ring of waits that cannot end by itself.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct DeadlockView {
    /// Names of the locks, sorted.
    pub locks: Vec<String>,
    /// The ring as a sentence.
    pub text: String,
    /// Waits of the ring, each for the next one, and the last for the first.
    pub waits: Vec<RingWaitView>,
    /// Commands that help: one that avoids the deadlock, and one for each lease that ends it.
    pub commands: Vec<LockCommandView>,
}

/// Wait of a ring.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RingWaitView {
    /// Lock that is waited for.
    pub lock: String,
    /// Holder that waits.
    pub waiter: String,
    /// Public name of the lease that the ticket would become.
    pub lease_ref: String,
    /// Time at which the request was queued.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
    /// Lease that the request was made within, and that the previous wait waits for. Absent if the
    /// previous wait is in the queue of the same lock, behind this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds: Option<RingLeaseView>,
}

/// Lease of a ring.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RingLeaseView {
    /// Lock that is held.
    pub lock: String,
    /// Holder of the lease.
    pub holder: String,
    /// Public name of the lease.
    pub lease_ref: String,
    /// Token of the lease, which a forced release must specify.
    pub token: u64,
    /// Time of the grant.
    #[serde(serialize_with = "rfc3339")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub since: Timestamp,
}

impl DeadlocksView {
    /// Creates the view; `program` is the command line of `leasehold` up to the subcommand.
    pub fn new(search: &Deadlocks, program: &str) -> Self {
        Self {
            deadlocks: search.found.iter().map(|deadlock| DeadlockView::new(deadlock, program)).collect(),
            examined: u64::try_from(search.examined).unwrap_or(u64::MAX),
            complete: search.complete,
            now: search.now,
        }
    }
}

impl DeadlockView {
    /// Creates the view of one ring; `program` as for [`DeadlocksView::new`].
    pub fn new(deadlock: &Deadlock, program: &str) -> Self {
        let avoid = deadlock.remedy(program).map(|command| LockCommandView::new("avoid", command));
        let end = deadlock.waits.iter().filter_map(|wait| wait.holds.as_ref()).map(|held| {
            LockCommandView::new("end", LockRemedy::Force { token: held.token }.command(program, &held.lock))
        });
        Self {
            locks: deadlock.locks().iter().map(ToString::to_string).collect(),
            text: deadlock.to_string(),
            waits: deadlock.waits.iter().map(RingWaitView::of).collect(),
            commands: avoid.into_iter().chain(end).collect(),
        }
    }
}

impl RingWaitView {
    fn of(wait: &RingWait) -> Self {
        Self {
            lock: wait.lock.to_string(),
            waiter: wait.waiter.to_string(),
            lease_ref: wait.lease.to_string(),
            since: wait.since,
            holds: wait.holds.as_ref().map(RingLeaseView::of),
        }
    }
}

impl RingLeaseView {
    fn of(held: &RingLease) -> Self {
        Self {
            lock: held.lock.to_string(),
            holder: held.holder.to_string(),
            lease_ref: held.lease.to_string(),
            token: held.token.get(),
            since: held.since,
        }
    }
}
