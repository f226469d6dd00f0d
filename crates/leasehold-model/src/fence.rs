//! The check that a resource makes: no token older than the newest it has seen.

use super::Token;

/// The memory of a fenced resource. Keep one beside the thing that must not be written by a holder whose time is
/// over, and ask it before every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fence {
    highest: Token,
}

impl Fence {
    /// A fence that remembers `highest`.
    pub const fn at(highest: Token) -> Self {
        Self { highest }
    }

    /// The highest token seen so far.
    pub const fn highest(&self) -> Token {
        self.highest
    }

    /// Lets a token pass and remembers it, unless a newer one has passed before.
    pub fn admit(&mut self, token: Token) -> Result<(), StaleToken> {
        if token < self.highest {
            return Err(StaleToken { token, newest: self.highest });
        }
        self.highest = token;
        Ok(())
    }
}

/// The token is old: its lease has ended, or somebody was granted the lock since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is stale: {}", if token >= newest { "its lease has ended".to_owned() } else { format!("{newest} is the newest") })]
pub struct StaleToken {
    /// What was shown.
    pub token: Token,
    /// The newest known.
    pub newest: Token,
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
