//! One line of history.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ask::is_default;
use super::{Holder, LeaseId, LockName, Mode, Reason, Slots, Timestamp, Token};

/// Something that happened to a lock. Replaying a lock's events gives its holders and its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// When, by the engine's clock.
    pub at: Timestamp,
    /// To which lock.
    pub lock: LockName,
    /// What.
    pub kind: EventKind,
    /// The token of the lease; for a ticket, the newest token of the lock.
    pub token: Token,
    /// Whose request.
    pub lease_id: LeaseId,
    /// Who.
    pub holder: Holder,
    /// Alone or with others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// Among how many.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slots: Slots,
    /// How long it had waited (acquired, left) or held (released, expired, stolen, forced, renewed), in µs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after_micros: u64,
    /// How often the lease had been renewed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub renewals: u64,
    /// Released, and yet kept until then for its `at_least` time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Who did it, if it was not the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Holder>,
    /// Why, if a reason was given or there is one to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// What happened. Renewals are counted on the lease; they are written one by one only where
/// [`LockOp::RenewLogged`](super::LockOp::RenewLogged) asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A lease began.
    Acquired,
    /// Its holder renewed it.
    Renewed,
    /// Its holder gave it back.
    Released,
    /// Its time ran out, or its process was gone.
    Expired,
    /// It was not renewed for long enough that a waiter took it.
    Stolen,
    /// Somebody took it by force.
    Forced,
    /// Somebody asked for it.
    Asked,
    /// A ticket was drawn.
    Queued,
    /// A ticket was given up, or its waiter vanished.
    Left,
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Acquired => "acquired",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Stolen => "stolen",
            Self::Forced => "forced",
            Self::Asked => "asked",
            Self::Queued => "queued",
            Self::Left => "left",
        })
    }
}
