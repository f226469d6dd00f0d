//! `tasks list`, `tasks show`, `tasks counts`, `queues list`, `workers`.

use leasehold::client::{QueueView, TaskView, WorkerView};
use leasehold::model::{QueueName, TaskId};
use leasehold::store::ListTasks;

use crate::cli::ListTasksArgs;
use crate::commands::context::{CommandContext, CommandResult};
use crate::exit;
use crate::output::{queue_table, task_page, task_table, worker_table};

/// Maximum number of tasks per query.
const PAGE: u32 = 500;

pub(super) async fn list(context: &CommandContext, args: ListTasksArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let limit = if args.all { usize::MAX } else { args.limit as usize };
    let mut query = ListTasks::default()
        .queue(args.queue)
        .state(args.state)
        .lock(args.lock)
        .worker(args.worker)
        .archived(args.archived)
        .limit(PAGE.min(args.limit.saturating_add(1)));
    if args.all {
        query.limit = PAGE;
    }
    let mut found = Vec::new();
    loop {
        let page = tasks.list(&query).await?;
        found.extend(page.items);
        query.after = page.next;
        if query.after.is_none() || found.len() > limit {
            break;
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let now = leasehold.now().await?;
    let views: Vec<_> = found.iter().map(TaskView::from).collect();
    context.printer.result(&views, |style| {
        if found.is_empty() { String::new() } else { task_table(&found, now, style) }
    })?;
    if found.is_empty() {
        context.printer.message("no such task");
    }
    if more {
        context.printer.message("there are more; raise --limit, or use --all");
    }
    Ok(exit::SUCCESS)
}

pub(super) async fn show(context: &CommandContext, id: TaskId) -> CommandResult {
    let leasehold = context.open().await?;
    let task = leasehold.tasks()?.get(id).await?;
    let now = leasehold.now().await?;
    context.printer.result(&TaskView::from(&task), |style| task_page(&task, now, style))?;
    Ok(exit::SUCCESS)
}

pub(super) async fn counts(context: &CommandContext, queue: Option<QueueName>) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let queues = match queue {
        Some(queue) => vec![tasks.queue(&queue).await?],
        None => tasks.queues().await?,
    };
    let views: Vec<_> = queues.iter().map(QueueView::from).collect();
    context.printer.result(&views, |style| {
        if queues.is_empty() { String::new() } else { queue_table(&queues, style) }
    })?;
    if queues.is_empty() {
        context.printer.message("there is no queue yet: a queue is created with its first task");
    }
    Ok(exit::SUCCESS)
}

pub(in crate::commands) async fn workers(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let workers = leasehold.tasks()?.workers().await?;
    let now = leasehold.now().await?;
    let views: Vec<_> = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
    context.printer.result(&views, |style| {
        if workers.is_empty() { String::new() } else { worker_table(&workers, now, style) }
    })?;
    if workers.is_empty() {
        context.printer.message("no worker is running: a worker that has ended is not listed, one that was killed is, for an hour");
    }
    Ok(exit::SUCCESS)
}
