//! `tasks retry`, `cancel` and `update`; `queues pause` and `resume`.

use leasehold::client::TaskView;
use leasehold::model::{Change, QueueName, RetryPolicy, Task, TaskId, TaskState};
use leasehold::store::ListTasks;
use leasehold::{Error, Tasks};
use serde::Serialize;

use super::payload;
use crate::cli::{CancelArgs, PauseArgs, RetryArgs, UpdateArgs};
use crate::commands::dispatch::{CommandContext, CommandResult};
use crate::exit;
use crate::identity::Identity;
use crate::output::{Failure, Progress, count};

/// Maximum number of tasks per query.
const PAGE: u32 = 500;

pub(super) async fn retry(context: &CommandContext, args: RetryArgs) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let by = Identity::current().operator()?;
    if let Some(queue) = args.queue.filter(|_| args.failed) {
        return retry_failed(context, &tasks, queue).await;
    }
    each(context, &args.ids, async |id| tasks.retry(id, by.clone()).await).await
}

/// Number of tasks that will be retried, as JSON.
#[derive(Serialize)]
struct Retried {
    retried: u64,
}

async fn retry_failed(context: &CommandContext, tasks: &Tasks, queue: QueueName) -> CommandResult {
    let status = tasks.queue(&queue).await?;
    let by = Identity::current().operator()?;
    let mut progress = Progress::new(context.printer, "retrying", Some(status.counts.get(TaskState::Failed)));
    let mut query =
        ListTasks { queue: Some(queue), state: Some(TaskState::Failed), limit: PAGE, ..ListTasks::default() };
    let mut retried = 0;
    loop {
        let page = tasks.list(&query).await?;
        for task in page.items {
            match tasks.retry(task.id, by.clone()).await {
                Ok(_) => retried += 1,
                // Another caller has changed or removed the task in the meantime.
                Err(Error::TaskState { .. } | Error::UnknownTask(_)) => {}
                Err(error) => return Err(error.into()),
            }
            progress.add(1);
        }
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    drop(progress);
    context
        .printer
        .success(&Retried { retried }, |_| format!("{} will be retried\n", count(retried, "task")))?;
    Ok(exit::SUCCESS)
}

pub(super) async fn cancel(context: &CommandContext, args: CancelArgs) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let by = Identity::current().operator()?;
    each(context, &args.ids, async |id| tasks.cancel(id, by.clone(), args.reason.clone()).await).await
}

/// Applies the change to each task. A failure does not stop the remaining changes; the exit code is
/// that of the first failure.
async fn each(
    context: &CommandContext,
    ids: &[TaskId],
    change: impl AsyncFn(TaskId) -> Result<Task, Error>,
) -> CommandResult {
    let (mut changed, mut failed) = (Vec::new(), None);
    for id in ids {
        match change(*id).await {
            Ok(task) => changed.push(task),
            Err(error) => {
                let failure = Failure::from(error);
                failure.print(context.printer.json);
                failed.get_or_insert(failure.exit);
            }
        }
    }
    let views: Vec<_> = changed.iter().map(TaskView::from).collect();
    context.printer.result(&views, |_| changed.iter().map(state_line).collect())?;
    Ok(failed.unwrap_or(exit::SUCCESS))
}

fn state_line(task: &Task) -> String {
    let stopping = task.state == TaskState::Running && task.cancel.is_some();
    let word = if stopping { "stopping".to_owned() } else { task.state.to_string() };
    format!("{}  {word}\n", task.id.short())
}

/// State of a queue, as JSON.
#[derive(Serialize)]
struct PausedView<'a> {
    queue: &'a str,
    paused: bool,
}

pub(super) async fn pause(context: &CommandContext, args: PauseArgs) -> CommandResult {
    let PauseArgs { queue, reason } = args;
    let by = Identity::current().operator()?;
    context.open().await?.tasks()?.pause(&queue, by, reason).await?;
    print_paused(context, &queue, true)
}

pub(super) async fn resume(context: &CommandContext, queue: &QueueName) -> CommandResult {
    context.open().await?.tasks()?.resume(queue).await?;
    print_paused(context, queue, false)
}

fn print_paused(context: &CommandContext, queue: &QueueName, paused: bool) -> CommandResult {
    let view = PausedView { queue: queue.as_str(), paused };
    context.printer.success(&view, |_| {
        let word = if paused { "paused" } else { "resumed" };
        format!("queue '{queue}' is {word}\n")
    })?;
    Ok(exit::SUCCESS)
}

pub(super) async fn update(context: &CommandContext, args: UpdateArgs) -> CommandResult {
    let payload = args.payload.map(|source| payload::read(Some(source))).transpose()?;
    let tasks = context.open().await?.tasks()?;
    let retries = match args.max_attempts {
        // The delays of the policy stay. If they change in between, so does the version.
        Some(attempts) => Some(RetryPolicy { attempts, ..tasks.get(args.id).await?.retries }),
        None => None,
    };
    let change = Change {
        expected: args.version,
        by: Some(Identity::current().operator()?),
        payload,
        priority: args.priority,
        run_at: args.run_at,
        retries,
        archived: None,
    };
    let task = tasks.update(args.id, change).await?;
    context.printer.success(&TaskView::from(&task), |_| {
        format!("{}  {}, version {}\n", task.id, task.state, task.version)
    })?;
    Ok(exit::SUCCESS)
}
