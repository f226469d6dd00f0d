//! Queues with their counts.

use std::collections::BTreeMap;

use leasehold::model::{QueueStatus, TaskState};
use serde::Serialize;

use super::view::exact;
use crate::output::paint::Paint;
use crate::output::table::{Table, Tint, plain};

/// One queue, for programs.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueView {
    queue: String,
    counts: BTreeMap<&'static str, u64>,
    /// Not over yet.
    open: u64,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseView>,
}

/// Who paused it.
#[derive(Debug, Clone, Serialize)]
struct PauseView {
    by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    at: String,
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

/// A row for each, a column for each state.
pub(crate) fn queue_table(queues: &[QueueStatus], paint: Paint) -> String {
    let states = TaskState::ALL.map(|state| state.word().to_uppercase());
    let headings: Vec<&str> =
        ["QUEUE"].into_iter().chain(states.iter().map(String::as_str)).chain(["PAUSED"]).collect();
    let mut table = Table::new(&headings);
    for status in queues {
        let mut row = vec![status.queue.to_string()];
        row.extend(TaskState::ALL.map(|state| status.counts.get(state).to_string()));
        row.push(paused(status));
        let tint: Tint = if status.paused.is_some() { Paint::warning } else { plain };
        table.row(tint, row);
    }
    table.paint(paint)
}

fn paused(status: &QueueStatus) -> String {
    status.paused.as_ref().map_or_else(
        || "-".to_owned(),
        |pause| {
            let why = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("by {}{why}", pause.by)
        },
    )
}
