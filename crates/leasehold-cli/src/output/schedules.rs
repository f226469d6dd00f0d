//! Text output of schedules; their JSON form is in the client library.

use leasehold::model::{MisfirePolicy, Schedule, Timestamp};

use super::style::Style;
use super::table::{Table, Tint, block, plain};
use super::text::visible;

/// Returns a table with a row for each schedule.
pub(crate) fn schedule_table(schedules: &[Schedule], now: Timestamp, style: Style) -> String {
    let mut table = Table::new(&["NAME", "CRON", "ZONE", "QUEUE", "NEXT"]);
    for schedule in schedules {
        let next = schedule.ahead(now, 1).pop().map(|tick| tick.to_string());
        let cells =
            [schedule.name.as_str(), schedule.cron.as_str(), schedule.zone.as_str(), schedule.queue.as_str()];
        let mut row: Vec<String> = cells.iter().map(|cell| visible(cell)).collect();
        row.push(next.unwrap_or_else(|| if schedule.paused { "paused" } else { "never" }.to_owned()));
        let tint: Tint = if schedule.paused { Style::warning } else { plain };
        table.row(tint, row);
    }
    table.render(style)
}

/// Returns a page with all details of one schedule.
pub(crate) fn schedule_page(schedule: &Schedule, now: Timestamp, next: usize) -> String {
    let paused = if schedule.paused { "  paused" } else { "" };
    let mut lines = vec![
        ("cron", format!("{} in {}", visible(schedule.cron.as_str()), schedule.zone)),
        ("queue", schedule.queue.to_string()),
        ("payload", visible(schedule.payload.as_str())),
        ("missed", missed(schedule.missed).to_owned()),
    ];
    if let Some(jitter) = schedule.jitter {
        lines.push(("jitter", format!("each task runs up to {jitter} after its tick")));
    }
    if let Some(lock) = &schedule.lock {
        lines.push(("lock", lock.to_string()));
    }
    let mut name = "next";
    for tick in schedule.ahead(now, next) {
        lines.push((name, tick.to_string()));
        name = "";
    }
    format!("{}{paused}\n{}", schedule.name, block(2, &lines))
}

/// Describes the handling of ticks at which no worker was running.
const fn missed(missed: MisfirePolicy) -> &'static str {
    match missed {
        MisfirePolicy::RunAll => "all: a task for each missed tick",
        MisfirePolicy::RunLast => "last: one task for the last missed tick",
        MisfirePolicy::Skip => "none: missed ticks are skipped",
    }
}
