//! Value types of the settings file: durations, intervals, secrets and names.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use leasehold::model::{Retention, Schedule, Ttl, ValidationError, parse_duration};
use serde::Deserialize;

/// Duration such as `30s`, `10m` or `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct DurationSetting(pub(super) Duration);

impl TryFrom<String> for DurationSetting {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        parse_duration(&text).map(Self)
    }
}

/// Duration such as `30s`, `10m` or `1h`; must not be zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct TtlSetting(pub(super) Ttl);

impl TryFrom<String> for TtlSetting {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Ttl::new(parse_duration(&text)?).map(Self)
    }
}

/// Interval from `10ms` to `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Interval(pub(super) Duration);

impl TryFrom<String> for Interval {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        let every = parse_duration(&text)?;
        if (Duration::from_millis(10)..=Duration::from_hours(24)).contains(&every) {
            return Ok(Self(every));
        }
        Err(ValidationError::other(format!("invalid interval {text}: must be 10ms to 1d")))
    }
}

/// Maximum random delay of a scheduled task after its tick: up to `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Jitter(pub(super) Ttl);

impl TryFrom<String> for Jitter {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Ttl::new(parse_duration(&text)?).and_then(Schedule::check_jitter).map(Self)
    }
}

/// Retention time: `30s`, `7d`, or `forever`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct RetentionSetting(pub(super) Option<Ttl>);

impl TryFrom<String> for RetentionSetting {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Retention::parse_keep(&text).map(Self)
    }
}

/// Source of a secret: `env:NAME`, `file:PATH`, or the text itself. `Debug` hides the text.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub(super) struct SecretSource(String);

impl From<String> for SecretSource {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSource(…)")
    }
}

impl SecretSource {
    /// Returns the secret. Relative file paths start at the folder of the settings file, and line
    /// breaks at the end of a file are not part of the secret.
    pub(super) fn read(&self, folder: &Path) -> Result<String, String> {
        if let Some(name) = self.0.strip_prefix("env:") {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty());
            return value.ok_or_else(|| format!("the variable {name} is not set, or is not valid UTF-8"));
        }
        let Some(path) = self.0.strip_prefix("file:") else { return Ok(self.0.clone()) };
        let path = folder.join(path);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(error) => Err(format!("the file {} cannot be read: {error}", path.display())),
        }
    }
}

/// Id of a trigger, as in its URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct TriggerId(pub(super) String);

impl TryFrom<String> for TriggerId {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if (1..=100).contains(&text.len()) && text.bytes().all(is_plain) {
            return Ok(Self(text));
        }
        let rule = "it is part of a URL and must have 1 to 100 letters, digits, '-', '_' or '.'";
        Err(ValidationError::other(format!("invalid trigger id '{text}': {rule}")))
    }
}

/// Name of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct VariableName(pub(super) String);

impl TryFrom<String> for VariableName {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        if text.is_empty() || text.contains(['=', '\0']) {
            return Err(ValidationError::other(format!(
                "invalid variable name '{text}': write the name of the variable, not its value"
            )));
        }
        Ok(Self(text))
    }
}
