//! Outcomes of operations on a lock.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Event, Holder, Lease, LeaseRef, LockName, LockRecord, Mode, Timestamp, Token, format_duration};

/// Result of applying one operation: the response, the events that the engine has to write, and the
/// waiters that it has to notify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Response for the caller.
    pub outcome: Outcome,
    /// Events to write in the same atomic step as the record.
    pub events: Vec<Event>,
    /// Leases that were granted to tickets. The engine notifies their waiters and no others.
    pub handed_over: Vec<Lease>,
    /// Whether the record has changed; if not, nothing needs to be written.
    pub changed: bool,
}

/// Response to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "of", rename_all = "snake_case")]
pub enum Outcome {
    /// Acquire: the lock is granted to the caller.
    Granted(Lease),
    /// Acquire: the caller is queued.
    Queued(Queued),
    /// Acquire: another request holds or awaits the lock, and the caller does not wait.
    Conflict(Conflict),
    /// Renew: the lease is extended. The lease contains the release request, if there is one.
    Renewed(Lease),
    /// Release: the lease is released. Contains the lease at its end or, if it is retained for
    /// `at_least`, its current state.
    Released(Lease),
    /// Withdraw: neither a ticket nor a lease with that id remains.
    Withdrawn,
    /// `RequestRelease`: number of holders whose release was requested.
    ReleaseRequested(u32),
    /// `ForceRelease`: lease that was ended.
    Forced(Lease),
    /// `Renew`, `Release`, `RequestRelease`, `ForceRelease`: there is no live lease with that id and token.
    NotHeld(NotHeld),
    /// Sweep and Restarted: counts of the removed leases and tickets.
    Swept(Swept),
}

impl Outcome {
    /// Returns the answer to an acquire.
    pub fn into_acquired(self) -> Result<Acquired, UnexpectedOutcome> {
        match self {
            Self::Granted(lease) => Ok(Acquired::Granted(lease)),
            Self::Queued(queued) => Ok(Acquired::Queued(queued)),
            Self::Conflict(conflict) => Ok(Acquired::Conflict(conflict)),
            other => Err(other.does_not_answer("acquire")),
        }
    }

    /// Returns the answer to a renewal: the extended lease.
    pub fn into_renewed(self) -> Result<Result<Lease, NotHeld>, UnexpectedOutcome> {
        match self {
            Self::Renewed(lease) => Ok(Ok(lease)),
            Self::NotHeld(now) => Ok(Err(now)),
            other => Err(other.does_not_answer("renew")),
        }
    }

    /// Returns the answer to a release: the lease at its end.
    pub fn into_released(self) -> Result<Result<Lease, NotHeld>, UnexpectedOutcome> {
        match self {
            Self::Released(lease) => Ok(Ok(lease)),
            Self::NotHeld(now) => Ok(Err(now)),
            other => Err(other.does_not_answer("release")),
        }
    }

    /// Returns the answer to a release request: the number of holders whose release was requested.
    pub fn into_release_requested(self) -> Result<Result<u32, NotHeld>, UnexpectedOutcome> {
        match self {
            Self::ReleaseRequested(holders) => Ok(Ok(holders)),
            Self::NotHeld(now) => Ok(Err(now)),
            other => Err(other.does_not_answer("request_release")),
        }
    }

    /// Returns the answer to a forced release: the lease that was ended.
    pub fn into_forced(self) -> Result<Result<Lease, NotHeld>, UnexpectedOutcome> {
        match self {
            Self::Forced(lease) => Ok(Ok(lease)),
            Self::NotHeld(now) => Ok(Err(now)),
            other => Err(other.does_not_answer("force_release")),
        }
    }

    fn does_not_answer(&self, operation: &'static str) -> UnexpectedOutcome {
        let outcome = match self {
            Self::Granted(_) => "granted",
            Self::Queued(_) => "queued",
            Self::Conflict(_) => "conflict",
            Self::Renewed(_) => "renewed",
            Self::Released(_) => "released",
            Self::Withdrawn => "withdrawn",
            Self::ReleaseRequested(_) => "release_requested",
            Self::Forced(_) => "forced",
            Self::NotHeld(_) => "not_held",
            Self::Swept(_) => "swept",
        };
        UnexpectedOutcome { operation, outcome }
    }
}

/// Answer to an acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The lock is granted to the caller.
    Granted(Lease),
    /// The caller is queued.
    Queued(Queued),
    /// Another request holds or awaits the lock, and the caller does not wait.
    Conflict(Conflict),
}

/// Error for an outcome that does not answer the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operation '{operation}' was answered with '{outcome}'")]
#[non_exhaustive]
pub struct UnexpectedOutcome {
    /// Operation that was requested.
    pub operation: &'static str,
    /// Outcome that was received.
    pub outcome: &'static str,
}

/// Place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Queued {
    /// Number of tickets ahead of the caller.
    pub ahead: u32,
    /// Holders and waiters that the request conflicts with.
    pub conflict: Conflict,
}

/// Holders and waiters that a request conflicts with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conflict {
    /// Live leases, oldest first.
    pub holders: Vec<HeldBy>,
    /// Number of waiters.
    pub waiters: u32,
    /// Whether the lock has the maximum number of holders or waiters that a record can store.
    pub full: bool,
    /// Store time of the rejection. `None` in the response to a queued request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Timestamp>,
}

/// Public view of a live lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeldBy {
    /// Holder of the lease.
    pub holder: Holder,
    /// Public name of the lease; `None` if the holder has no lease, such as a person to whom an
    /// issue is assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRef>,
    /// Mode of the lease.
    pub mode: Mode,
    /// Token of the lease, which a forced release must specify.
    pub token: Token,
    /// Time at which the lease was granted.
    pub since: Timestamp,
    /// Time at which the lease expires unless it is renewed.
    pub until: Timestamp,
}

/// Response to an operation on a lease that is not held: there is no live lease with that id and token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NotHeld {
    /// Newest token of the lock.
    pub token: Token,
    /// Current holders of the lock.
    pub holders: Vec<HeldBy>,
}

/// Counts of what a sweep removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Swept {
    /// Number of leases that had expired or whose processes had died.
    pub leases: u32,
    /// Number of tickets whose waiters no longer wait.
    pub tickets: u32,
    /// Number of waiters that were granted the lock as a result.
    pub granted: u32,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.leases += other.leases;
        self.tickets += other.tickets;
        self.granted += other.granted;
    }
}

impl LockRecord {
    /// Returns the holders and waiters that conflict with a request at `now`.
    pub fn conflict(&self, now: Timestamp) -> Conflict {
        let waiters = u32::try_from(self.waiting(now).count()).unwrap_or(u32::MAX);
        Conflict { holders: self.held_by(now), waiters, full: false, now: Some(now) }
    }

    pub(crate) fn held_by(&self, now: Timestamp) -> Vec<HeldBy> {
        self.live(now).map(HeldBy::from).collect()
    }
}

impl From<&Lease> for HeldBy {
    fn from(lease: &Lease) -> Self {
        Self {
            holder: lease.request.holder.clone(),
            lease: Some(LeaseRef::of(&lease.request.lease_id)),
            mode: lease.request.mode,
            token: lease.token,
            since: lease.acquired_at,
            until: lease.expires_at,
        }
    }
}

impl Conflict {
    /// Returns a message for end users: the holder, the expiry time and the number of waiters.
    pub fn describe(&self, name: &LockName) -> impl fmt::Display {
        let queue = match self.waiters {
            0 => String::new(),
            1 => "; 1 waits".to_owned(),
            n => format!("; {n} wait"),
        };
        match self.holders.as_slice() {
            _ if self.full => {
                format!("lock '{name}' is full: it has as many holders or waiters as a lock can have{queue}")
            }
            [] => format!("lock '{name}' is promised to those who wait{queue}"),
            [first @ HeldBy { holder, until, .. }, rest @ ..] => {
                let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                let countdown = self.countdown(first);
                format!("lock '{name}' held by {holder} until {until}{countdown}{more}{queue}")
            }
        }
    }

    /// Returns the remaining time of the lease at the time of the rejection, unless the lease is
    /// renewed. Returns `None` if the time of the rejection is unknown or the lease never expires.
    pub fn left(&self, held: &HeldBy) -> Option<Duration> {
        let endless = held.until >= Timestamp::from_micros(u64::MAX);
        self.now.filter(|_| !endless).map(|now| held.until.since(now))
    }

    fn countdown(&self, held: &HeldBy) -> String {
        let left = self.left(held).filter(|left| *left > Duration::ZERO);
        // Precision below one second is not useful to readers.
        let round =
            |left: Duration| if left.as_secs() > 0 { Duration::from_secs(left.as_secs()) } else { left };
        left.map(|left| format!(" (in {})", format_duration(round(left)))).unwrap_or_default()
    }
}
