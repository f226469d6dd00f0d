//! Text output of events: a table for `history`, a line for `watch`.

use leasehold::client::EventView;
use leasehold::model::{EventKind, Mode};

use super::table::{Column, Tint, plain, table};
use super::text::{Style, count};
use super::times::{short, time, time_cell};

/// Returns a table of the events, in the given order. The name of a single lock is not repeated in every row.
pub(crate) fn history_table(events: &[EventView], is_one_lock: bool, style: Style) -> String {
    let (mut columns, lock_column) = (
        vec![
            Column::new("TIME"),
            Column::new("EVENT"),
            Column::new("LOCK").shrinks_to(12),
            Column::new("HOLDER").shrinks_to(12),
            Column::new("TOKEN").rank(2),
            Column::new("DETAILS").rank(1).shrinks_to(12),
        ],
        2,
    );
    if is_one_lock {
        columns.remove(lock_column);
    }
    let rows = events.iter().map(|event| {
        let mut row = cells(event).to_vec();
        if is_one_lock {
            row.remove(lock_column);
        }
        (tint(event.kind), row)
    });
    table(&columns, rows, style)
}

pub(crate) fn event_line(event: &EventView, style: Style) -> String {
    let [time, kind, lock, holder, token, details] = cells(event);
    let kind = tint(event.kind)(style, format!("{kind:8}"));
    let line = format!("{time}  {kind}  {}  {holder}  token {token}  {details}", style.bold(lock));
    line.trim_end().to_owned()
}

fn cells(event: &EventView) -> [String; 6] {
    [
        time_cell(event.at),
        event.kind.to_string(),
        event.lock.to_string(),
        event.holder.to_string(),
        event.token.to_string(),
        details(event),
    ]
}

fn tint(kind: EventKind) -> Tint {
    match kind {
        EventKind::Expired | EventKind::Stolen | EventKind::Forced => Style::bad,
        EventKind::ReleaseRequested => Style::warning,
        EventKind::Queued | EventKind::Withdrawn | EventKind::Renewed => Style::dim,
        _ => plain,
    }
}

fn details(event: &EventView) -> String {
    let mut parts = Vec::new();
    if event.mode == Mode::Shared {
        parts.push("shared".to_owned());
    }
    // Durations below one millisecond are omitted.
    if event.after_seconds >= 0.001 {
        let after = short(std::time::Duration::from_secs_f64(event.after_seconds));
        match event.kind {
            EventKind::Acquired | EventKind::Withdrawn => parts.push(format!("waited {after}")),
            EventKind::Queued => {}
            _ => parts.push(format!("held {after}")),
        }
    }
    if event.renewals > 0 {
        parts.push(format!("renewed {}", count(event.renewals, "time")));
    }
    if let Some(until) = event.until {
        parts.push(format!("kept until {}", time(until)));
    }
    match (&event.by, &event.reason) {
        (Some(by), Some(reason)) => parts.push(format!("by {by}: {reason}")),
        (Some(by), None) => parts.push(format!("by {by}")),
        (None, Some(reason)) => parts.push(reason.to_string()),
        (None, None) => {}
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use leasehold::model::{Event, Holder, LeaseId, LockName, Reason, Slots, Timestamp, Token};

    use super::*;

    fn event(kind: EventKind) -> EventView {
        EventView::from(Event {
            at: Timestamp::from_micros(1_730_817_105_000_000),
            lock: LockName::new("nightly").unwrap(),
            kind,
            holder: Holder::new("ada@web1:4711").unwrap(),
            token: Token::new(1_730_817_105_000_000).unwrap(),
            lease_id: "00000000-0000-7000-8000-000000000001".parse::<LeaseId>().unwrap(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            after_micros: 125_400_000,
            renewals: 0,
            until: None,
            by: None,
            reason: None,
        })
    }

    fn some() -> Vec<EventView> {
        let with = |kind, change: fn(&mut EventView)| {
            let mut event = event(kind);
            change(&mut event);
            event
        };
        vec![
            with(EventKind::Acquired, |event| event.after_seconds = 0.0002),
            with(EventKind::Acquired, |event| (event.mode, event.after_seconds) = (Mode::Shared, 2.0)),
            with(EventKind::ReleaseRequested, |event| event.by = Holder::new("bob@ci").ok()),
            with(EventKind::Released, |event| event.renewals = 12),
            with(EventKind::Forced, |event| {
                event.by = Holder::new("bob@ci").ok();
                event.reason = Reason::new("it hangs").ok();
                event.renewals = 1;
            }),
            with(EventKind::Queued, |event| event.after_seconds = 0.0),
        ]
    }

    #[test]
    fn history_is_a_table() {
        insta::assert_snapshot!(history_table(&some(), true, Style::PLAIN), @"
        TIME                  EVENT              HOLDER         TOKEN             DETAILS
        2024-11-05T14:31:45Z  acquired           ada@web1:4711  1730817105000000
        2024-11-05T14:31:45Z  acquired           ada@web1:4711  1730817105000000  shared, waited 2s
        2024-11-05T14:31:45Z  release_requested  ada@web1:4711  1730817105000000  held 2m5s, by bob@ci
        2024-11-05T14:31:45Z  released           ada@web1:4711  1730817105000000  held 2m5s, renewed 12 times
        2024-11-05T14:31:45Z  forced             ada@web1:4711  1730817105000000  held 2m5s, renewed 1 time, by bob@ci: it hangs
        2024-11-05T14:31:45Z  queued             ada@web1:4711  1730817105000000
        ");
        insta::assert_snapshot!(history_table(&some()[..1], false, Style::PLAIN), @"
        TIME                  EVENT     LOCK     HOLDER         TOKEN             DETAILS
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  1730817105000000
        ");
    }

    #[test]
    fn an_event_is_a_line() {
        let lines: Vec<_> = some().iter().map(|event| event_line(event, Style::PLAIN)).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  token 1730817105000000
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  token 1730817105000000  shared, waited 2s
        2024-11-05T14:31:45Z  release_requested  nightly  ada@web1:4711  token 1730817105000000  held 2m5s, by bob@ci
        2024-11-05T14:31:45Z  released  nightly  ada@web1:4711  token 1730817105000000  held 2m5s, renewed 12 times
        2024-11-05T14:31:45Z  forced    nightly  ada@web1:4711  token 1730817105000000  held 2m5s, renewed 1 time, by bob@ci: it hangs
        2024-11-05T14:31:45Z  queued    nightly  ada@web1:4711  token 1730817105000000
        ");
    }
}
