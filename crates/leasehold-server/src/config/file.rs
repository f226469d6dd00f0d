//! Structure of the settings file. Unknown keys are rejected, because a typo would otherwise go
//! unnoticed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use leasehold::model::{CronExpression, QueueName, Reuse, ScheduleName, TimeZoneName, WorkflowName};
use serde::Deserialize;
use toml::Spanned;

use super::values::{
    DurationSetting, Interval, Jitter, RetentionSetting, SecretSource, TriggerId, TtlSetting, VariableName,
};
use crate::access::{Hash, Role, Scope};
use crate::webhooks::{Condition, Pattern, Pointer, Scheme};

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
    pub(super) runner: Option<Spanned<RunnerSetting>>,
    pub(super) command: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub(super) environment: Vec<VariableName>,
    pub(super) directory: Option<PathBuf>,
    #[serde(default)]
    pub(super) on_locked: OnLockedSetting,
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
    pub(super) on_locked: Option<OnLockedSetting>,
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
#[serde(rename_all = "lowercase")]
pub(super) enum OnLockedSetting {
    #[default]
    Reject,
    Queue,
    Skip,
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
