//! Stored record of a lock: its holders, its queue, its token.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Holder, LeaseId, LockName, LockRequest, Reason, Timestamp, Token, Ttl, format_duration};

/// Lock record. Stored until the lock has been unused for the retention time; see
/// [`TokenFloor`](crate::TokenFloor) for its token after that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// Name of the lock.
    pub name: LockName,
    /// Newest token; outlives every lease.
    pub token: Token,
    /// Leases, oldest first. Some may have expired since the last operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Lease>,
    /// Tickets, next first. Some may have expired since the last operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<Ticket>,
    /// Number of changes of the record.
    pub version: u64,
}

/// Grant of a lock that expires unless it is renewed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Request that the lease was granted for.
    pub request: Arc<LockRequest>,
    /// Fencing token of this grant.
    pub token: Token,
    /// Time at which the lease was granted.
    pub acquired_at: Timestamp,
    /// Time of the last renewal.
    pub renewed_at: Timestamp,
    /// Time at which the lease expires; from this instant on it is not valid.
    pub expires_at: Timestamp,
    /// Number of renewals.
    #[serde(default)]
    pub renewals: u64,
    /// Current state of the lease.
    #[serde(default)]
    pub status: Status,
    /// Request to the holder to release the lease, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_request: Option<StopRequest>,
    /// Lease that this one replaced although it had not been released. Set in the response that
    /// grants the lease, never in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_over: Option<Box<TookOver>>,
}

/// Lease that ended without a release and was replaced by another lease in the same step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TookOver {
    /// Holder of the ended lease.
    pub holder: Holder,
    /// Token of the ended lease.
    pub token: Token,
    /// Last renewal of the ended lease.
    pub renewed_at: Timestamp,
    /// Expiry time of the ended lease. It is later than the grant of the new lease if the lease was
    /// stolen or its process died.
    pub expires_at: Timestamp,
}

impl TookOver {
    /// Creates the description of a lease that ends.
    pub fn of(lease: &Lease) -> Self {
        Self {
            holder: lease.request.holder.clone(),
            token: lease.token,
            renewed_at: lease.renewed_at,
            expires_at: lease.expires_at,
        }
    }

    /// Returns a message that describes the end of the lease, as of the grant of the next lease.
    pub fn describe(&self, granted_at: Timestamp) -> String {
        let holder = &self.holder;
        if self.expires_at <= granted_at {
            let ago = format_duration(granted_at.since(self.expires_at));
            format!("took over the lease of {holder}, which expired {ago} ago without a release")
        } else {
            let ago = format_duration(granted_at.since(self.renewed_at));
            format!("took over the lease of {holder} before its end: its last renewal was {ago} ago")
        }
    }
}

/// State of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The holder is working.
    #[default]
    Active,
    /// The holder has been asked to release.
    Releasing,
    /// The holder has released; the lease blocks the lock until its `at_least` time is over.
    Released,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// Request to the holder to release or stop.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StopRequest {
    /// Holder that made the request.
    pub by: Holder,
    /// Reason of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Time of the request.
    pub at: Timestamp,
}

/// Place of a waiter in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// Request that waits for the lock.
    pub request: Arc<LockRequest>,
    /// Time at which the request was queued.
    pub since: Timestamp,
    /// Time at which the ticket expires unless the waiter sends its acquire again.
    pub expires_at: Timestamp,
    /// Lifetime of the ticket from each acquire, and the time that the waiter has to confirm the
    /// lease once it is granted.
    pub ticket_ttl: Ttl,
}

impl LockRecord {
    /// Creates the record of a lock that no caller has requested yet.
    pub fn new(name: LockName) -> Self {
        Self { name, token: Token::default(), holders: Vec::new(), waiters: Vec::new(), version: 0 }
    }

    /// Returns the lease with this id.
    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.holders.iter().find(|lease| lease.request.lease_id == *id)
    }

    /// Returns the leases that are valid at `now`.
    pub fn live(&self, now: Timestamp) -> impl Iterator<Item = &Lease> {
        self.holders.iter().filter(move |lease| now < lease.expires_at)
    }

    /// Returns the tickets that are valid at `now`, next first.
    pub fn waiting(&self, now: Timestamp) -> impl Iterator<Item = &Ticket> {
        self.waiters.iter().filter(move |ticket| now < ticket.expires_at)
    }

    /// Returns the time at which the next lease or ticket of this lock expires: the time to sweep it at.
    pub fn next_end(&self) -> Option<Timestamp> {
        let leases = self.holders.iter().map(|lease| lease.expires_at);
        leases.chain(self.waiters.iter().map(|ticket| ticket.expires_at)).min()
    }
}
