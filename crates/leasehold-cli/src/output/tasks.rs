//! Text output of tasks, queues, workers, schedules, tokens, workflows and executions; the JSON form of most
//! is in the client library.

use std::collections::BTreeMap;

use leasehold::client::WorkerView;
use leasehold::model::{
    MisfirePolicy, QueueStatus, Schedule, Task, TaskEvent, TaskState, Timestamp, WorkerStatus,
    format_duration,
};
use leasehold::{Execution, WorkflowLock, WorkflowStatus};
#[cfg(feature = "serve")]
use leasehold_server::access::TokenStatus;
use serde::Serialize;

use super::table::{Column, ShortIds, Tint, plain, table, warning_if};
use super::text::{Layout, Style, block, json_value, lines, note_cell, visible};
use super::times::{ago, short, shortly, time, time_cell, when};

pub(crate) fn task_page(task: &Task, now: Timestamp, style: Style) -> String {
    let state = tint(task.state)(style, task.state.to_string());
    let mut page = lines([format!("{}  {state}", style.bold(task.id.short()))]);
    page += &block(2, &details(task, now), Layout::Plain);
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
    let (attempts, pause) =
        (task.retries.attempts, format_duration(task.retries.initial_delay.as_duration()));
    let running = task.state == TaskState::Running;
    let started = task.leased_at.filter(|start| task.finished_at.map_or(running, |end| *start <= end));
    let ended = task.finished_at.map(|end| {
        let after = started.map(|start| format!(", after {}", short(end.since(start)))).unwrap_or_default();
        when(now, end) + &after
    });
    let alone = if task.runs_alone() { "; runs alone" } else { "" };
    let cancelled = task.cancel.as_ref().map(|cancel| {
        let reason = cancel.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("by {} at {}{reason}", cancel.by, time(cancel.at))
    });
    present([
        ("queue", Some(task.queue.to_string())),
        ("payload", Some(json_value(task.payload.as_str()))),
        ("key", task.key.as_ref().map(ToString::to_string)),
        ("lock", task.lock.as_ref().map(ToString::to_string)),
        ("progress", task.progress.as_ref().map(|progress| visible(&progress.to_string()))),
        ("result", task.result.as_ref().map(|result| json_value(result.as_str()))),
        ("priority", Some(task.priority.get().to_string())),
        ("attempt", Some(format!("{} of {attempts}, backoff {pause}", task.attempt))),
        ("timeout", task.timeout.map(|timeout| short(timeout.as_duration()))),
        ("version", Some(task.version.to_string())),
        ("token", Some(task.token.to_string())),
        ("added", Some(when(now, task.created_at))),
        ("runs", (task.state == TaskState::Scheduled).then(|| when(now, task.run_at))),
        (if running { "worker" } else { "last worker" }, task.worker.map(|worker| worker.to_string())),
        ("expired leases", (task.expiries > 0).then(|| format!("{} in a row{alone}", task.expiries))),
        ("started", started.map(|start| when(now, start))),
        ("ended", ended),
        ("lease until", task.lease_expires_at.filter(|_| running).map(|end| when(now, end))),
        ("cancelled", cancelled),
        ("archived", task.archived.then(|| "yes".to_owned())),
    ])
}

/// Returns the rows that have a value.
fn present<const N: usize>(rows: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn event_line(event: &TaskEvent) -> String {
    let attempt = if event.attempt > 0 { format!("  attempt {}", event.attempt) } else { String::new() };
    let took = event.leased_at.map(|start| format!(", after {}", short(event.at.since(start))));
    let by = event.by.as_ref().map(|by| format!("  by {by}"));
    let reason = event.why.as_ref().and_then(|why| last_line(why.as_str()));
    let reason = reason.map(|line| format!("  {}", visible(line)));
    let [took, by, reason] = [took, by, reason].map(Option::unwrap_or_default);
    format!("{}  {}{attempt}{took}{by}{reason}", time_cell(event.at), event.kind)
}

/// Returns a task and its state, or that it is being stopped.
pub(crate) fn state_line(task: &Task) -> String {
    let stopping = task.state == TaskState::Running && task.cancel.is_some();
    let word = if stopping { "stopping".to_owned() } else { task.state.to_string() };
    format!("{}  {word}\n", task.id.short())
}

pub(crate) fn task_table(tasks: &[Task], now: Timestamp, style: Style) -> String {
    let columns = [
        Column::new("ID"),
        Column::new("QUEUE").shrinks_to(12),
        Column::new("STATE"),
        Column::new("PRIORITY").rank(4),
        Column::new("ATTEMPT").rank(2),
        Column::new("ADDED").rank(3),
        Column::new("WHEN"),
        Column::new("NOTE").rank(1).shrinks_to(16),
    ];
    let ids = ShortIds::new(tasks.iter().map(|task| task.id.to_string()), style);
    let rows = tasks.iter().map(|task| {
        let row = vec![
            ids.task(&task.id),
            task.queue.to_string(),
            task.state.to_string(),
            task.priority.get().to_string(),
            format!("{}/{}", task.attempt, task.retries.attempts),
            ago(now, task.created_at),
            relevant_time(task, now),
            task_note(task),
        ];
        (tint(task.state), row)
    });
    table(&columns, rows, style)
}

fn tint(state: TaskState) -> Tint {
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
fn task_note(task: &Task) -> String {
    let text = match (task.state, &task.progress, &task.error, &task.lock) {
        (TaskState::Running, _, _, _) if task.cancel.is_some() => "stopping".to_owned(),
        (TaskState::Running, Some(progress), _, _) => progress.to_string(),
        (TaskState::Blocked, _, _, Some(lock)) => format!("waits for lock '{lock}'"),
        (TaskState::Succeeded, ..) | (_, _, None, _) => String::new(),
        (_, _, Some(error), _) => error.to_string(),
    };
    note_cell(last_line(&text).unwrap_or_default())
}

/// Returns the last line that is not blank.
fn last_line(text: &str) -> Option<&str> {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

pub(crate) fn queue_table(queues: &[QueueStatus], style: Style) -> String {
    let mut columns = state_columns("QUEUE", style);
    columns.push(Column::new("PAUSED").rank(2).shrinks_to(10));
    let rows = queues.iter().map(|status| {
        let mut row = vec![status.queue.to_string()];
        row.extend(TaskState::ALL.map(|state| status.counts.get(state).to_string()));
        row.push(paused(status));
        (warning_if(status.paused.is_some()), row)
    });
    table(&columns, rows, style)
}

/// Returns the columns of a name and of the number of tasks in each state. On a terminal the names of
/// the states are short, so that all of them fit.
fn state_columns(name: &'static str, style: Style) -> Vec<Column> {
    let is_short = matches!(style.layout(), Layout::Fit(_));
    let states = TaskState::ALL.map(|state| {
        let heading = match state {
            TaskState::Scheduled if is_short => "SCHED",
            TaskState::Succeeded if is_short => "OK",
            state => state.as_str(),
        };
        Column::new(heading.to_uppercase())
    });
    std::iter::once(Column::new(name).shrinks_to(12)).chain(states).collect()
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

pub(crate) fn worker_table(workers: &[WorkerStatus], now: Timestamp, style: Style) -> String {
    let columns = [
        Column::new("ID"),
        Column::new("HOST").shrinks_to(8),
        Column::new("PID"),
        Column::new("QUEUES").shrinks_to(12),
        Column::new("BUSY"),
        Column::new("SEEN").rank(1),
        Column::new("STATE"),
        Column::new("VERSION").rank(2),
    ];
    let ids = ShortIds::new(workers.iter().map(|worker| worker.info.id.to_string()), style);
    let rows = workers.iter().map(|worker| {
        let info = &worker.info;
        let queues: Vec<_> = info.queues.iter().map(ToString::to_string).collect();
        let state = WorkerView::new(worker, now).state;
        let tint: Tint = match state {
            "dead" => Style::bad,
            "draining" => Style::warning,
            _ => plain,
        };
        let row = vec![
            ids.uuid(&info.id.to_string()),
            visible(&info.host),
            info.pid.to_string(),
            queues.join(","),
            format!("{}/{}", info.busy, info.slots),
            ago(now, worker.seen_at),
            state.to_owned(),
            visible(&info.version),
        ];
        (tint, row)
    });
    table(&columns, rows, style)
}

pub(crate) fn schedule_table(schedules: &[Schedule], now: Timestamp, style: Style) -> String {
    let rows = schedules.iter().map(|schedule| {
        let next = schedule.ahead(now, 1).pop();
        let left = next.map_or_else(|| "-".to_owned(), |tick| shortly(now, tick));
        let next = next.map(time_cell);
        let cells =
            [schedule.name.as_str(), schedule.cron.as_str(), schedule.zone.as_str(), schedule.queue.as_str()];
        let mut row: Vec<String> = cells.iter().map(|cell| visible(cell)).collect();
        row.push(next.unwrap_or_else(|| if schedule.paused { "paused" } else { "never" }.to_owned()));
        row.push(left);
        (warning_if(schedule.paused), row)
    });
    let columns = [
        Column::new("NAME").shrinks_to(12),
        Column::new("CRON").shrinks_to(9),
        Column::new("ZONE").rank(2).shrinks_to(8),
        Column::new("QUEUE").rank(1).shrinks_to(10),
        Column::new("NEXT"),
        Column::new("LEFT").rank(3).extra(),
    ];
    table(&columns, rows, style)
}

pub(crate) fn schedule_page(schedule: &Schedule, now: Timestamp, next: usize) -> String {
    let paused = if schedule.paused { "  paused" } else { "" };
    let mut rows = present([
        ("cron", Some(format!("{} in {}", visible(schedule.cron.as_str()), schedule.zone))),
        ("queue", Some(schedule.queue.to_string())),
        ("payload", Some(visible(schedule.payload.as_str()))),
        ("missed", Some(missed(schedule.missed).to_owned())),
        ("timeout", schedule.timeout.map(|timeout| format!("an attempt runs for at most {timeout}"))),
        ("jitter", schedule.jitter.map(|jitter| format!("each task runs up to {jitter} after its tick"))),
        ("lock", schedule.lock.as_ref().map(ToString::to_string)),
    ]);
    let names = std::iter::once("next").chain(std::iter::repeat(""));
    rows.extend(names.zip(schedule.ahead(now, next)).map(|(name, tick)| (name, when(now, tick))));
    format!("{}{paused}\n{}", schedule.name, block(2, &rows, Layout::Plain))
}

/// Describes the handling of ticks at which no worker was running.
const fn missed(missed: MisfirePolicy) -> &'static str {
    match missed {
        MisfirePolicy::RunAll => "all: a task for each missed tick",
        MisfirePolicy::RunLast => "last: one task for the last missed tick",
        MisfirePolicy::Skip => "none: missed ticks are skipped",
        _ => "a policy of a newer version",
    }
}

#[cfg(feature = "serve")]
pub(crate) fn token_table(tokens: &[TokenStatus], style: Style) -> String {
    let rows = tokens.iter().map(|token| {
        let ends = match (&token.revoked_at, &token.expires_at) {
            (Some(revoked), _) => format!("revoked {}", parsed_time_cell(revoked)),
            (None, Some(end)) => parsed_time_cell(end),
            (None, None) => "never".to_owned(),
        };
        let (name, role) = (visible(&token.name), token.role.to_string());
        let reaches = match &token.scopes[..] {
            [] => "everything".to_owned(),
            scopes => visible(&scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
        };
        let row = vec![token.id.clone(), name, role, reaches, parsed_time_cell(&token.created_at), ends];
        (warning_if(!token.active), row)
    });
    let columns = [
        Column::new("ID"),
        Column::new("NAME").shrinks_to(12),
        Column::new("ROLE"),
        Column::new("SCOPES").rank(1).shrinks_to(12),
        Column::new("CREATED").rank(2),
        Column::new("ENDS"),
    ];
    table(&columns, rows, style)
}

/// Returns a time in RFC 3339 as a time for a column.
#[cfg(feature = "serve")]
fn parsed_time_cell(time: &str) -> String {
    time.parse().map_or_else(|_| time.to_owned(), time_cell)
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct WorkflowView {
    pub(crate) workflow: String,
    counts: BTreeMap<&'static str, u64>,
    paused: bool,
}

impl From<&WorkflowStatus> for WorkflowView {
    fn from(status: &WorkflowStatus) -> Self {
        let count = |state: TaskState| (state.as_str(), status.counts.get(state));
        Self {
            workflow: status.workflow.to_string(),
            counts: TaskState::ALL.into_iter().map(count).collect(),
            paused: status.paused.is_some(),
        }
    }
}

pub(crate) fn workflow_table(workflows: &[WorkflowStatus], style: Style) -> String {
    let columns = state_columns("WORKFLOW", style);
    let rows = workflows.iter().map(|status| {
        let mut row = vec![status.workflow.to_string()];
        row.extend(TaskState::ALL.map(|state| status.counts.get(state).to_string()));
        (warning_if(status.paused.is_some()), row)
    });
    table(&columns, rows, style)
}

pub(crate) fn workflow_page(lock: &WorkflowLock, style: Style) -> String {
    let word = match (lock.is_locked, lock.is_stale) {
        (true, _) => style.good("locked"),
        (false, true) => style.warning("stale"),
        (false, false) => style.dim("free"),
    };
    let rows = present([
        ("execution", lock.execution_id.map(|id| id.to_string())),
        ("holder", lock.holder.as_ref().map(ToString::to_string)),
        ("since", lock.locked_since.map(|since| when(lock.now, since))),
        ("until", lock.expires_at.map(|until| when(lock.now, until))),
        ("token", Some(lock.token.to_string())),
        ("waiting", Some(lock.queued.to_string())),
    ]);
    lines([format!("{}  {word}", style.bold(&lock.workflow))]) + &block(2, &rows, Layout::Plain)
}

pub(crate) fn execution_table(executions: &[Execution], now: Timestamp, style: Style) -> String {
    let columns = [
        Column::new("ID"),
        Column::new("WORKFLOW").shrinks_to(12),
        Column::new("STATE"),
        Column::new("ATTEMPT").rank(4),
        Column::new("ADDED").rank(3),
        Column::new("STARTED"),
        Column::new("ENDED").rank(1),
        Column::new("NOTE").rank(2).shrinks_to(12),
    ];
    let ids = ShortIds::new(executions.iter().map(|execution| execution.id.task().to_string()), style);
    let age = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| ago(now, time));
    let rows = executions.iter().map(|execution| {
        let row = vec![
            ids.execution(execution.id),
            execution.workflow.to_string(),
            execution.state.to_string(),
            execution.attempt.to_string(),
            ago(now, execution.created_at),
            age(execution.started_at),
            age(execution.finished_at),
            execution_note(execution),
        ];
        (tint(execution.state), row)
    });
    table(&columns, rows, style)
}

/// Returns the progress, or the error.
fn execution_note(execution: &Execution) -> String {
    let stop = execution.cancel_requested_by.as_ref().filter(|_| execution.state == TaskState::Running);
    let progress = execution.progress.as_ref().filter(|_| execution.state == TaskState::Running);
    let text = match (stop, progress, &execution.reason) {
        (Some(_), ..) => "stopping".to_owned(),
        (_, Some(progress), _) => progress.to_string(),
        (_, _, Some(reason)) => reason.lines().next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    note_cell(&text)
}

pub(crate) fn execution_page(execution: &Execution, now: Timestamp, style: Style) -> String {
    let state = tint(execution.state)(style, execution.state.to_string());
    let input = String::from_utf8_lossy(execution.input.bytes()).into_owned();
    let lasted = execution.started_at.zip(execution.finished_at).filter(|(start, end)| start <= end);
    let rows = present([
        ("workflow", Some(execution.workflow.to_string())),
        ("input", Some(json_value(&input))),
        ("key", execution.key.as_ref().map(ToString::to_string)),
        ("attempt", Some(execution.attempt.to_string())),
        ("retry of", execution.retry_of.map(|id| id.to_string())),
        ("progress", execution.progress.as_ref().map(|progress| visible(&progress.to_string()))),
        ("result", execution.result.as_ref().map(|result| json_value(result.as_str()))),
        ("may run for", execution.max_runtime.map(|longest| short(longest.as_duration()))),
        ("token", Some(execution.token.to_string())),
        ("added", Some(when(now, execution.created_at))),
        ("started by", execution.started_by.as_deref().map(visible)),
        ("worker", execution.worker.map(|worker| worker.to_string())),
        ("started", execution.started_at.map(|start| when(now, start))),
        ("lease until", execution.lease_expires_at.map(|end| when(now, end))),
        ("ended", execution.finished_at.map(|end| when(now, end))),
        ("after", lasted.map(|(start, end)| short(end.since(start)))),
        ("stop requested", execution.cancel_requested_by.as_ref().map(|by| format!("by {by}"))),
    ]);
    let mut page =
        lines([format!("{}  {state}", style.bold(execution.id))]) + &block(2, &rows, Layout::Plain);
    if let Some(reason) = &execution.reason {
        page += "reason\n";
        page += &lines(reason.lines().map(|line| format!("  {}", visible(line))));
    }
    page
}
