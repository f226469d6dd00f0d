//! Operations on a lock. Operations are data: they can be stored, sent, replayed and checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{BootId, Holder, LeaseId, LockRequest, Reason, Token, Ttl};

/// Operation on one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum LockOp {
    /// Acquires the lock, or takes a place in its queue.
    Acquire(Acquire),
    /// Extends a lease.
    Renew(Renew),
    /// Extends a lease and records the renewal in the history.
    RenewLogged(Renew),
    /// Releases a lease; the next waiter in the queue receives the lock in the same step.
    Release(Release),
    /// Withdraws an acquire whose response was lost, or stops waiting.
    Withdraw(Withdraw),
    /// Requests that the holder release the lock when it can.
    RequestRelease(RequestRelease),
    /// Takes the lock from its holder immediately.
    ForceRelease(ForceRelease),
    /// Removes expired leases and tickets.
    Sweep(Sweep),
    /// Reports that the engine's host has restarted.
    Restarted(Restarted),
}

impl LockOp {
    /// Returns the id of the request that the operation belongs to, if any.
    pub fn lease_id(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire(acquire) => Some(acquire.request.lease_id),
            Self::Renew(renew) | Self::RenewLogged(renew) => Some(renew.lease_id),
            Self::Release(release) => Some(release.lease_id),
            Self::Withdraw(leave) => Some(leave.lease_id),
            Self::RequestRelease(_) | Self::ForceRelease(_) | Self::Sweep(_) | Self::Restarted(_) => None,
        }
    }

    /// Returns whether a store may resend the operation on its own after a lost response: the
    /// second execution changes nothing more and returns the same response as the first. A release,
    /// a forced release and a release request must not be resent: once executed, they return
    /// [`NotHeld`](crate::Outcome::NotHeld), or request and record the release a second time. Only
    /// the caller, which knows that a response was lost, can interpret such a response, so the
    /// store returns a retryable error instead.
    pub const fn is_repeatable(&self) -> bool {
        match self {
            Self::Acquire(_)
            | Self::Renew(_)
            | Self::RenewLogged(_)
            | Self::Withdraw(_)
            | Self::Sweep(_)
            | Self::Restarted(_) => true,
            Self::Release(_) | Self::RequestRelease(_) | Self::ForceRelease(_) => false,
        }
    }
}

/// Acquires the lock, or takes a place in its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Acquire {
    /// Request for the lock.
    pub request: Arc<LockRequest>,
    /// Lifetime of the ticket unless the caller sends this operation again. `None`: the caller does not wait.
    pub queue: Option<Ttl>,
    /// Also take over a lease that has not expired but has not been renewed for this long.
    pub steal_after: Option<Ttl>,
}

/// Extends a lease from now on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renew {
    /// Lease to extend.
    pub lease_id: LeaseId,
    /// Token with which the lease was granted.
    pub token: Token,
    /// New lifetime of the lease; unchanged by default.
    pub ttl: Option<Ttl>,
}

/// Releases a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Release {
    /// Lease to release.
    pub lease_id: LeaseId,
    /// Token with which the lease was granted.
    pub token: Token,
    /// Minimum time from acquisition during which the lock stays taken, although the holder has finished.
    pub at_least: Option<Ttl>,
}

/// Withdraws a request. No token is needed: only the caller that generated the id knows it, and
/// that caller may have missed its grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Withdraw {
    /// Request to withdraw, whether it is queued or granted.
    pub lease_id: LeaseId,
}

/// Requests that holders release the lock when they can.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestRelease {
    /// Token of the lease to release; every holder by default.
    pub token: Option<Token>,
    /// Holder that requests the release.
    pub by: Holder,
    /// Reason of the request.
    pub reason: Option<Reason>,
}

/// Takes the lock from its holder immediately. The holder may still be working: its token is stale
/// from here on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForceRelease {
    /// Token of the lease that the caller saw. If no lease has this token, nothing happens.
    pub token: Token,
    /// Actor that forces the release.
    pub by: Holder,
    /// Reason of the forced release.
    pub reason: Reason,
}

/// Removes expired leases and tickets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Sweep {
    /// Requests whose processes the engine found dead: their leases and tickets end now, regardless
    /// of their expiry time.
    #[serde(default)]
    pub dead: Vec<LeaseId>,
}

/// Reports that the engine's host, and with it the engine's clock, has restarted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Restarted {
    /// Boot that has ended: every lease and ticket of its processes ends.
    pub boot: BootId,
}
