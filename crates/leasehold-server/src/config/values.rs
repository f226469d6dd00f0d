//! Durations, secrets and commands as they are written in the file.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use leasehold::model::{Invalid, Retention, Ttl, parse_duration};
use serde::Deserialize;

/// `30s`, `10m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) Duration);

impl TryFrom<String> for Span {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        parse_duration(&text).map(Self)
    }
}

/// `30s`, `10m`, `1h`, and not nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Lasting(pub(super) Ttl);

impl TryFrom<String> for Lasting {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        Ttl::new(parse_duration(&text)?).map(Self)
    }
}

/// How long something is kept: `30s`, `7d`, or `forever`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Keeping(pub(super) Option<Ttl>);

impl TryFrom<String> for Keeping {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        Retention::parse_keep(&text).map(Self)
    }
}

/// Where a secret is: `env:NAME`, `file:PATH`, or the text itself. Never shown.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub(super) struct SecretPlace(String);

impl From<String> for SecretPlace {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for SecretPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretPlace(…)")
    }
}

impl SecretPlace {
    /// The secret itself. Files are looked for beside the settings, and a line break at their end is none of the secret.
    pub(super) fn open(&self, folder: &Path) -> Result<String, String> {
        if let Some(name) = self.0.strip_prefix("env:") {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty());
            return value.ok_or_else(|| format!("the variable {name} is not set, or no text"));
        }
        let Some(path) = self.0.strip_prefix("file:") else { return Ok(self.0.clone()) };
        let path = folder.join(path);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(error) => Err(format!("the file {} cannot be read: {error}", path.display())),
        }
    }
}

/// The name that a trigger has in its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct TriggerId(pub(super) String);

impl TryFrom<String> for TriggerId {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if (1..=100).contains(&text.len()) && text.bytes().all(plain) {
            return Ok(Self(text));
        }
        let rule = "letters, digits, '-', '_' and '.', at most 100";
        Err(Invalid(format!("'{text}' cannot be a trigger's id: it is part of an address, and has {rule}")))
    }
}

/// The name of a variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct VariableName(pub(super) String);

impl TryFrom<String> for VariableName {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        if text.is_empty() || text.contains(['=', '\0']) {
            return Err(Invalid(format!("'{text}' is no name of a variable; values do not stand here")));
        }
        Ok(Self(text))
    }
}
