//! Text and JSON output of workflows and executions.

use std::collections::BTreeMap;

use leasehold::model::{TaskState, Timestamp};
use leasehold::{Execution, WorkflowLock, WorkflowStatus};
use serde::Serialize;

use super::tasks::tint;
use super::text::{Style, Table, Tint, ago, block, lines, plain, short, visible, when};

/// Maximum length, in characters, of a note in a row, and of an input or a result on a page.
const NOTE_CHARS: usize = 60;
const JSON_CHARS: usize = 2000;

/// Workflow, as JSON.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WorkflowView {
    workflow: String,
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

/// Returns a table with a row for each workflow and a column for each state.
pub(crate) fn workflow_table(workflows: &[WorkflowStatus], style: Style) -> String {
    let states = TaskState::ALL.map(|state| state.as_str().to_uppercase());
    let headings: Vec<&str> = ["WORKFLOW"].into_iter().chain(states.iter().map(String::as_str)).collect();
    let mut table = Table::new(&headings);
    for status in workflows {
        let mut row = vec![status.workflow.to_string()];
        row.extend(TaskState::ALL.map(|state| status.counts.get(state).to_string()));
        let tint: Tint = if status.paused.is_some() { Style::warning } else { plain };
        table.row(tint, row);
    }
    table.render(style)
}

/// Returns a page about the lock of a workflow.
pub(crate) fn workflow_page(lock: &WorkflowLock, style: Style) -> String {
    let word = match (lock.is_locked, lock.is_stale) {
        (true, _) => style.good("locked"),
        (false, true) => style.warning("stale"),
        (false, false) => style.dim("free"),
    };
    let facts = [
        ("execution", lock.execution_id.map(|id| id.to_string())),
        ("holder", lock.holder.as_ref().map(ToString::to_string)),
        ("since", lock.locked_since.map(|since| when(lock.now, since))),
        ("until", lock.expires_at.map(|until| when(lock.now, until))),
        ("token", Some(lock.token.to_string())),
        ("waiting", Some(lock.queued.to_string())),
    ];
    let facts: Vec<_> = facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    lines([format!("{}  {word}", style.bold(&lock.workflow))]) + &block(2, &facts)
}

/// Returns a table with a row for each execution.
pub(crate) fn execution_table(executions: &[Execution], now: Timestamp, style: Style) -> String {
    let mut table = Table::new(&["ID", "WORKFLOW", "STATE", "ATTEMPT", "ADDED", "STARTED", "ENDED", "NOTE"]);
    let age = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| ago(now, time));
    for execution in executions {
        let row = vec![
            execution.id.to_string(),
            execution.workflow.to_string(),
            execution.state.to_string(),
            execution.attempt.to_string(),
            ago(now, execution.created_at),
            age(execution.started_at),
            age(execution.finished_at),
            note(execution),
        ];
        table.row(tint(execution.state), row);
    }
    table.render(style)
}

/// Returns the progress, or the error.
fn note(execution: &Execution) -> String {
    let asked = execution.cancel_requested_by.as_ref().filter(|_| execution.state == TaskState::Running);
    let progress = execution.progress.as_ref().filter(|_| execution.state == TaskState::Running);
    let text = match (asked, progress, &execution.reason) {
        (Some(_), ..) => "stopping".to_owned(),
        (_, Some(progress), _) => progress.to_string(),
        (_, _, Some(reason)) => reason.lines().next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    cut(&text, NOTE_CHARS, "…")
}

/// Returns a page with all details of one execution.
pub(crate) fn execution_page(execution: &Execution, now: Timestamp, style: Style) -> String {
    let state = tint(execution.state)(style, execution.state.to_string());
    let input = String::from_utf8_lossy(execution.input.bytes()).into_owned();
    let more = "… (all of it with --json)";
    let lasted = execution.started_at.zip(execution.finished_at).filter(|(start, end)| start <= end);
    let facts = [
        ("workflow", Some(execution.workflow.to_string())),
        ("input", Some(cut(&input, JSON_CHARS, more))),
        ("key", execution.key.as_ref().map(ToString::to_string)),
        ("attempt", Some(execution.attempt.to_string())),
        ("retry of", execution.retry_of.map(|id| id.to_string())),
        ("progress", execution.progress.as_ref().map(|progress| visible(&progress.to_string()))),
        ("result", execution.result.as_ref().map(|result| cut(result.as_str(), JSON_CHARS, more))),
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
    ];
    let facts: Vec<_> = facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let mut page = lines([format!("{}  {state}", style.bold(execution.id))]) + &block(2, &facts);
    if let Some(reason) = &execution.reason {
        page += "reason\n";
        page += &lines(reason.lines().map(|line| format!("  {}", visible(line))));
    }
    page
}

fn cut(text: &str, most: usize, end: &str) -> String {
    let text = visible(text);
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}{end}", &text[..at]),
        None => text,
    }
}
