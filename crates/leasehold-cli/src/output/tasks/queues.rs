//! Queues with their counts.

use leasehold::model::{QueueStatus, TaskState};

use crate::output::paint::Paint;
use crate::output::table::{Table, Tint, plain};

/// Returns a table with a row for each queue and a column for each state.
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
