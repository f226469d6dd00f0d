//! Schedules, for people and for programs.

use leasehold::model::{Payload, Schedule, Timestamp};
use serde::Serialize;

use super::paint::Paint;
use super::table::{Table, Tint, block, plain};
use super::text::visible;

/// One schedule, for programs.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScheduleView {
    name: String,
    cron: String,
    zone: String,
    queue: String,
    payload: Payload,
    missed: leasehold::model::Missed,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<String>,
    max_attempts: u32,
    paused: bool,
    next: Vec<String>,
}

impl ScheduleView {
    /// With so many ticks ahead.
    pub(crate) fn new(schedule: &Schedule, now: Timestamp, next: usize) -> Self {
        Self {
            name: schedule.name.to_string(),
            cron: schedule.cron.to_string(),
            zone: schedule.zone.to_string(),
            queue: schedule.queue.to_string(),
            payload: schedule.payload.clone(),
            missed: schedule.missed,
            priority: schedule.priority.get(),
            lock: schedule.lock.as_ref().map(ToString::to_string),
            max_attempts: schedule.retries.attempts,
            paused: schedule.paused,
            next: ticks(schedule, now, next),
        }
    }
}

/// A row for each.
pub(crate) fn schedule_table(schedules: &[Schedule], now: Timestamp, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "CRON", "ZONE", "QUEUE", "NEXT"]);
    for schedule in schedules {
        let next = ticks(schedule, now, 1).pop();
        let cells =
            [schedule.name.as_str(), schedule.cron.as_str(), schedule.zone.as_str(), schedule.queue.as_str()];
        let mut row: Vec<String> = cells.iter().map(|cell| visible(cell)).collect();
        row.push(next.unwrap_or_else(|| if schedule.paused { "paused" } else { "never" }.to_owned()));
        let tint: Tint = if schedule.paused { Paint::warning } else { plain };
        table.row(tint, row);
    }
    table.paint(paint)
}

/// Everything about one.
pub(crate) fn schedule_page(schedule: &Schedule, now: Timestamp, next: usize) -> String {
    let paused = if schedule.paused { "  paused" } else { "" };
    let mut lines = vec![
        ("cron", format!("{} in {}", visible(schedule.cron.as_str()), schedule.zone)),
        ("queue", schedule.queue.to_string()),
        ("payload", schedule.payload.as_str().to_owned()),
    ];
    if let Some(lock) = &schedule.lock {
        lines.push(("lock", lock.to_string()));
    }
    let mut name = "next";
    for tick in ticks(schedule, now, next) {
        lines.push((name, tick));
        name = "";
    }
    format!("{}{paused}\n{}", schedule.name, block(2, &lines))
}

/// The next ticks; none of a schedule that is paused.
fn ticks(schedule: &Schedule, now: Timestamp, count: usize) -> Vec<String> {
    let mut ticks = Vec::new();
    let mut after = now;
    while ticks.len() < count && !schedule.paused {
        let Some(tick) = schedule.next(after) else { break };
        ticks.push(tick.to_string());
        after = tick;
    }
    ticks
}
