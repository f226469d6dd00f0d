//! Dispatch of the command groups `tasks` and `queues`.

use super::{add, change, look, progress, retention, tidy, update};
use crate::cli::{QueuesCommand, TasksCommand};
use crate::commands::dispatch::{Desk, Done};
use crate::exit;

pub(in crate::commands) async fn tasks(desk: &Desk, command: TasksCommand) -> Done {
    match command {
        TasksCommand::Add(args) => add::add(desk, *args).await,
        TasksCommand::List(args) => look::list(desk, args).await,
        TasksCommand::Show { id } => look::show(desk, id).await,
        TasksCommand::Counts { queue } => look::counts(desk, queue).await,
        TasksCommand::Retry(args) => change::retry(desk, args).await,
        TasksCommand::Cancel(args) => change::cancel(desk, args).await,
        TasksCommand::Update(args) => update::update(desk, *args).await,
        TasksCommand::Progress(args) => progress::progress(args),
        TasksCommand::Recover => tidy::recover(desk).await,
        TasksCommand::Purge(args) => tidy::purge(desk, args).await,
        // Handled in the main dispatch, because it creates its own runtime.
        TasksCommand::Work(_) => Ok(exit::SUCCESS),
    }
}

pub(in crate::commands) async fn queues(desk: &Desk, command: QueuesCommand) -> Done {
    match command {
        QueuesCommand::List => look::counts(desk, None).await,
        QueuesCommand::Pause(args) => change::pause(desk, args).await,
        QueuesCommand::Resume { queue } => change::resume(desk, &queue).await,
        QueuesCommand::Retention(args) => retention::retention(desk, args).await,
    }
}
