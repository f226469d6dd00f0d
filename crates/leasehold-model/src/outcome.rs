//! What is answered to an operation.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Event, Holder, Lease, LeaseRef, LockName, Mode, Timestamp, Token, format_duration};

/// What came of applying one operation: the answer, and what the engine has to write and whom it has to wake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The answer for the caller.
    pub outcome: Outcome,
    /// To be written in the same atomic step as the record.
    pub events: Vec<Event>,
    /// Leases that tickets have turned into: their waiters, and nobody else, are to be woken.
    pub handed_over: Vec<Lease>,
    /// Whether the record is another than before; if not, nothing needs to be written.
    pub changed: bool,
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "of", rename_all = "snake_case")]
pub enum Outcome {
    /// Acquire: the lock is yours.
    Granted(Lease),
    /// Acquire: you are in the queue.
    Queued(Queued),
    /// Acquire: somebody is in the way, and you did not want to wait.
    Busy(Conflict),
    /// Renew: longer it is. The lease says if somebody asked for it.
    Renewed(Lease),
    /// Release: given back. The lease as it ended, or, kept for its `at_least` time, as it stands.
    Released(Lease),
    /// Leave: neither ticket nor lease with that id is left.
    Left,
    /// `AskRelease`: so many holders were asked.
    Asked(u32),
    /// `ForceRelease`: taken from this lease.
    Forced(Lease),
    /// `Renew`, `Release`, `AskRelease`, `ForceRelease`: no live lease with that id and token.
    NotHeld(NotHeld),
    /// Sweep and Restarted: what was cleared away.
    Swept(Swept),
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Queued {
    /// How many are before you.
    pub ahead: u32,
    /// Who is in the way.
    pub conflict: Conflict,
}

/// Who is in the way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conflict {
    /// The live leases, oldest first.
    pub holders: Vec<HeldBy>,
    /// How many wait.
    pub waiters: u32,
    /// Whether the lock has as many holders or waiters as a record can keep.
    pub full: bool,
    /// The store's time of a refusal. None in the answer to a request that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Timestamp>,
}

/// One live lease, as others may see it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeldBy {
    /// Who.
    pub holder: Holder,
    /// The public name of its lease; none if no lease is behind it, as with a person that an issue is assigned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRef>,
    /// Alone or with others.
    pub mode: Mode,
    /// Its token: what a force-release has to name.
    pub token: Token,
    /// Since when.
    pub since: Timestamp,
    /// Until when, unless renewed.
    pub until: Timestamp,
}

/// No live lease with that id and token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NotHeld {
    /// The newest token of the lock.
    pub token: Token,
    /// Who has the lock now.
    pub holders: Vec<HeldBy>,
}

/// What a sweep cleared away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Swept {
    /// Leases that had ended, or whose processes were gone.
    pub leases: u32,
    /// Tickets of waiters that no longer wait.
    pub tickets: u32,
    /// Waiters that were served because of it.
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
    /// The sentence that people read: who has it, since when it cannot be had, and how many wait.
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

    /// Returns how long the lease lasts from the refusal on, unless it is renewed. None if the time of the refusal is not
    /// known, or the lease has no end.
    pub fn left(&self, held: &HeldBy) -> Option<Duration> {
        let endless = held.until >= Timestamp::from_micros(u64::MAX);
        self.now.filter(|_| !endless).map(|now| held.until.since(now))
    }

    fn countdown(&self, held: &HeldBy) -> String {
        let left = self.left(held).filter(|left| *left > Duration::ZERO);
        // Whole seconds are enough for a person.
        let round =
            |left: Duration| if left.as_secs() > 0 { Duration::from_secs(left.as_secs()) } else { left };
        left.map(|left| format!(" (in {})", format_duration(round(left)))).unwrap_or_default()
    }
}
