//! A queue with its counts, as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::task::exact;
use crate::model::{QueueStatus, TaskState};

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
