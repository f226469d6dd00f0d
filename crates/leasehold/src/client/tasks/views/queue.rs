//! JSON view of a queue and its task counts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::task::exact;
use crate::model::{QueueStatus, Retention, TaskState, Ttl};

/// A queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct QueueView {
    /// Name of the queue.
    pub queue: String,
    /// Number of tasks in each state.
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<&'static str, u64>,
    /// Number of tasks that have not finished.
    pub open: u64,
    /// Whether the queue is paused: workers lease no tasks from it.
    pub paused: bool,
    /// Details of the pause, if the queue is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseView>,
}

/// Pause of a queue.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseView {
    /// Identity of the operator who paused the queue.
    pub by: String,
    /// Reason that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time at which the queue was paused.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub at: String,
}

/// Retention of finished tasks, in seconds; `null` keeps them forever.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetentionView {
    /// Retention of succeeded tasks.
    pub succeeded_seconds: Option<f64>,
    /// Retention of failed tasks.
    pub failed_seconds: Option<f64>,
    /// Retention of aborted tasks.
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
