//! `tasks add`.

use leasehold::model::{Payload, RetryPolicy, TaskId, TaskState};
use leasehold::{EnqueueBuilder, EnqueueResult, Leasehold};
use serde::Serialize;

use super::{lines, payload};
use crate::cli::AddArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;

/// Added task, as JSON.
#[derive(Serialize)]
struct AddedView {
    id: TaskId,
    queue: String,
    duplicate: bool,
    /// Current state of a duplicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<TaskState>,
}

pub(super) async fn add(desk: &Desk, mut args: AddArgs) -> Done {
    if let Some(file) = args.lines.take() {
        return lines::add(desk, &args, &file).await;
    }
    let payload = payload::read(args.payload.take())?;
    let leasehold = desk.open_lasting("a task").await?;
    let EnqueueResult { id, duplicate } = prepared(&leasehold, &args, payload).await?;
    let state = if duplicate { Some(leasehold.tasks()?.get(id).await?.state) } else { None };
    let view = AddedView { id, queue: args.queue.to_string(), duplicate, state };
    desk.printer.done(&view, |paint| {
        let word = state.map(|state| format!("  {} {state}", paint.warning("duplicate")));
        format!("{id}{}\n", word.unwrap_or_default())
    })?;
    Ok(match state {
        Some(TaskState::Failed | TaskState::Aborted) => exit::DUPLICATE_FAILED,
        _ => exit::SUCCESS,
    })
}

/// Returns a builder for a task with these options, not enqueued yet.
pub(super) fn prepared(leasehold: &Leasehold, args: &AddArgs, payload: Payload) -> EnqueueBuilder {
    let mut task = leasehold.enqueue_to(args.queue.clone(), payload);
    task = task.retries(args.steps.over(RetryPolicy::default()));
    if let Some(key) = &args.key {
        task = task.key(key.clone());
    }
    if let Some(reuse) = args.reuse {
        task = task.reuse(reuse.into());
    }
    if let Some(time) = args.run_at {
        task = task.run_at(time);
    }
    if let Some(delay) = args.delay {
        task = task.delay(delay);
    }
    if let Some(priority) = args.priority {
        task = task.priority(priority.get());
    }
    match &args.lock {
        Some(lock) => task.lock(lock.clone()),
        None => task,
    }
}
