//! `tasks list`, `tasks show`, `tasks counts`, `queues list`, `workers`.

use leasehold::client::{QueueView, TaskView, WorkerView};
use leasehold::model::{QueueName, TaskId};
use leasehold::store::ListTasks;

use crate::cli::ListTasksArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;
use crate::output::{queue_table, task_page, task_table, worker_table};

/// Maximum number of tasks per query.
const PAGE: u32 = 500;

pub(super) async fn list(desk: &Desk, args: ListTasksArgs) -> Done {
    let leasehold = desk.open().await?;
    let tasks = leasehold.tasks()?;
    let most = if args.all { usize::MAX } else { args.limit as usize };
    let mut ask = ListTasks {
        queue: args.queue,
        state: args.state,
        lock: args.lock,
        worker: args.worker,
        archived: args.archived,
        brief: false,
        after: None,
        limit: PAGE.min(args.limit.saturating_add(1)),
    };
    if args.all {
        ask.limit = PAGE;
    }
    let mut found = Vec::new();
    loop {
        let page = tasks.list(&ask).await?;
        found.extend(page.items);
        ask.after = page.next;
        if ask.after.is_none() || found.len() > most {
            break;
        }
    }
    let more = found.len() > most;
    found.truncate(most);
    let now = leasehold.now().await?;
    let views: Vec<_> = found.iter().map(TaskView::from).collect();
    desk.printer.result(&views, |paint| {
        if found.is_empty() { String::new() } else { task_table(&found, now, paint) }
    })?;
    if found.is_empty() {
        desk.printer.say("no such task");
    }
    if more {
        desk.printer.say("there are more; raise --limit, or use --all");
    }
    Ok(exit::SUCCESS)
}

pub(super) async fn show(desk: &Desk, id: TaskId) -> Done {
    let leasehold = desk.open().await?;
    let task = leasehold.tasks()?.get(id).await?;
    let now = leasehold.now().await?;
    desk.printer.result(&TaskView::from(&task), |paint| task_page(&task, now, paint))?;
    Ok(exit::SUCCESS)
}

pub(super) async fn counts(desk: &Desk, queue: Option<QueueName>) -> Done {
    let tasks = desk.open().await?.tasks()?;
    let queues = match queue {
        Some(queue) => vec![tasks.queue(&queue).await?],
        None => tasks.queues().await?,
    };
    let views: Vec<_> = queues.iter().map(QueueView::from).collect();
    desk.printer.result(&views, |paint| {
        if queues.is_empty() { String::new() } else { queue_table(&queues, paint) }
    })?;
    if queues.is_empty() {
        desk.printer.say("there is no queue yet: it comes into being with its first task");
    }
    Ok(exit::SUCCESS)
}

pub(in crate::commands) async fn workers(desk: &Desk) -> Done {
    let leasehold = desk.open().await?;
    let workers = leasehold.tasks()?.workers().await?;
    let now = leasehold.now().await?;
    let views: Vec<_> = workers.iter().map(|worker| WorkerView::new(worker, now)).collect();
    desk.printer.result(&views, |paint| {
        if workers.is_empty() { String::new() } else { worker_table(&workers, now, paint) }
    })?;
    if workers.is_empty() {
        desk.printer.say("no worker is running: a worker that has ended is not listed, one that was killed is, for an hour");
    }
    Ok(exit::SUCCESS)
}
