//! Outcomes of operations on a lock.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Event, Holder, Lease, LeaseRef, LockName, Mode, Timestamp, Token, format_duration};

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
    /// Leave: neither a ticket nor a lease with that id remains.
    Left,
    /// `RequestRelease`: number of holders that were asked to release.
    Asked(u32),
    /// `ForceRelease`: lease that was ended.
    Forced(Lease),
    /// `Renew`, `Release`, `RequestRelease`, `ForceRelease`: there is no live lease with that id and token.
    NotHeld(NotHeld),
    /// Sweep and Restarted: counts of the removed leases and tickets.
    Swept(Swept),
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
    pub served: u32,
}

impl std::ops::AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.leases += other.leases;
        self.tickets += other.tickets;
        self.served += other.served;
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
            [one] => {
                format!(
                    "lock '{name}' held by {} until {}{}{queue}",
                    one.holder,
                    one.until,
                    self.countdown(one)
                )
            }
            [first, rest @ ..] => format!(
                "lock '{name}' held by {} until {}{} and {} more{queue}",
                first.holder,
                first.until,
                self.countdown(first),
                rest.len()
            ),
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
