//! Dispatch of the command groups `tasks` and `queues`.

use super::{add, queries, update, work};
use crate::cli::{QueuesCommand, TasksCommand};
use crate::commands::context::{CommandContext, CommandResult};
use crate::exit;

pub(in crate::commands) async fn tasks(context: &CommandContext, command: TasksCommand) -> CommandResult {
    match command {
        TasksCommand::Add(args) => add::add(context, *args).await,
        TasksCommand::List(args) => queries::list(context, args).await,
        TasksCommand::Show { id } => queries::show(context, id).await,
        TasksCommand::Counts { queue } => queries::counts(context, queue).await,
        TasksCommand::Retry(args) => update::retry(context, args).await,
        TasksCommand::Cancel(args) => update::cancel(context, args).await,
        TasksCommand::Update(args) => update::update(context, *args).await,
        TasksCommand::Progress(args) => work::progress(args),
        TasksCommand::Recover => update::recover(context).await,
        TasksCommand::Purge(args) => update::purge(context, args).await,
        // Handled in the main dispatch, because it creates its own runtime.
        TasksCommand::Work(_) => Ok(exit::SUCCESS),
    }
}

pub(in crate::commands) async fn queues(context: &CommandContext, command: QueuesCommand) -> CommandResult {
    match command {
        QueuesCommand::List => queries::counts(context, None).await,
        QueuesCommand::Pause(args) => update::pause(context, args).await,
        QueuesCommand::Resume { queue } => update::resume(context, &queue).await,
        QueuesCommand::Retention(args) => update::retention(context, args).await,
    }
}
