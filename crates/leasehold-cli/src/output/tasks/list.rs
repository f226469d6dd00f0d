//! Tasks as a table.

use leasehold::model::{Task, TaskState, Timestamp};

use crate::output::paint::Paint;
use crate::output::table::{Table, Tint, plain};
use crate::output::text::{ago, shortly, visible};

/// Maximum length of a note in a row, in characters.
const NOTE_CHARS: usize = 60;

/// Returns a table with a row for each task.
pub(crate) fn task_table(tasks: &[Task], now: Timestamp, paint: Paint) -> String {
    let mut table = Table::new(&["ID", "QUEUE", "STATE", "PRIORITY", "ATTEMPT", "ADDED", "WHEN", "NOTE"]);
    for task in tasks {
        let row = vec![
            task.id.short(),
            task.queue.to_string(),
            task.state.to_string(),
            task.priority.get().to_string(),
            format!("{}/{}", task.attempt, task.retries.attempts),
            ago(now, task.created_at),
            moment(task, now),
            note(task),
        ];
        table.row(tint(task.state), row);
    }
    table.paint(paint)
}

pub(in crate::output) fn tint(state: TaskState) -> Tint {
    match state {
        TaskState::Failed => Paint::bad,
        TaskState::Running => Paint::good,
        TaskState::Scheduled | TaskState::Blocked => Paint::dim,
        TaskState::Aborted => Paint::warning,
        TaskState::Pending | TaskState::Succeeded => plain,
    }
}

/// Returns the relevant time: when the task will run, since when it runs, or when it ended.
fn moment(task: &Task, now: Timestamp) -> String {
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
