//! `tasks retry`, `tasks cancel`, `queues pause`, `queues resume`.

use leasehold::client::TaskView;
use leasehold::model::{QueueName, Task, TaskId, TaskState};
use leasehold::store::ListTasks;
use leasehold::{Error, Tasks};
use serde::Serialize;

use crate::cli::{CancelArgs, PauseArgs, RetryArgs};
use crate::commands::dispatch::{Desk, Done};
use crate::exit;
use crate::identity::Identity;
use crate::output::{Failure, Progress, count};

/// Maximum number of tasks per query.
const PAGE: u32 = 500;

pub(super) async fn retry(desk: &Desk, args: RetryArgs) -> Done {
    let tasks = desk.open().await?.tasks()?;
    let by = Identity::here().person()?;
    if let Some(queue) = args.queue.filter(|_| args.failed) {
        return retry_failed(desk, &tasks, queue).await;
    }
    each(desk, &args.ids, async |id| tasks.retry(id, by.clone()).await).await
}

/// Number of tasks that will be retried, as JSON.
#[derive(Serialize)]
struct Retried {
    retried: u64,
}

async fn retry_failed(desk: &Desk, tasks: &Tasks, queue: QueueName) -> Done {
    let status = tasks.queue(&queue).await?;
    let by = Identity::here().person()?;
    let mut progress = Progress::new(desk.printer, "retrying", Some(status.counts.get(TaskState::Failed)));
    let mut ask =
        ListTasks { queue: Some(queue), state: Some(TaskState::Failed), limit: PAGE, ..ListTasks::default() };
    let mut retried = 0;
    loop {
        let page = tasks.list(&ask).await?;
        for task in page.items {
            match tasks.retry(task.id, by.clone()).await {
                Ok(_) => retried += 1,
                // Another caller has changed or removed the task in the meantime.
                Err(Error::TaskState { .. } | Error::UnknownTask(_)) => {}
                Err(error) => return Err(error.into()),
            }
            progress.add(1);
        }
        ask.after = page.next;
        if ask.after.is_none() {
            break;
        }
    }
    drop(progress);
    desk.printer
        .done(&Retried { retried }, |_| format!("{} will be tried again\n", count(retried, "task")))?;
    Ok(exit::SUCCESS)
}

pub(super) async fn cancel(desk: &Desk, args: CancelArgs) -> Done {
    let tasks = desk.open().await?.tasks()?;
    let by = Identity::here().person()?;
    each(desk, &args.ids, async |id| tasks.cancel(id, by.clone(), args.reason.clone()).await).await
}

/// Applies the change to each task. A failure does not stop the remaining changes; the exit code is
/// that of the first failure.
async fn each(desk: &Desk, ids: &[TaskId], change: impl AsyncFn(TaskId) -> Result<Task, Error>) -> Done {
    let (mut changed, mut failed) = (Vec::new(), None);
    for id in ids {
        match change(*id).await {
            Ok(task) => changed.push(task),
            Err(error) => {
                let failure = Failure::from(error);
                failure.print(desk.printer.json);
                failed.get_or_insert(failure.exit);
            }
        }
    }
    let views: Vec<_> = changed.iter().map(TaskView::from).collect();
    desk.printer.result(&views, |_| changed.iter().map(stands).collect())?;
    Ok(failed.unwrap_or(exit::SUCCESS))
}

fn stands(task: &Task) -> String {
    let asked = task.state == TaskState::Running && task.cancel.is_some();
    let word = if asked { "stopping".to_owned() } else { task.state.to_string() };
    format!("{}  {word}\n", task.id.short())
}

/// State of a queue, as JSON.
#[derive(Serialize)]
struct QueueStands<'a> {
    queue: &'a str,
    paused: bool,
}

pub(super) async fn pause(desk: &Desk, args: PauseArgs) -> Done {
    let PauseArgs { queue, reason } = args;
    let by = Identity::here().person()?;
    desk.open().await?.tasks()?.pause(&queue, by, reason).await?;
    tell(desk, &queue, true)
}

pub(super) async fn resume(desk: &Desk, queue: &QueueName) -> Done {
    desk.open().await?.tasks()?.resume(queue).await?;
    tell(desk, queue, false)
}

fn tell(desk: &Desk, queue: &QueueName, paused: bool) -> Done {
    let view = QueueStands { queue: queue.as_str(), paused };
    desk.printer.done(&view, |_| {
        let word = if paused { "paused" } else { "resumed" };
        format!("queue '{queue}' is {word}\n")
    })?;
    Ok(exit::SUCCESS)
}
