//! Structure of the settings file, the types of its values, and errors with the line and the key. Unknown
//! keys are rejected, because a typo would otherwise go unnoticed.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::model::{
    CronExpression, QueueName, Retention, Reuse, Schedule, ScheduleName, TimeZoneName, Ttl, ValidationError,
    WorkflowName, parse_duration,
};
use serde::Deserialize;
use toml::Spanned;

use crate::access::{Hash, Role, Scope, TokenName};
use crate::webhooks::{Condition, Pattern, Pointer, Scheme};
use crate::workflows::OnLockedAction;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) store: Option<Spanned<String>>,
    pub(super) listen: Option<SocketAddr>,
    #[serde(default)]
    pub(super) open: bool,
    pub(super) grace: Option<DurationSetting>,
    pub(super) tls: Option<TlsPart>,
    #[serde(default)]
    pub(super) limits: LimitsPart,
    #[serde(default)]
    pub(super) maintenance: MaintenancePart,
    #[serde(default)]
    pub(super) defaults: DefaultsPart,
    #[serde(default)]
    pub(super) audit: AuditPart,
    #[serde(default)]
    pub(super) dashboard: DashboardPart,
    #[serde(default)]
    pub(super) metrics: MetricsPart,
    #[serde(default)]
    pub(super) retention: RetentionPart,
    #[serde(default)]
    pub(super) terraform: TerraformPart,
    #[serde(default)]
    pub(super) tokens: Vec<TokenPart>,
    #[serde(default)]
    pub(super) workflows: BTreeMap<WorkflowName, Spanned<WorkflowPart>>,
    #[serde(default)]
    pub(super) triggers: BTreeMap<TriggerId, Spanned<TriggerPart>>,
    #[serde(default)]
    pub(super) schedules: Vec<Spanned<SchedulePart>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsPart {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsPart {
    pub(super) body_bytes: Option<usize>,
    pub(super) body_time: Option<DurationSetting>,
    pub(super) header_time: Option<DurationSetting>,
    pub(super) idle_time: Option<DurationSetting>,
    pub(super) wait: Option<DurationSetting>,
    pub(super) write_time: Option<DurationSetting>,
    pub(super) connections: Option<usize>,
    pub(super) connections_per_address: Option<usize>,
    pub(super) requests_per_token: Option<usize>,
    pub(super) forget_locks_after: Option<DurationSetting>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MaintenancePart {
    pub(super) recover_every: Option<Interval>,
    pub(super) sweep_every: Option<Interval>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditPart {
    #[serde(default)]
    pub(super) renewals: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultsPart {
    pub(super) ttl: Option<TtlSetting>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DashboardPart {
    pub(super) enabled: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricsPart {
    #[serde(default)]
    pub(super) open: bool,
    #[serde(default)]
    pub(super) plain_names: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetentionPart {
    pub(super) succeeded: Option<RetentionSetting>,
    pub(super) failed: Option<RetentionSetting>,
    pub(super) aborted: Option<RetentionSetting>,
    #[serde(default)]
    pub(super) queues: BTreeMap<QueueName, QueueRetentionPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueRetentionPart {
    pub(super) succeeded: Option<RetentionSetting>,
    pub(super) failed: Option<RetentionSetting>,
    pub(super) aborted: Option<RetentionSetting>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TerraformPart {
    pub(super) ttl: Option<TtlSetting>,
    pub(super) state_bytes: Option<usize>,
    pub(super) versions: Option<usize>,
    pub(super) versions_for: Option<TtlSetting>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenPart {
    pub(super) name: TokenName,
    pub(super) role: Role,
    pub(super) hash: Hash,
    #[serde(default)]
    pub(super) scopes: Vec<Scope>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkflowPart {
    pub(super) description: Option<String>,
    pub(super) runner: Option<Spanned<RunnerSetting>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub(super) environment: Vec<VariableName>,
    pub(super) directory: Option<PathBuf>,
    #[serde(default)]
    pub(super) on_locked: OnLockedAction,
    pub(super) queue_limit: Option<Spanned<u32>>,
    pub(super) ttl: Option<TtlSetting>,
    pub(super) max_runtime: Option<TtlSetting>,
    #[serde(default)]
    pub(super) reuse: ReuseSetting,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerPart {
    pub(super) workflow: Spanned<WorkflowName>,
    pub(super) scheme: Scheme,
    #[serde(default)]
    pub(super) secrets: Vec<Spanned<SecretSource>>,
    pub(super) events: Option<Spanned<Vec<Pattern>>>,
    pub(super) branches: Option<Spanned<Vec<Pattern>>>,
    pub(super) when: Option<Spanned<Vec<Condition>>>,
    pub(super) key: Option<Pointer>,
    pub(super) on_locked: Option<OnLockedAction>,
    pub(super) tolerance: Option<DurationSetting>,
    pub(super) replay_memory: Option<Spanned<DurationSetting>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulePart {
    pub(super) name: ScheduleName,
    pub(super) cron: CronExpression,
    pub(super) zone: Option<TimeZoneName>,
    pub(super) workflow: Option<Spanned<WorkflowName>>,
    pub(super) queue: Option<QueueName>,
    pub(super) jitter: Option<Jitter>,
    pub(super) input: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RunnerSetting {
    Command,
    External,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReuseSetting {
    #[default]
    FailedOnly,
    Never,
    Always,
}

impl From<ReuseSetting> for Reuse {
    fn from(word: ReuseSetting) -> Self {
        match word {
            ReuseSetting::FailedOnly => Self::Failed,
            ReuseSetting::Never => Self::Never,
            ReuseSetting::Always => Self::Finished,
        }
    }
}

/// Defines settings that are written as a text; the function parses the text.
macro_rules! text_settings {
    ($($(#[$doc:meta])* $type:ident($value:ty) = $parse:path;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub(super) struct $type(pub(super) $value);

        impl TryFrom<String> for $type {
            type Error = ValidationError;
            fn try_from(text: String) -> Result<Self, ValidationError> {
                $parse(&text).map(Self)
            }
        }
    )+};
}

text_settings! {
    /// Duration such as `30s`, `10m` or `1h`.
    DurationSetting(Duration) = parse_duration;
    /// Duration such as `30s`, `10m` or `1h`; must not be zero.
    TtlSetting(Ttl) = parse_ttl;
    /// Interval from `10ms` to `1d`.
    Interval(Duration) = parse_interval;
    /// Maximum random delay of a scheduled task after its tick: up to `1d`.
    Jitter(Ttl) = parse_jitter;
    /// Retention time: `30s`, `7d`, or `forever`.
    RetentionSetting(Option<Ttl>) = Retention::parse_keep;
}

fn parse_ttl(text: &str) -> Result<Ttl, ValidationError> {
    Ttl::new(parse_duration(text)?)
}

fn parse_jitter(text: &str) -> Result<Ttl, ValidationError> {
    parse_ttl(text).and_then(Schedule::check_jitter)
}

fn parse_interval(text: &str) -> Result<Duration, ValidationError> {
    let every = parse_duration(text)?;
    if (Duration::from_millis(10)..=Duration::from_hours(24)).contains(&every) {
        return Ok(every);
    }
    Err(ValidationError::other(format!("invalid interval {text}: must be 10ms to 1d")))
}

/// Source of a secret: `env:NAME`, `file:PATH`, or the text itself. `Debug` hides the text.
#[derive(Clone, Deserialize)]
pub(super) struct SecretSource(String);

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

/// Error in `leasehold.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
    hint: Option<&'static str>,
}

impl ConfigError {
    pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> Self {
        Self { message: format!("{} cannot be read: {error}", file.display()), hint: None }
    }

    /// Returns a suggestion for how to fix the error.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Text of the settings file; finds the line and the key of a position.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Text<'_> {
    pub(super) fn error(&self, at: Option<Range<usize>>, message: impl fmt::Display) -> ConfigError {
        let start = at.map_or(0, |at| at.start.min(self.text.len()));
        let line = 1 + self.text[..start].matches('\n').count();
        let key = self.key(start).map_or_else(String::new, |key| format!(", {key}"));
        ConfigError { message: format!("{}, line {line}{key}: {message}", self.file.display()), hint: None }
    }

    pub(super) fn error_with_hint(
        &self,
        at: Option<Range<usize>>,
        message: impl fmt::Display,
        hint: &'static str,
    ) -> ConfigError {
        ConfigError { hint: Some(hint), ..self.error(at, message) }
    }

    /// Returns the parser's error, unless its message would contain a secret.
    pub(super) fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let start = error.span().map_or(0, |at| at.start.min(self.text.len()));
        match self.key(start).as_deref() {
            Some("'secrets'") => {
                let hint = "write: secrets = [\"env:NAME\", \"file:PATH\"]";
                self.error_with_hint(error.span(), "the secrets are invalid", hint)
            }
            Some("'store'") => {
                let hint = "write: store = \"sqlite:/path/to/leasehold.db\"";
                self.error_with_hint(error.span(), "the store is invalid", hint)
            }
            _ => self.error(error.span(), error.message().trim()),
        }
    }

    /// Returns the key, or the heading, at this position. An item of a list may be some lines below
    /// its key.
    fn key(&self, start: usize) -> Option<String> {
        let begin = self.text[..start].rfind('\n').map_or(0, |end| end + 1);
        let first = self.text[begin..].lines().next()?;
        let is_item = |line: &str| line.starts_with(['"', '\'', '#']) || line.is_empty();
        let mut lines = std::iter::once(first).chain(self.text[..begin].lines().rev()).map(str::trim);
        let line = if is_item(first.trim()) { lines.find(|line| !is_item(line))? } else { lines.next()? };
        if line.starts_with('[') {
            return Some(line.split('#').next()?.trim().to_owned());
        }
        let (key, _) = line.split_once('=')?;
        Some(format!("'{}'", key.trim()))
    }
}
