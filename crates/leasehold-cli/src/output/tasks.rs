//! Text output of tasks, queues, workers, schedules and tokens; their JSON form is in the client library.

use leasehold::client::WorkerView;
use leasehold::model::{
    MisfirePolicy, QueueStatus, Schedule, Task, TaskEvent, TaskState, Timestamp, WorkerStatus,
    format_duration,
};
#[cfg(feature = "serve")]
use leasehold_server::access::TokenStatus;

use super::text::{Style, Table, Tint, ago, block, lines, plain, short, shortly, visible, when};

/// Maximum length of a shown payload or result, in characters.
const JSON_CHARS: usize = 2000;

/// Returns the page: the task, its state and its history.
pub(crate) fn task_page(task: &Task, now: Timestamp, style: Style) -> String {
    let state = tint(task.state)(style, task.state.to_string());
    let mut page = lines([format!("{}  {state}", style.bold(task.id.short()))]);
    page += &block(2, &details(task, now));
    if let Some(error) = &task.error {
        page += "error\n";
        page += &lines(error.as_str().lines().map(|line| format!("  {}", visible(line))));
    }
    if !task.events.is_empty() {
        page += "history\n";
        page += &lines(task.events.iter().map(|event| format!("  {}", event_line(event))));
    }
    page
}

fn details(task: &Task, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut details = vec![("queue", task.queue.to_string()), ("payload", json(task.payload.as_str()))];
    let optional = [
        ("key", task.key.as_ref().map(ToString::to_string)),
        ("lock", task.lock.as_ref().map(ToString::to_string)),
        ("progress", task.progress.as_ref().map(|progress| visible(&progress.to_string()))),
        ("result", task.result.as_ref().map(|result| json(result.as_str()))),
    ];
    details.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let (attempts, pause) =
        (task.retries.attempts, format_duration(task.retries.initial_delay.as_duration()));
    details.extend([
        ("priority", task.priority.get().to_string()),
        ("attempt", format!("{} of {attempts}, backoff {pause}", task.attempt)),
        ("version", task.version.to_string()),
        ("token", task.token.to_string()),
        ("added", when(now, task.created_at)),
    ]);
    if task.state == TaskState::Scheduled {
        details.push(("runs", when(now, task.run_at)));
    }
    if let Some(worker) = task.worker {
        let name = if task.state == TaskState::Running { "worker" } else { "last worker" };
        details.push((name, worker.to_string()));
    }
    if task.expiries > 0 {
        let alone = if task.runs_alone() { "; runs alone" } else { "" };
        details.push(("expired leases", format!("{} in a row{alone}", task.expiries)));
    }
    match (task.leased_at, task.finished_at) {
        (Some(start), Some(end)) if start <= end => {
            details.push(("started", when(now, start)));
            details.push(("ended", format!("{}, after {}", when(now, end), short(end.since(start)))));
        }
        (Some(start), None) if task.state == TaskState::Running => {
            details.push(("started", when(now, start)));
        }
        (_, Some(end)) => details.push(("ended", when(now, end))),
        _ => {}
    }
    if let Some(end) = task.lease_expires_at.filter(|_| task.state == TaskState::Running) {
        details.push(("lease until", when(now, end)));
    }
    if let Some(cancel) = &task.cancel {
        let reason = cancel.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        details.push(("cancelled", format!("by {} at {}{reason}", cancel.by, cancel.at)));
    }
    if task.archived {
        details.push(("archived", "yes".to_owned()));
    }
    details
}

/// Returns one event of the history as a line.
fn event_line(event: &TaskEvent) -> String {
    let attempt = if event.attempt > 0 { format!("  attempt {}", event.attempt) } else { String::new() };
    let took = event.leased_at.map(|start| format!(", after {}", short(event.at.since(start))));
    let by = event.by.as_ref().map(|by| format!("  by {by}"));
    let reason =
        event.why.as_ref().and_then(|why| why.as_str().lines().rev().find(|line| !line.trim().is_empty()));
    let reason = reason.map(|line| format!("  {}", visible(line.trim())));
    let [took, by, reason] = [took, by, reason].map(Option::unwrap_or_default);
    format!("{}  {}{attempt}{took}{by}{reason}", event.at, event.kind)
}

fn json(text: &str) -> String {
    let text = visible(text);
    match text.char_indices().nth(JSON_CHARS) {
        Some((end, _)) => format!("{}… (all of it with --json)", &text[..end]),
        None => text,
    }
}

/// Maximum length of a note in a row, in characters.
const NOTE_CHARS: usize = 60;

/// Returns a table with a row for each task.
pub(crate) fn task_table(tasks: &[Task], now: Timestamp, style: Style) -> String {
    let mut table = Table::new(&["ID", "QUEUE", "STATE", "PRIORITY", "ATTEMPT", "ADDED", "WHEN", "NOTE"]);
    for task in tasks {
        let row = vec![
            task.id.short(),
            task.queue.to_string(),
            task.state.to_string(),
            task.priority.get().to_string(),
            format!("{}/{}", task.attempt, task.retries.attempts),
            ago(now, task.created_at),
            relevant_time(task, now),
            note(task),
        ];
        table.row(tint(task.state), row);
    }
    table.render(style)
}

pub(in crate::output) fn tint(state: TaskState) -> Tint {
    match state {
        TaskState::Failed => Style::bad,
        TaskState::Running => Style::good,
        TaskState::Scheduled | TaskState::Blocked => Style::dim,
        TaskState::Aborted => Style::warning,
        TaskState::Pending | TaskState::Succeeded => plain,
    }
}

/// Returns the relevant time: when the task will run, since when it runs, or when it ended.
fn relevant_time(task: &Task, now: Timestamp) -> String {
    match task.state {
        TaskState::Scheduled => shortly(now, task.run_at),
        TaskState::Running => task.leased_at.map_or_else(String::new, |since| ago(now, since)),
        _ => task.finished_at.map_or_else(|| "-".to_owned(), |end| ago(now, end)),
    }
}

/// Returns the reason for the wait, the progress, or the error.
fn note(task: &Task) -> String {
    let text = match (task.state, &task.progress, &task.error, &task.lock) {
        (TaskState::Running, _, _, _) if task.cancel.is_some() => "stopping".to_owned(),
        (TaskState::Running, Some(progress), _, _) => progress.to_string(),
        (TaskState::Blocked, _, _, Some(lock)) => format!("waits for lock '{lock}'"),
        (TaskState::Succeeded, ..) | (_, _, None, _) => String::new(),
        (_, _, Some(error), _) => error.to_string(),
    };
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line = visible(line.trim());
    match line.char_indices().nth(NOTE_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Returns a table with a row for each queue and a column for each state.
pub(crate) fn queue_table(queues: &[QueueStatus], style: Style) -> String {
    let states = TaskState::ALL.map(|state| state.as_str().to_uppercase());
    let headings: Vec<&str> =
        ["QUEUE"].into_iter().chain(states.iter().map(String::as_str)).chain(["PAUSED"]).collect();
    let mut table = Table::new(&headings);
    for status in queues {
        let mut row = vec![status.queue.to_string()];
        row.extend(TaskState::ALL.map(|state| status.counts.get(state).to_string()));
        row.push(paused(status));
        let tint: Tint = if status.paused.is_some() { Style::warning } else { plain };
        table.row(tint, row);
    }
    table.render(style)
}

fn paused(status: &QueueStatus) -> String {
    status.paused.as_ref().map_or_else(
        || "-".to_owned(),
        |pause| {
            let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("by {}{reason}", pause.by)
        },
    )
}

/// Returns a table with a row for each worker.
pub(crate) fn worker_table(workers: &[WorkerStatus], now: Timestamp, style: Style) -> String {
    let mut table = Table::new(&["ID", "HOST", "PID", "QUEUES", "BUSY", "SEEN", "STATE", "VERSION"]);
    for worker in workers {
        let info = &worker.info;
        let queues: Vec<_> = info.queues.iter().map(ToString::to_string).collect();
        let state = WorkerView::new(worker, now).state;
        let tint: Tint = match state {
            "gone" => Style::bad,
            "draining" => Style::warning,
            _ => plain,
        };
        let row = vec![
            info.id.to_string(),
            visible(&info.host),
            info.pid.to_string(),
            queues.join(","),
            format!("{}/{}", info.busy, info.slots),
            ago(now, worker.seen_at),
            state.to_owned(),
            visible(&info.version),
        ];
        table.row(tint, row);
    }
    table.render(style)
}

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

/// Returns a table with a row for each token.
#[cfg(feature = "serve")]
pub(crate) fn token_table(tokens: &[TokenStatus], style: Style) -> String {
    let mut table = Table::new(&["ID", "NAME", "ROLE", "SCOPES", "CREATED", "ENDS"]);
    for token in tokens {
        let ends = match (&token.revoked_at, &token.expires_at) {
            (Some(revoked), _) => format!("revoked {}", to_the_second(revoked)),
            (None, Some(end)) => to_the_second(end),
            (None, None) => "never".to_owned(),
        };
        let (name, role) = (visible(&token.name), token.role.to_string());
        let reaches = match &token.scopes[..] {
            [] => "everything".to_owned(),
            scopes => visible(&scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
        };
        let row = vec![token.id.clone(), name, role, reaches, to_the_second(&token.created_at), ends];
        let tint: Tint = if token.active { plain } else { Style::warning };
        table.row(tint, row);
    }
    table.render(style)
}

/// Returns a time in RFC 3339 without the fraction of its second.
fn to_the_second(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}
