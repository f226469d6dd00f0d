//! `tasks list`, `tasks show`, `tasks counts`, `queues list`, `workers`.

use leasehold::client::{QueueView, TaskExplanationView, TaskView, WorkerView};
use leasehold::model::{QueueName, TaskId};
use leasehold::store::ListTasks;

use crate::cli::ListTasksArgs;
use crate::commands::context::{CommandContext, CommandResult, collect_pages};
use crate::output::{lines, queue_table, task_page, task_table, visible, worker_table};

const PAGE: u32 = 500;

pub(in crate::commands) async fn list(context: &CommandContext, args: ListTasksArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let limit = if args.all { usize::MAX } else { args.limit as usize };
    let mut query = ListTasks::default()
        .queue(args.queue)
        .state(args.state)
        .lock(args.lock)
        .worker(args.worker)
        .archived(args.archived)
        .limit(if args.all { PAGE } else { PAGE.min(args.limit.saturating_add(1)) });
    let mut found = collect_pages(limit, async |after| {
        query.after = after;
        tasks.list(&query).await
    })
    .await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let now = leasehold.now().await?;
    let views: Vec<_> = found.iter().map(TaskView::from).collect();
    let code = context.printer.list(&views, "no such task", |style| task_table(&found, now, style))?;
    if more {
        context.printer.message("there are more; raise --limit, or use --all");
    }
    Ok(code)
}

pub(in crate::commands) async fn show(context: &CommandContext, id: TaskId) -> CommandResult {
    let leasehold = context.open().await?;
    let task = leasehold.tasks()?.get(id).await?;
    let now = leasehold.now().await?;
    context.printer.result(&TaskView::from(&task), |style| task_page(&task, now, style))
}

pub(in crate::commands) async fn why(context: &CommandContext, id: TaskId) -> CommandResult {
    let explanation = context.open().await?.tasks()?.why(id).await?;
    let view = TaskExplanationView::from(&explanation);
    context.printer.result(&view, |style| {
        let head = format!("Task {} of queue '{}' is {}.", view.id, view.queue, style.bold(&view.state));
        lines(std::iter::once(head).chain(view.reasons.iter().map(|reason| visible(&reason.text))))
    })
}

pub(in crate::commands) async fn counts(context: &CommandContext, queue: Option<QueueName>) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let queues = match queue {
        Some(queue) => vec![tasks.queue(&queue).await?],
        None => tasks.queues().await?,
    };
    let views: Vec<_> = queues.iter().map(QueueView::from).collect();
    let empty = "there is no queue yet: a queue is created with its first task";
    context.printer.list(&views, empty, |style| queue_table(&queues, style))
}

pub(in crate::commands) async fn workers(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let workers = leasehold.tasks()?.workers().await?;
    let now = leasehold.now().await?;
    let views: Vec<_> = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
    let empty =
        "no worker is running: a worker that has ended is not listed, one that was killed is, for an hour";
    context.printer.list(&views, empty, |style| worker_table(&workers, now, style))
}
