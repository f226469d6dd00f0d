//! `tasks list`, `tasks show`, `tasks counts`, `queues list`, `workers`.

use leasehold::client::{QueueView, TaskExplanationView, TaskView, WorkerView};
use leasehold::model::{QueueName, WorkflowName};
use leasehold::store::ListTasks;
use leasehold::{Error, Tasks};

use crate::cli::{ListTasksArgs, TaskIdArg};
use crate::commands::context::{CommandContext, CommandResult, collect_pages};
use crate::commands::ids;
use crate::output::{
    List, lines, queue_table, suggestion, task_page, task_table, visible, worker_table, wrapped,
};

const PAGE: u32 = 500;

pub(in crate::commands) async fn list(context: &CommandContext, args: ListTasksArgs) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let worker = match &args.worker {
        Some(worker) => Some(ids::worker(&tasks, worker).await?),
        None => None,
    };
    let limit = if args.all { usize::MAX } else { args.limit as usize };
    let queue = args.queue.clone();
    let first = ListTasks::default()
        .queue(args.queue)
        .state(args.state)
        .lock(args.lock)
        .worker(worker)
        .archived(args.archived)
        .limit(if args.all { PAGE } else { PAGE.min(args.limit.saturating_add(1)) });
    context
        .print_list(&leasehold, async |printer| {
            let mut query = first.clone();
            let mut found = collect_pages(limit, async |after| {
                query.after = after;
                tasks.list(&query).await
            })
            .await?;
            let more = found.len() > limit;
            found.truncate(limit);
            let now = leasehold.now().await?;
            let views: Vec<_> = found.iter().map(TaskView::from).collect();
            let unknown = match &queue {
                Some(queue) if views.is_empty() => unknown_queue(&tasks, queue).await?,
                _ => None,
            };
            printer.list(List {
                values: &views,
                name: |view: &TaskView| view.id.clone(),
                empty: unknown.as_deref().unwrap_or("no such task"),
                more: more.then_some("there are more; raise --limit, or use --all"),
                table: |style| task_table(&found, now, style),
            })
        })
        .await
}

/// Returns a message if the queue, or the workflow of which it is the queue, does not exist, with the name of a
/// similar one.
pub(in crate::commands) async fn unknown_queue(
    tasks: &Tasks,
    queue: &QueueName,
) -> Result<Option<String>, Error> {
    let (queue, known) = match tasks.queue(queue).await {
        Ok(_) => return Ok(None),
        Err(Error::UnknownQueue { queue, known }) => (queue, known),
        Err(error) => return Err(error),
    };
    Ok(Some(match WorkflowName::of_queue(&queue) {
        Some(workflow) => {
            let known = known.iter().filter_map(WorkflowName::of_queue).map(|name| name.to_string());
            let similar = suggestion(workflow.as_str(), known);
            format!("the workflow '{workflow}' was never started{similar}")
        }
        None => {
            let similar = suggestion(queue.as_str(), known.iter().map(ToString::to_string));
            format!("the queue '{queue}' has never had a task{similar}")
        }
    }))
}

pub(in crate::commands) async fn show(context: &CommandContext, id: &TaskIdArg) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let task = tasks.get(ids::task(&tasks, id).await?).await?;
    let now = leasehold.now().await?;
    context.printer.result(&TaskView::from(&task), |style| task_page(&task, now, style))
}

pub(in crate::commands) async fn why(context: &CommandContext, id: &TaskIdArg) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let explanation = tasks.why(ids::task(&tasks, id).await?).await?;
    let view = TaskExplanationView::from(&explanation);
    context.printer.result(&view, |style| {
        let head = format!("Task {} of queue '{}' is {}.", view.id, view.queue, style.bold(&view.state));
        let reasons = view.reasons.iter().map(|reason| wrapped(&visible(&reason.text), 2, style));
        lines(std::iter::once(head).chain(reasons))
    })
}

pub(in crate::commands) async fn counts(context: &CommandContext, queue: Option<QueueName>) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    context
        .print_list(&leasehold, async |printer| {
            let queues = match &queue {
                Some(queue) => vec![tasks.queue(queue).await?],
                None => tasks.queues().await?,
            };
            let views: Vec<_> = queues.iter().map(QueueView::from).collect();
            printer.list(List {
                values: &views,
                name: |view: &QueueView| view.queue.clone(),
                empty: "there is no queue yet: a queue is created with its first task",
                more: None,
                table: |style| queue_table(&queues, style),
            })
        })
        .await
}

pub(in crate::commands) async fn workers(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    context
        .print_list(&leasehold, async |printer| {
            let (workers, now) = (tasks.workers().await?, leasehold.now().await?);
            let views: Vec<_> = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
            printer.list(List {
                values: &views,
                name: |view: &WorkerView| view.id.clone(),
                empty: "no worker is running: a worker that has ended is not listed, one that was killed is, \
                        for an hour",
                more: None,
                table: |style| worker_table(&workers, now, style),
            })
        })
        .await
}
