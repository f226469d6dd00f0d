//! API token: its text, and the hash that is stored. The secret is random and long, so a plain hash
//! protects it at rest.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::ValidationError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::{Role, Scope};

const PREFIX: &str = "lh_";

/// Text of a token: `lh_<id>_<secret>`. The id locates the token, the secret authenticates it.
pub(crate) struct TokenText {
    pub(crate) id: String,
    secret: String,
}

impl TokenText {
    /// Generates a new token.
    pub(crate) fn random() -> Self {
        let id = Uuid::new_v4().simple().to_string()[..12].to_owned();
        let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
        let secret = URL_SAFE_NO_PAD.encode([*one.as_bytes(), *two.as_bytes()].concat());
        Self { id, secret }
    }

    /// Parses the credentials of a request. Returns `None` for text that is not a token.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_valid = id.len() == 12 && is_plain(id) && !secret.is_empty() && secret.len() <= 128;
        is_valid.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// Returns the full text, meant only for the owner of the token.
    pub(crate) fn expose(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    /// Returns the hash to store.
    pub(crate) fn hash(&self) -> Hash {
        Hash::of(&self.expose())
    }
}

/// Stored hash of a token's text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether this is the hash of `text`. Compares in constant time.
    pub(crate) fn is_of(&self, text: &TokenText) -> bool {
        self.0.ct_eq(&text.hash().0).into()
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        hash.to_string()
    }
}

impl FromStr for Hash {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let invalid = || {
            ValidationError::other(
                "invalid token hash: must be sha256:…, as printed by `leasehold token new --print-hash`",
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix("sha256:").ok_or_else(invalid)?);
        bytes.ok().and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(invalid)
    }
}

impl TryFrom<String> for Hash {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        text.parse()
    }
}

/// Token defined in the settings instead of the store.
#[derive(Debug, Clone)]
pub struct FixedToken {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) hash: Hash,
    pub(crate) scopes: Vec<Scope>,
}

impl FixedToken {
    /// Creates a token from its hash, as printed by `leasehold token new --print-hash`.
    pub fn new(name: impl Into<String>, role: Role, hash: &str) -> Result<Self, ValidationError> {
        Ok(Self { name: name.into(), role, hash: hash.parse()?, scopes: Vec::new() })
    }

    /// Creates a token from its text; `None` if the text is not a token.
    pub fn of_text(name: impl Into<String>, role: Role, text: &str) -> Option<Self> {
        TokenText::parse(text).map(|text| Self {
            name: name.into(),
            role,
            hash: text.hash(),
            scopes: Vec::new(),
        })
    }

    pub(crate) fn of(name: &str, role: Role, hash: Hash) -> Self {
        Self { name: name.to_owned(), role, hash, scopes: Vec::new() }
    }

    /// Limits the token to these scopes.
    #[must_use]
    pub fn scopes(mut self, scopes: Vec<Scope>) -> Self {
        self.scopes = scopes;
        self
    }

    /// Generates a token without storing it. Returns its text, for the owner, and its hash, for the
    /// settings.
    pub fn generate() -> (String, String) {
        let text = TokenText::random();
        (text.expose(), text.hash().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_matches_only_the_text_of_its_token() {
        let token = TokenText::random();
        let read = TokenText::parse(&token.expose()).unwrap();
        assert!(token.hash().is_of(&read));
        assert!(!token.hash().is_of(&TokenText::random()));
        let mut other = token.expose();
        other.push('x');
        assert!(!token.hash().is_of(&TokenText::parse(&other).unwrap()));
    }

    #[test]
    fn text_that_is_not_a_token_is_rejected() {
        for text in ["", "lh_", "lh_short_x", "Bearer x", "lh_0123456789ab_", "lh_0123456789ä_x"] {
            assert!(TokenText::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_hash_survives_the_round_trip_through_its_text() {
        let hash = TokenText::random().hash();
        assert_eq!(hash.to_string().parse::<Hash>().unwrap(), hash);
        assert!("sha256:abc".parse::<Hash>().is_err());
    }
}
