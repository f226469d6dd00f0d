//! Text output of events of locks and of tasks: a table for `history`, a line for `watch`.

use std::time::Duration;

use leasehold::client::{EventView, TaskHistoryView};
use leasehold::model::{EventKind, Message, Mode, TaskHistoryKind};
use unicode_width::UnicodeWidthStr;

use super::table::{Column, ShortIds, Tint, cut_to_width, plain, table};
use super::text::{Layout, Style, count, note_cell, visible};
use super::times::{short, time, time_cell};

/// Returns a table of the events of locks, in the given order. The name of a single lock is not repeated in every row.
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
        let after = short(Duration::from_secs_f64(event.after_seconds));
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

/// Returns a table of the events of tasks, in the given order. The names of a single task are not repeated in
/// every row.
pub(crate) fn task_history_table(events: &[TaskHistoryView], is_one_task: bool, style: Style) -> String {
    let names = if is_one_task {
        Vec::new()
    } else {
        vec![Column::new("QUEUE").rank(2).shrinks_to(10), Column::new("TASK")]
    };
    let mut columns = vec![Column::new("TIME"), Column::new("EVENT")];
    columns.extend(names);
    columns.extend([Column::new("ATTEMPT").rank(3), Column::new("DETAILS").rank(1).shrinks_to(12)]);
    let mut uuids: Vec<_> = events.iter().map(|event| event.task.to_string()).collect();
    uuids.sort_unstable();
    uuids.dedup();
    let ids = ShortIds::new(uuids.into_iter(), style);
    let rows = events.iter().map(|event| {
        let mut row = vec![time_cell(event.at), event.kind.to_string()];
        if !is_one_task {
            row.extend([event.queue.to_string(), ids.task(&event.task)]);
        }
        row.extend([attempt(event), task_details(event)]);
        (task_tint(event.kind), row)
    });
    table(&columns, rows, style)
}

/// Returns an event as a line, on a terminal cut to its width.
pub(crate) fn task_event_line(event: &TaskHistoryView, style: Style) -> String {
    let id = ShortIds::new(std::iter::once(event.task.to_string()), style).task(&event.task);
    let attempt = match attempt(event) {
        number if number.is_empty() => number,
        number => format!("attempt {number}  "),
    };
    let (time, kind) = (time_cell(event.at), format!("{:9}", event.kind.to_string()));
    let queue = visible(event.queue.as_str());
    let rest = format!("{id}  {attempt}{}", task_details(event));
    let used = time.len() + kind.len() + 6 + queue.width();
    let rest = match style.layout() {
        Layout::Fit(width) => cut_to_width(&rest, width.saturating_sub(used)),
        _ => rest,
    };
    let line = format!("{time}  {}  {}  {rest}", task_tint(event.kind)(style, kind), style.bold(queue));
    line.trim_end().to_owned()
}

fn attempt(event: &TaskHistoryView) -> String {
    if event.attempt == 0 { String::new() } else { event.attempt.to_string() }
}

fn task_tint(kind: TaskHistoryKind) -> Tint {
    match kind {
        TaskHistoryKind::AttemptFailed | TaskHistoryKind::Failed | TaskHistoryKind::Expired => Style::bad,
        TaskHistoryKind::Succeeded => Style::good,
        TaskHistoryKind::CancelRequested | TaskHistoryKind::Aborted => Style::warning,
        TaskHistoryKind::Snoozed | TaskHistoryKind::Returned | TaskHistoryKind::Updated => Style::dim,
        _ => plain,
    }
}

fn task_details(event: &TaskHistoryView) -> String {
    let mut parts = Vec::new();
    // Durations below one millisecond are omitted.
    if let Some(seconds) = event.after_seconds.filter(|seconds| *seconds >= 0.001) {
        parts.push(format!("after {}", short(Duration::from_secs_f64(seconds))));
    }
    if let Some(by) = &event.by {
        parts.push(format!("by {by}"));
    }
    let details = parts.join(", ");
    // The last line of an error says the most; the whole text is in the JSON.
    let text = event.reason.as_ref().map_or("", Message::as_str);
    let reason = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    match reason.map(note_cell) {
        Some(reason) if details.is_empty() => reason,
        Some(reason) => format!("{details}: {reason}"),
        None => details,
    }
}

#[cfg(test)]
mod tests {
    use leasehold::model::{
        AttemptResult, Cancel, Event, Holder, LeaseId, LockName, NewTask, Payload, QueueName, Reason, Retry,
        Settle, Slots, Task, TaskOp, Timestamp, Token, Ttl,
    };

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

    fn lock_events() -> Vec<EventView> {
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
        insta::assert_snapshot!(history_table(&lock_events(), true, Style::PLAIN), @"
        TIME                  EVENT              HOLDER         TOKEN             DETAILS
        2024-11-05T14:31:45Z  acquired           ada@web1:4711  1730817105000000
        2024-11-05T14:31:45Z  acquired           ada@web1:4711  1730817105000000  shared, waited 2s
        2024-11-05T14:31:45Z  release_requested  ada@web1:4711  1730817105000000  held 2m5s, by bob@ci
        2024-11-05T14:31:45Z  released           ada@web1:4711  1730817105000000  held 2m5s, renewed 12 times
        2024-11-05T14:31:45Z  forced             ada@web1:4711  1730817105000000  held 2m5s, renewed 1 time, by bob@ci: it hangs
        2024-11-05T14:31:45Z  queued             ada@web1:4711  1730817105000000
        ");
        insta::assert_snapshot!(history_table(&lock_events()[..1], false, Style::PLAIN), @"
        TIME                  EVENT     LOCK     HOLDER         TOKEN             DETAILS
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  1730817105000000
        ");
    }

    #[test]
    fn an_event_is_a_line() {
        let lines: Vec<_> = lock_events().iter().map(|event| event_line(event, Style::PLAIN)).collect();
        insta::assert_snapshot!(lines.join("\n"), @"
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  token 1730817105000000
        2024-11-05T14:31:45Z  acquired  nightly  ada@web1:4711  token 1730817105000000  shared, waited 2s
        2024-11-05T14:31:45Z  release_requested  nightly  ada@web1:4711  token 1730817105000000  held 2m5s, by bob@ci
        2024-11-05T14:31:45Z  released  nightly  ada@web1:4711  token 1730817105000000  held 2m5s, renewed 12 times
        2024-11-05T14:31:45Z  forced    nightly  ada@web1:4711  token 1730817105000000  held 2m5s, renewed 1 time, by bob@ci: it hangs
        2024-11-05T14:31:45Z  queued    nightly  ada@web1:4711  token 1730817105000000
        ");
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(1_730_817_105_000_000 + second * 1_000_000)
    }

    fn task_events() -> Vec<TaskHistoryView> {
        let id = "01a1e21e-0000-7000-8000-00a1deadbeef".parse().unwrap();
        let mut new = NewTask::new(id, QueueName::new("mail/outgoing").unwrap(), Payload::default());
        new.retries.attempts = 1;
        let (worker, ttl) = ("01a1e21e-0000-7000-8000-00000000000a".parse().unwrap(), Ttl::from_secs(30));
        let by = Holder::new("ada@web1").unwrap();
        let mut task = Task::new(&new, at(0));
        let lease = TaskOp::Lease { worker, ttl, begun: true };
        task.apply(&lease, at(1));
        let why = Message::new("Traceback\nConnectionError: no route to host \u{1b}[31m\n");
        let settle = |task: &Task, verdict| TaskOp::Settle(Settle { id, token: task.token, result: verdict });
        task.apply(&settle(&task, AttemptResult::Retry(why, None)), at(3));
        let before = TaskHistoryView::all(&task);
        task.apply(&TaskOp::Retry(Retry { by: by.clone() }), at(9));
        task.apply(&lease, at(10));
        let reason = Some(Reason::new("wrong file").unwrap());
        task.apply(&TaskOp::Cancel(Cancel { by, reason }), at(75));
        task.apply(&settle(&task, AttemptResult::Abort(None)), at(76));
        let mut all = TaskHistoryView::all(&task);
        all.insert(3, before[3].clone());
        all
    }

    #[test]
    fn history_of_tasks_is_a_table() {
        insta::assert_snapshot!(task_history_table(&task_events(), false, Style::PLAIN), @r"
        TIME                  EVENT             QUEUE          TASK                                  ATTEMPT  DETAILS
        2024-11-05T14:31:45Z  added             mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef
        2024-11-05T14:31:46Z  started           mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1
        2024-11-05T14:31:48Z  attempt_failed    mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1        after 2s: ConnectionError: no route to host \u{1b}[31m
        2024-11-05T14:31:48Z  failed            mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1        after 2s: ConnectionError: no route to host \u{1b}[31m
        2024-11-05T14:31:54Z  retried           mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1        by ada@web1
        2024-11-05T14:31:55Z  started           mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1
        2024-11-05T14:33:00Z  cancel_requested  mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1        by ada@web1: wrong file
        2024-11-05T14:33:01Z  aborted           mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  1        after 1m6s, by ada@web1: wrong file
        ");
        insta::assert_snapshot!(task_history_table(&task_events(), true, Style::plain_as(Layout::Fit(80))), @r"
        TIME                  EVENT             ATTEMPT  DETAILS
        2024-11-05T14:31:45Z  added
        2024-11-05T14:31:46Z  started           1
        2024-11-05T14:31:48Z  attempt_failed    1        after 2s: ConnectionError: no …
        2024-11-05T14:31:48Z  failed            1        after 2s: ConnectionError: no …
        2024-11-05T14:31:54Z  retried           1        by ada@web1
        2024-11-05T14:31:55Z  started           1
        2024-11-05T14:33:00Z  cancel_requested  1        by ada@web1: wrong file
        2024-11-05T14:33:01Z  aborted           1        after 1m6s, by ada@web1: wrong…
        ");
        insta::assert_snapshot!(task_history_table(&task_events()[..2], false, Style::plain_as(Layout::Fit(80))), @r"
        TIME                  EVENT    QUEUE          TASK      ATTEMPT  DETAILS
        2024-11-05T14:31:45Z  added    mail/outgoing  deadbeef
        2024-11-05T14:31:46Z  started  mail/outgoing  deadbeef  1
        ");
    }

    #[test]
    fn an_event_of_a_task_is_a_line_that_fits_the_terminal() {
        let lines =
            |style| task_events().iter().map(|event| task_event_line(event, style)).collect::<Vec<_>>();
        insta::assert_snapshot!(lines(Style::PLAIN).join("\n"), @r"
        2024-11-05T14:31:45Z  added      mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef
        2024-11-05T14:31:46Z  started    mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1
        2024-11-05T14:31:48Z  attempt_failed  mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1  after 2s: ConnectionError: no route to host \u{1b}[31m
        2024-11-05T14:31:48Z  failed     mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1  after 2s: ConnectionError: no route to host \u{1b}[31m
        2024-11-05T14:31:54Z  retried    mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1  by ada@web1
        2024-11-05T14:31:55Z  started    mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1
        2024-11-05T14:33:00Z  cancel_requested  mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1  by ada@web1: wrong file
        2024-11-05T14:33:01Z  aborted    mail/outgoing  01a1e21e-0000-7000-8000-00a1deadbeef  attempt 1  after 1m6s, by ada@web1: wrong file
        ");
        insta::assert_snapshot!(lines(Style::plain_as(Layout::Fit(80))).join("\n"), @r"
        2024-11-05T14:31:45Z  added      mail/outgoing  deadbeef
        2024-11-05T14:31:46Z  started    mail/outgoing  deadbeef  attempt 1
        2024-11-05T14:31:48Z  attempt_failed  mail/outgoing  deadbeef  attempt 1  after…
        2024-11-05T14:31:48Z  failed     mail/outgoing  deadbeef  attempt 1  after 2s: …
        2024-11-05T14:31:54Z  retried    mail/outgoing  deadbeef  attempt 1  by ada@web1
        2024-11-05T14:31:55Z  started    mail/outgoing  deadbeef  attempt 1
        2024-11-05T14:33:00Z  cancel_requested  mail/outgoing  deadbeef  attempt 1  by …
        2024-11-05T14:33:01Z  aborted    mail/outgoing  deadbeef  attempt 1  after 1m6s…
        ");
        for width in 60..100 {
            assert!(lines(Style::plain_as(Layout::Fit(width))).iter().all(|line| line.width() <= width));
        }
    }
}
