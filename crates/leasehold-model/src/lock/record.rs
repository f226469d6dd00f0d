//! Stored record of a lock: its holders, its queue with the order and the capacity, its token; and the
//! events of its history.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::request::is_default;
use crate::{
    Holder, LeaseId, LockName, LockRequest, MAX_HOLDERS, Mode, Priority, Reason, Slots, Timestamp, Token,
    Ttl, format_duration,
};

/// Maximum number of tickets of a lock; a request that would exceed it is rejected.
pub const MAX_WAITERS: usize = 1000;

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
    pub status: LeaseStatus,
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
pub enum LeaseStatus {
    /// The holder is working.
    #[default]
    Active,
    /// The release of the lease was requested from the holder.
    Releasing,
    /// The holder has released; the lease blocks the lock until its `at_least` time is over.
    Released,
}

impl fmt::Display for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Returns whether the current holders leave capacity for `request`. Expired leases must have been
    /// removed before.
    pub(crate) fn has_capacity_for(&self, request: &LockRequest) -> bool {
        fits(self.holders.iter(), request)
    }

    /// Returns the place of a new request in the queue.
    pub(crate) fn insertion_index(&self, request: &LockRequest, now: Timestamp) -> usize {
        let rank = rank(request.priority, now);
        self.waiters.partition_point(|ticket| ticket.rank() <= rank)
    }
}

/// Returns whether these leases leave capacity for `request`.
pub(crate) fn fits<'a>(leases: impl Iterator<Item = &'a Lease>, request: &LockRequest) -> bool {
    let (mut slots, mut held) = (request.slots, 0);
    for lease in leases {
        match (lease.request.mode, request.mode) {
            (Mode::Shared, Mode::Shared) => {}
            // The smallest limit applies, those of the current holders included.
            (Mode::Exclusive, Mode::Exclusive) => slots = slots.min(lease.request.slots),
            _ => return false,
        }
        held += 1;
    }
    let room = match request.mode {
        Mode::Shared => MAX_HOLDERS,
        Mode::Exclusive => slots.get() as usize,
    };
    held < room
}

impl Ticket {
    /// Returns the rank of the ticket in its queue; lower ranks are granted first.
    pub fn rank(&self) -> i64 {
        rank(self.request.priority, self.since)
    }
}

/// Returns the rank of a request; lower ranks are granted first. The rank is the time of arrival,
/// moved ahead by one step per unit of priority. Ranks do not change while time passes, so the
/// queue stays sorted, and a ticket can only be overtaken by requests that arrive within the steps
/// between them: no ticket starves.
pub(crate) fn rank(priority: Priority, since: Timestamp) -> i64 {
    let since = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    let step = i64::try_from(Priority::STEP.as_micros()).unwrap_or(i64::MAX);
    since.saturating_sub(step.saturating_mul(i64::from(priority.get())))
}

/// Change of the state of a lock. Replaying the events of a lock reconstructs its holders and its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event by the engine's clock.
    pub at: Timestamp,
    /// Lock that the event belongs to.
    pub lock: LockName,
    /// Kind of the event.
    pub kind: EventKind,
    /// Token of the lease; for a ticket, the newest token of the lock.
    pub token: Token,
    /// Id of the request that the lease or ticket belongs to.
    pub lease_id: LeaseId,
    /// Holder of the lease or ticket.
    pub holder: Holder,
    /// Mode of the lease or ticket.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// Maximum number of exclusive holders that the request accepts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Slots,
    /// Time that the request had waited (acquired, withdrawn) or that the lease had been held (released,
    /// expired, stolen, forced, renewed), in µs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after_micros: u64,
    /// Number of renewals of the lease.
    #[serde(default, skip_serializing_if = "is_default")]
    pub renewals: u64,
    /// End of the retention for `at_least`, if the lease was released but still blocks the lock until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Actor of the event, if not the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Holder>,
    /// Reason of the event, if one was given or is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Kind of an event. Renewals are counted on the lease; they are recorded one by one only with
/// [`LockOp::RenewLogged`](crate::LockOp::RenewLogged).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A lease was granted.
    Acquired,
    /// The holder renewed its lease.
    Renewed,
    /// The holder released its lease.
    Released,
    /// The lease expired, or its process died.
    Expired,
    /// The lease was not renewed for the `steal_after` time of another caller, which took it over.
    Stolen,
    /// An operator released the lease by force.
    Forced,
    /// A caller requested the release of the lease.
    ReleaseRequested,
    /// A ticket was added to the queue.
    Queued,
    /// A ticket was withdrawn, or it expired because its waiter disappeared.
    Withdrawn,
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
