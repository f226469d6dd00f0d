//! Page with all details of one task.

use leasehold::model::{Task, TaskEvent, TaskState, Timestamp, format_duration};

use super::list::tint;
use crate::output::paint::Paint;
use crate::output::table::block;
use crate::output::text::{lines, short, visible, when};

/// Maximum length of a shown payload or result, in characters.
const JSON_CHARS: usize = 2000;

/// Returns the page: the task, its state and its history.
pub(crate) fn task_page(task: &Task, now: Timestamp, paint: Paint) -> String {
    let state = tint(task.state)(paint, task.state.to_string());
    let mut page = lines([format!("{}  {state}", paint.bold(task.id.short()))]);
    page += &block(2, &facts(task, now));
    if let Some(error) = &task.error {
        page += "error\n";
        page += &lines(error.as_str().lines().map(|line| format!("  {}", visible(line))));
    }
    if !task.events.is_empty() {
        page += "what happened\n";
        page += &lines(task.events.iter().map(|event| format!("  {}", happened(event))));
    }
    page
}

fn facts(task: &Task, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut facts = vec![("queue", task.queue.to_string()), ("payload", json(task.payload.as_str()))];
    let optional = [
        ("key", task.key.as_ref().map(ToString::to_string)),
        ("lock", task.lock.as_ref().map(ToString::to_string)),
        ("progress", task.progress.as_ref().map(|progress| visible(&progress.to_string()))),
        ("result", task.result.as_ref().map(|result| json(result.as_str()))),
    ];
    facts.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let (attempts, pause) = (task.retries.attempts, format_duration(task.retries.first.as_duration()));
    facts.extend([
        ("priority", task.priority.get().to_string()),
        ("attempt", format!("{} of {attempts}, backoff {pause}", task.attempt)),
        ("version", task.version.to_string()),
        ("token", task.token.to_string()),
        ("added", when(now, task.created_at)),
    ]);
    if task.state == TaskState::Scheduled {
        facts.push(("runs", when(now, task.run_at)));
    }
    if let Some(worker) = task.worker {
        let name = if task.state == TaskState::Running { "worker" } else { "last worker" };
        facts.push((name, worker.to_string()));
    }
    if task.expiries > 0 {
        let alone = if task.runs_alone() { "; runs alone" } else { "" };
        facts.push(("leases that ran out", format!("{} in a row{alone}", task.expiries)));
    }
    match (task.leased_at, task.finished_at) {
        (Some(start), Some(end)) if start <= end => {
            facts.push(("started", when(now, start)));
            facts.push(("ended", format!("{}, after {}", when(now, end), short(end.since(start)))));
        }
        (Some(start), None) if task.state == TaskState::Running => facts.push(("started", when(now, start))),
        (_, Some(end)) => facts.push(("ended", when(now, end))),
        _ => {}
    }
    if let Some(end) = task.lease_expires_at.filter(|_| task.state == TaskState::Running) {
        facts.push(("lease until", when(now, end)));
    }
    if let Some(cancel) = &task.cancel {
        let why = cancel.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        facts.push(("cancelled", format!("by {} at {}{why}", cancel.by, cancel.at)));
    }
    if task.archived {
        facts.push(("archived", "yes".to_owned()));
    }
    facts
}

/// Returns one event of the history as a line.
fn happened(event: &TaskEvent) -> String {
    let attempt = if event.attempt > 0 { format!("  attempt {}", event.attempt) } else { String::new() };
    let took = event.leased_at.map(|start| format!(", after {}", short(event.at.since(start))));
    let by = event.by.as_ref().map(|by| format!("  by {by}"));
    let why =
        event.why.as_ref().and_then(|why| why.as_str().lines().rev().find(|line| !line.trim().is_empty()));
    let why = why.map(|line| format!("  {}", visible(line.trim())));
    let [took, by, why] = [took, by, why].map(Option::unwrap_or_default);
    format!("{}  {}{attempt}{took}{by}{why}", event.at, event.kind)
}

fn json(text: &str) -> String {
    let text = visible(text);
    match text.char_indices().nth(JSON_CHARS) {
        Some((end, _)) => format!("{}… (all of it with --json)", &text[..end]),
        None => text,
    }
}
