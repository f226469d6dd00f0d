//! Fencing check that a resource makes: it rejects a token that is older than the newest token it has seen.

use crate::Token;

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
