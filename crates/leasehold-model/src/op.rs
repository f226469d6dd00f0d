//! What can be asked of a lock. Operations are data: they can be stored, sent, replayed and checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ask, BootId, Holder, LeaseId, Reason, Token, Ttl};

/// One operation on one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum LockOp {
    /// Take the lock, or a place in its queue.
    Acquire(Acquire),
    /// Hold it longer.
    Renew(Renew),
    /// Hold it longer, and write that into the history.
    RenewLogged(Renew),
    /// Give it back; the next in the queue gets it in the same step.
    Release(Release),
    /// Take an acquire back whose answer never came, or give up waiting.
    Leave(Leave),
    /// Ask the holder to stop when it can.
    AskRelease(AskRelease),
    /// Take it from its holder, now.
    ForceRelease(ForceRelease),
    /// Clear away what has ended.
    Sweep(Sweep),
    /// The engine's host has started anew.
    Restarted(Restarted),
}

impl LockOp {
    /// The request that it is about, if it is about one.
    pub fn lease_id(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire(acquire) => Some(acquire.ask.lease_id),
            Self::Renew(renew) | Self::RenewLogged(renew) => Some(renew.lease_id),
            Self::Release(release) => Some(release.lease_id),
            Self::Leave(leave) => Some(leave.lease_id),
            Self::AskRelease(_) | Self::ForceRelease(_) | Self::Sweep(_) | Self::Restarted(_) => None,
        }
    }

    /// Whether a store may send it again by itself after an answer was lost: the second time it changes nothing more, and
    /// is answered as the first. A release, a forced release and a request to release are not: once done, they are
    /// answered with [`NotHeld`](super::Outcome::NotHeld), or ask and record a second time. Only the caller, which knows
    /// that an answer was lost, can tell what that means; so the store returns a retryable error instead.
    pub const fn is_repeatable(&self) -> bool {
        match self {
            Self::Acquire(_)
            | Self::Renew(_)
            | Self::RenewLogged(_)
            | Self::Leave(_)
            | Self::Sweep(_)
            | Self::Restarted(_) => true,
            Self::Release(_) | Self::AskRelease(_) | Self::ForceRelease(_) => false,
        }
    }
}

/// Take the lock, or a place in its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Acquire {
    /// Who asks for what.
    pub ask: Arc<Ask>,
    /// Wait in the queue: how long the ticket lives unless this operation is sent again.
    #[serde(default)]
    pub queue: Option<Ttl>,
    /// Also take a lease that has not been renewed for so long, although it has not ended.
    #[serde(default)]
    pub steal_after: Option<Ttl>,
}

/// Hold it longer: counts from now.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renew {
    /// The lease…
    pub lease_id: LeaseId,
    /// …and the token it was granted with.
    pub token: Token,
    /// From now on last so long; else as long as before.
    #[serde(default)]
    pub ttl: Option<Ttl>,
}

/// Give it back.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Release {
    /// The lease…
    pub lease_id: LeaseId,
    /// …and the token it was granted with.
    pub token: Token,
    /// Keep everybody out until so long after it was acquired, although nobody works any more.
    #[serde(default)]
    pub at_least: Option<Ttl>,
}

/// Give up. Needs no token: only the caller that made the id knows it, and it may have missed its grant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leave {
    /// The request that is taken back, whatever became of it.
    pub lease_id: LeaseId,
}

/// Ask the holder to stop when it can.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AskRelease {
    /// Only the lease with this token; else every holder.
    #[serde(default)]
    pub token: Option<Token>,
    /// Who asks.
    pub by: Holder,
    /// Why.
    #[serde(default)]
    pub reason: Option<Reason>,
}

/// Take it from its holder, now. The holder may still be at work: its token is old from here on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForceRelease {
    /// The token that the caller saw: if the lock has moved on, nothing happens.
    pub token: Token,
    /// Who does it.
    pub by: Holder,
    /// Why.
    pub reason: Reason,
}

/// Clear away what has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Sweep {
    /// Requests whose processes the engine has seen to be gone: they end now, whatever their time.
    #[serde(default)]
    pub dead: Vec<LeaseId>,
}

/// The engine's host has started anew, and with it the engine's clock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Restarted {
    /// The boot that is over: whatever its processes held is free.
    pub boot: BootId,
}
