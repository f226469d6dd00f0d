//! `tasks add`.

use leasehold::model::{Payload, Retries, TaskId};
use leasehold::{Added, EnqueueBuilder, Leasehold};
use serde::Serialize;

use super::{lines, payload};
use crate::cli::AddArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;

/// What was added, for programs.
#[derive(Serialize)]
struct AddedView {
    success: bool,
    id: TaskId,
    queue: String,
    duplicate: bool,
}

pub(super) async fn add(desk: &Desk, mut args: AddArgs) -> Done {
    if let Some(file) = args.lines.take() {
        return lines::add(desk, &args, &file).await;
    }
    let payload = payload::read(args.payload.take())?;
    let Added { id, duplicate } = prepared(&desk.open_lasting("a task").await?, &args, payload).await?;
    let view = AddedView { success: true, id, queue: args.queue.to_string(), duplicate };
    desk.printer.result(&view, |paint| {
        let word = if duplicate { format!("  {}", paint.warning("duplicate")) } else { String::new() };
        format!("{id}{word}\n")
    })?;
    Ok(exit::SUCCESS)
}

/// A task as the options want it, not added yet.
pub(super) fn prepared(leasehold: &Leasehold, args: &AddArgs, payload: Payload) -> EnqueueBuilder {
    let mut task = leasehold.enqueue_to(args.queue.clone(), payload);
    task = task.retries(args.steps.over(Retries::default()));
    if let Some(key) = &args.key {
        task = task.key(key.clone());
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
