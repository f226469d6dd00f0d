//! Structure of the settings file. Unknown keys are rejected, because a typo would otherwise go unnoticed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use leasehold::model::{CronExpression, QueueName, Reuse, ScheduleName, TimeZoneName, WorkflowName};
use serde::Deserialize;
use toml::Spanned;

use super::values::{Interval, Jitter, Keeping, Lasting, SecretPlace, Span, TriggerId, VariableName};
use crate::access::{Hash, Role, Scope};
use crate::webhooks::{Condition, Pattern, Pointer, Scheme};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) store: Option<Spanned<String>>,
    pub(super) listen: Option<SocketAddr>,
    #[serde(default)]
    pub(super) open: bool,
    pub(super) grace: Option<Span>,
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
    pub(super) body_time: Option<Span>,
    pub(super) header_time: Option<Span>,
    pub(super) idle_time: Option<Span>,
    pub(super) wait: Option<Span>,
    pub(super) write_time: Option<Span>,
    pub(super) connections: Option<usize>,
    pub(super) connections_per_address: Option<usize>,
    pub(super) requests_per_token: Option<usize>,
    pub(super) forget_locks_after: Option<Span>,
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
    pub(super) ttl: Option<Lasting>,
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
    pub(super) succeeded: Option<Keeping>,
    pub(super) failed: Option<Keeping>,
    pub(super) aborted: Option<Keeping>,
    #[serde(default)]
    pub(super) queues: BTreeMap<QueueName, QueueRetentionPart>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueRetentionPart {
    pub(super) succeeded: Option<Keeping>,
    pub(super) failed: Option<Keeping>,
    pub(super) aborted: Option<Keeping>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TerraformPart {
    pub(super) ttl: Option<Lasting>,
    pub(super) state_bytes: Option<usize>,
    pub(super) versions: Option<usize>,
    pub(super) versions_for: Option<Lasting>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenPart {
    pub(super) name: leasehold::model::Holder,
    pub(super) role: Role,
    pub(super) hash: Hash,
    #[serde(default)]
    pub(super) scopes: Vec<Scope>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkflowPart {
    pub(super) description: Option<String>,
    pub(super) runner: Option<Spanned<RunnerWord>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub(super) environment: Vec<VariableName>,
    pub(super) directory: Option<PathBuf>,
    #[serde(default)]
    pub(super) on_locked: LockedWord,
    pub(super) queue_limit: Option<Spanned<u32>>,
    pub(super) ttl: Option<Lasting>,
    pub(super) max_runtime: Option<Lasting>,
    #[serde(default)]
    pub(super) reuse: ReuseWord,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerPart {
    pub(super) workflow: Spanned<WorkflowName>,
    pub(super) scheme: Scheme,
    #[serde(default)]
    pub(super) secrets: Vec<Spanned<SecretPlace>>,
    pub(super) events: Option<Spanned<Vec<Pattern>>>,
    pub(super) branches: Option<Spanned<Vec<Pattern>>>,
    pub(super) when: Option<Spanned<Vec<Condition>>>,
    pub(super) key: Option<Pointer>,
    pub(super) on_locked: Option<LockedWord>,
    pub(super) tolerance: Option<Span>,
    pub(super) replay_memory: Option<Spanned<Span>>,
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
pub(super) enum RunnerWord {
    Command,
    External,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LockedWord {
    #[default]
    Reject,
    Queue,
    Skip,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReuseWord {
    #[default]
    FailedOnly,
    Never,
    Always,
}

impl From<ReuseWord> for Reuse {
    fn from(word: ReuseWord) -> Self {
        match word {
            ReuseWord::FailedOnly => Self::Failed,
            ReuseWord::Never => Self::Never,
            ReuseWord::Always => Self::Finished,
        }
    }
}
