//! A queue with its counts, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::task::exact;
use crate::model::{QueueStatus, Retention, TaskState, Ttl};

/// One queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    /// Its name.
    pub queue: String,
    /// How many tasks it has in each state.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<&'static str, u64>,
    /// How many of them are not over yet.
    pub open: u64,
    /// Whether nothing is taken from it for now.
    pub paused: bool,
    /// Who paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseView>,
}

/// Who paused a queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseView {
    /// Who.
    pub by: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// How long finished tasks are kept, in seconds; `null` is for ever.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetentionView {
    /// Of tasks that succeeded.
    pub succeeded_seconds: Option<f64>,
    /// Of tasks that failed.
    pub failed_seconds: Option<f64>,
    /// Of tasks that were aborted.
    pub aborted_seconds: Option<f64>,
}

impl From<&Retention> for RetentionView {
    fn from(retention: &Retention) -> Self {
        let seconds = |keep: Option<Ttl>| keep.map(|keep| keep.as_duration().as_secs_f64());
        Self {
            succeeded_seconds: seconds(retention.succeeded),
            failed_seconds: seconds(retention.failed),
            aborted_seconds: seconds(retention.aborted),
        }
    }
}

impl From<&QueueStatus> for QueueView {
    fn from(status: &QueueStatus) -> Self {
        let count = |state: TaskState| (state.word(), status.counts.get(state));
        Self {
            queue: status.queue.to_string(),
            counts: TaskState::ALL.into_iter().map(count).collect(),
            open: status.counts.open(),
            paused: status.paused.is_some(),
            pause: status.paused.as_ref().map(|pause| PauseView {
                by: pause.by.to_string(),
                reason: pause.reason.as_ref().map(ToString::to_string),
                at: exact(pause.at),
            }),
        }
    }
}
