//! History events of a lock.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::request::is_default;
use crate::{Holder, LeaseId, LockName, Mode, Reason, Slots, Timestamp, Token};

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
