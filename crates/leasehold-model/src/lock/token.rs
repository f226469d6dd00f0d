//! Fencing token: a number that only rises, whatever happens to the lock or the engine; and the check that
//! a resource makes: it rejects a token that is older than the newest token it has seen.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::validation_error::number_conversions;
use crate::{Timestamp, ValidationError, ValueKind};

/// Fencing token. A higher token was granted later; a resource that stores the highest token it has
/// seen can reject every holder whose lease has ended. Less than 2^53, so that JSON numbers
/// represent it exactly in every language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// Highest possible token.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates a token; fails if the number is 2^53 or more.
    pub fn new(number: u64) -> Result<Self, ValidationError> {
        if number <= Self::MAX.0 {
            return Ok(Self(number));
        }
        let message = format!("{number} is not a token; tokens are below 2^53");
        Err(ValidationError::new(ValueKind::Token, message))
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the token after this one, granted at `now`: `max(previous + 1, now in µs)`.
    ///
    /// The first part makes tokens rise within one record. The second part makes them rise even if
    /// the record is lost: after a restore from a backup, a flush, a failover that lost the last
    /// writes, or a move to another engine.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Self {
        // A clock beyond 2^53 µs (the year 2255) is broken; tokens then only count up, which keeps
        // them in bounds.
        let by_clock = if now.as_micros() <= Self::MAX.0 { now.as_micros() } else { 0 };
        Self((self.0 + 1).max(by_clock).min(Self::MAX.0))
    }
}

number_conversions!(Token, u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::str::FromStr for Token {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let wrong = || format!("'{text}' is not a token; a token is a whole number");
        Self::new(text.parse().map_err(|_| ValidationError::new(ValueKind::Token, wrong()))?)
    }
}

/// State of a fenced resource. Store one with the resource that must not be written by a holder
/// whose lease has ended, and check it before every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fence {
    highest: Token,
}

impl Fence {
    /// Creates a fence whose newest token is `highest`.
    pub const fn at(highest: Token) -> Self {
        Self { highest }
    }

    /// Returns the highest token that the fence has admitted.
    pub const fn highest(&self) -> Token {
        self.highest
    }

    /// Admits a token and records it; fails if a newer token was admitted before.
    pub fn admit(&mut self, token: Token) -> Result<(), StaleToken> {
        if token < self.highest {
            return Err(StaleToken { token, newest: self.highest });
        }
        self.highest = token;
        Ok(())
    }
}

/// Error for a stale token: its lease has ended, or a newer lease was granted since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is stale: {}", if token >= newest { "its lease has ended".to_owned() } else { format!("{newest} is the newest") })]
#[non_exhaustive]
pub struct StaleToken {
    /// Token that the caller presented.
    pub token: Token,
    /// Newest known token.
    pub newest: Token,
}

impl StaleToken {
    /// Creates the error for `token`, with the newest known token.
    pub const fn new(token: Token, newest: Token) -> Self {
        Self { token, newest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_clock_and_never_falls() {
        let first = Token::default().next(Timestamp::from_micros(100));
        assert_eq!(first.get(), 100);
        assert_eq!(first.next(Timestamp::from_micros(50)).get(), 101);
        assert_eq!(first.next(Timestamp::from_micros(u64::MAX)).get(), 101);
    }

    #[test]
    fn it_is_read_with_its_bound() {
        assert!("9007199254740991".parse::<Token>().is_ok());
        for text in ["9007199254740992", "-1", "", "abc", "1.0"] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Token>("9007199254740992").is_err(), "also in JSON");
    }

    #[test]
    fn an_older_token_is_refused() {
        let [old, new] = [1, 2].map(|n| Token::new(n).unwrap());
        let mut fence = Fence::default();
        fence.admit(old).unwrap();
        fence.admit(old).unwrap();
        fence.admit(new).unwrap();
        assert_eq!(fence.admit(old), Err(StaleToken { token: old, newest: new }));
        assert_eq!(fence.highest(), new);
    }
}
