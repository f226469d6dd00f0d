//! One lock as it is stored: its holders, its queue, its token.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Ask, Conflict, HeldBy, Holder, LeaseId, LeaseRef, LockName, Reason, Timestamp, Token, Ttl,
    format_duration,
};

/// One lock. Stored until nobody has used it for long; see [`TokenFloor`](super::TokenFloor) for its token after that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRecord {
    /// Its name.
    pub name: LockName,
    /// The newest token; outlives every lease.
    pub token: Token,
    /// The leases, oldest first. Some may have ended since the last operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Lease>,
    /// The tickets, next first. Some may have ended since the last operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiters: Vec<Ticket>,
    /// Counts every change.
    pub version: u64,
}

/// A grant that ends by itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Who asked for what.
    pub ask: Arc<Ask>,
    /// The fencing token of this grant.
    pub token: Token,
    /// Since when.
    pub acquired_at: Timestamp,
    /// Last sign of life.
    pub renewed_at: Timestamp,
    /// Until when. From this very moment on it does not count.
    pub expires_at: Timestamp,
    /// How often it was renewed.
    #[serde(default)]
    pub renewals: u64,
    /// Where it stands.
    #[serde(default)]
    pub status: Status,
    /// Who asked the holder to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The lease that this one replaced although it had not been released. Set in the answer that grants the lease, never
    /// in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_over: Option<Box<TookOver>>,
}

/// A lease that ended without a release, and in whose place another was granted in the same step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TookOver {
    /// Its holder.
    pub holder: Holder,
    /// Its token.
    pub token: Token,
    /// Its last renewal.
    pub renewed_at: Timestamp,
    /// The end of its time. It may be later than the grant, if the lease was stolen or its process was gone.
    pub expires_at: Timestamp,
}

impl TookOver {
    /// Describes a lease that ends.
    pub fn of(lease: &Lease) -> Self {
        Self {
            holder: lease.ask.holder.clone(),
            token: lease.token,
            renewed_at: lease.renewed_at,
            expires_at: lease.expires_at,
        }
    }

    /// Returns how it ended, in words, as of the grant of the next lease.
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

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Its holder is at work.
    #[default]
    Active,
    /// Its holder has been asked to stop.
    Releasing,
    /// Its holder is done; it only keeps others out until its `at_least` time is over.
    Released,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Releasing => "releasing",
            Self::Released => "released",
        })
    }
}

/// A request to the holder to stop.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    /// Who asks.
    pub by: Holder,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When.
    pub at: Timestamp,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// Who asks for what.
    pub ask: Arc<Ask>,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless the waiter asks again.
    pub expires_at: Timestamp,
    /// How long the ticket lives from each asking, and how long the waiter has to take up the lock once it is its turn.
    pub patience: Ttl,
}

impl LockRecord {
    /// A lock that nobody has asked for yet.
    pub fn new(name: LockName) -> Self {
        Self { name, token: Token::default(), holders: Vec::new(), waiters: Vec::new(), version: 0 }
    }

    /// The lease with that id.
    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.holders.iter().find(|lease| lease.ask.lease_id == *id)
    }

    /// The leases that count at `now`.
    pub fn live(&self, now: Timestamp) -> impl Iterator<Item = &Lease> {
        self.holders.iter().filter(move |lease| now < lease.expires_at)
    }

    /// The tickets that count at `now`, next first.
    pub fn waiting(&self, now: Timestamp) -> impl Iterator<Item = &Ticket> {
        self.waiters.iter().filter(move |ticket| now < ticket.expires_at)
    }

    /// When something of this lock ends next: the time to sweep it at.
    pub fn next_end(&self) -> Option<Timestamp> {
        let leases = self.holders.iter().map(|lease| lease.expires_at);
        leases.chain(self.waiters.iter().map(|ticket| ticket.expires_at)).min()
    }

    /// Who is in the way at `now`.
    pub fn conflict(&self, now: Timestamp) -> Conflict {
        let waiters = u32::try_from(self.waiting(now).count()).unwrap_or(u32::MAX);
        Conflict { holders: self.held_by(now), waiters, full: false, now: Some(now) }
    }

    pub(super) fn held_by(&self, now: Timestamp) -> Vec<HeldBy> {
        self.live(now).map(HeldBy::from).collect()
    }
}

impl Lease {
    /// How long it has been held at `now`.
    pub fn held_for(&self, now: Timestamp) -> Duration {
        now.since(self.acquired_at)
    }
}

impl From<&Lease> for HeldBy {
    fn from(lease: &Lease) -> Self {
        Self {
            holder: lease.ask.holder.clone(),
            lease: Some(LeaseRef::of(&lease.ask.lease_id)),
            mode: lease.ask.mode,
            token: lease.token,
            since: lease.acquired_at,
            until: lease.expires_at,
        }
    }
}
