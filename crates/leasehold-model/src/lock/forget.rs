//! Removal of unused locks: which records may be removed, and the minimum token that keeps tokens
//! rising after the removal.

use serde::{Deserialize, Serialize};

use crate::{LockName, LockRecord, Timestamp, Token, Ttl};

/// Highest token that may have been granted for locks whose records were removed. A store has one
/// floor. The floor never falls, and it is raised before a record is removed or in the same atomic
/// step. The tokens of a lock without a record begin above the floor.
///
/// With a monotonic clock the floor has no effect: tokens follow the clock, and removed tokens are
/// older than the clock by at least the idle time. The floor protects against a clock that was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenFloor(Token);

impl TokenFloor {
    /// Creates a floor at this token.
    pub const fn at(token: Token) -> Self {
        Self(token)
    }

    /// Returns the highest token that a removed lock may have granted.
    pub const fn token(self) -> Token {
        self.0
    }

    /// Returns the floor for removing, at `now`, locks that have not been granted for `idle`.
    #[must_use]
    pub fn raised(self, now: Timestamp, idle: Ttl) -> Self {
        let granted_until = now.minus(idle.as_duration()).as_micros().min(Token::MAX.get());
        Self(self.0.max(Token::new(granted_until).unwrap_or_default()))
    }
}

impl LockRecord {
    /// Creates the record of a lock that has none: no caller has requested it yet, or its record was removed.
    pub fn without_record(name: LockName, floor: TokenFloor) -> Self {
        Self { token: floor.token(), ..Self::new(name) }
    }

    /// Returns whether this record may be removed from a store whose floor is `floor`: the lock has
    /// no lease, not even one that is retained for `at_least`, no ticket, and no token above the
    /// floor. Leases and tickets that have expired since the last operation still count; a sweep
    /// removes them from the record.
    pub fn is_forgettable(&self, floor: TokenFloor) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.token <= floor.token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_follows_the_clock_and_never_falls() {
        let (early, late) = (Timestamp::from_micros(10_000_000), Timestamp::from_micros(90_000_000));
        let floor = TokenFloor::default().raised(late, Ttl::from_secs(60));
        assert_eq!(floor.token().get(), 30_000_000);
        assert_eq!(floor.raised(early, Ttl::from_secs(1)), floor);
        assert_eq!(TokenFloor::default().raised(early, Ttl::from_secs(60)), TokenFloor::default());
    }

    #[test]
    fn a_lock_without_a_record_begins_above_the_floor() {
        let floor = TokenFloor::at(Token::new(500).unwrap());
        let record = LockRecord::without_record(LockName::new("lock").unwrap(), floor);
        assert_eq!(record.token.next(Timestamp::from_micros(7)).get(), 501);
        assert!(record.is_forgettable(floor));
        assert!(!record.is_forgettable(TokenFloor::default()));
    }
}
