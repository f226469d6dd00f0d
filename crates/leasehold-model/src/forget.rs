//! Forgetting locks that nobody uses: which ones may be forgotten, and the floor that keeps tokens rising all the same.

use serde::{Deserialize, Serialize};

use super::{LockName, LockRecord, Timestamp, Token, Ttl};

/// Tokens up to this one may have been granted for locks that are forgotten. A store has one; it never falls, and it is
/// raised before, or in the same step in which, a lock is forgotten. A lock without a record begins above it.
///
/// With a clock that only goes forward the floor decides nothing: tokens follow the clock, and what is forgotten is older
/// than the clock by the idle time. It is there for the clock that was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenFloor(Token);

impl TokenFloor {
    /// A floor at this token.
    pub const fn at(token: Token) -> Self {
        Self(token)
    }

    /// The highest token that a forgotten lock may have granted.
    pub const fn token(self) -> Token {
        self.0
    }

    /// The floor for forgetting, at `now`, locks that were not granted for `idle`.
    #[must_use]
    pub fn raised(self, now: Timestamp, idle: Ttl) -> Self {
        let granted_until = now.minus(idle.as_duration()).as_micros().min(Token::MAX.get());
        Self(self.0.max(Token::new(granted_until).unwrap_or_default()))
    }
}

impl LockRecord {
    /// A lock that has no record: one that nobody has asked for yet, or one that is forgotten.
    pub fn without_record(name: LockName, floor: TokenFloor) -> Self {
        Self { token: floor.token(), ..Self::new(name) }
    }

    /// Whether this record may be removed from a store whose floor is at `floor`: no lease, not even one that only keeps
    /// others out for a while, no ticket, and no token above the floor. Leases and tickets that have ended since the last
    /// operation count too: a sweep writes down that they have.
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
