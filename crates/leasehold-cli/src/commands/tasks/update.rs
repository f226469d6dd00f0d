//! `tasks retry`, `cancel`, `update`, `recover` and `purge`; `queues pause`, `resume` and `retention`.

use std::io::{self, IsTerminal, Write};

use leasehold::client::{RetentionView, TaskView};
use leasehold::model::{
    FinishedFilter, QueueName, Recovered, Retention, RetryPolicy, Task, TaskId, TaskState, TaskUpdate, Ttl,
    format_duration,
};
use leasehold::store::ListTasks;
use leasehold::{Error, Tasks};
use serde::Serialize;
use serde_json::json;

use super::add;
use crate::cli::{CancelArgs, PauseArgs, PurgeArgs, RetentionArgs, RetryArgs, TaskIdArg, UpdateArgs};
use crate::commands::context::{CommandContext, CommandResult, change_each, with_code};
use crate::commands::ids;
use crate::identity::Identity;
use crate::output::{Failure, Progress, count, state_line};

const PAGE: u32 = 500;

pub(in crate::commands) async fn retry(context: &CommandContext, args: RetryArgs) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let by = Identity::current().operator()?;
    if args.failed {
        if let Some(queue) = &args.queue {
            tasks.queue(queue).await?;
        }
        let query = ListTasks::default().queue(args.queue).state(TaskState::Failed);
        let retry = async |id| tasks.retry(id, by.clone()).await;
        let retried = change_all(context, &tasks, "retrying", query, retry).await?;
        return context.printer.success(&json!({ "retried": retried }), |_| {
            format!("{} will be retried\n", count(retried, "task"))
        });
    }
    print_each(context, &tasks, &args.ids, async |id| tasks.retry(id, by.clone()).await).await
}

/// Applies the change to all tasks that the query finds, and returns the number of changed ones.
async fn change_all(
    context: &CommandContext,
    tasks: &Tasks,
    what: &'static str,
    mut query: ListTasks,
    change: impl AsyncFn(TaskId) -> Result<Task, Error>,
) -> Result<u64, Failure> {
    let mut progress = Progress::new(context.printer, what, None);
    let mut changed = 0;
    query = query.limit(PAGE);
    loop {
        let page = tasks.list(&query).await?;
        for task in page.items {
            match change(task.id).await {
                Ok(_) => changed += 1,
                // Another caller has changed or removed the task in the meantime.
                Err(Error::TaskState { .. } | Error::UnknownTask(_)) => {}
                Err(error) => return Err(error.into()),
            }
            progress.add(1);
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(changed);
        }
    }
}

pub(in crate::commands) async fn cancel(context: &CommandContext, args: CancelArgs) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    if let Some(queue) = &args.queue {
        tasks.queue(queue).await?;
    }
    if args.ids.is_empty() && !args.yes {
        confirm_cancel(&args)?;
    }
    let by = Identity::current().operator()?;
    let cancel = async |id| tasks.cancel(id, by.clone(), args.reason.clone()).await;
    if !args.ids.is_empty() {
        return print_each(context, &tasks, &args.ids, cancel).await;
    }
    let query = ListTasks::default().queue(args.queue).lock(args.lock);
    let states = [TaskState::Scheduled, TaskState::Blocked, TaskState::Pending, TaskState::Running];
    let mut cancelled = 0;
    for state in states.into_iter().filter(|state| args.state.is_none_or(|wanted| wanted == *state)) {
        cancelled += change_all(context, &tasks, "cancelling", query.clone().state(state), &cancel).await?;
    }
    context
        .printer
        .success(&json!({ "cancelled": cancelled }), |_| format!("{} cancelled\n", count(cancelled, "task")))
}

async fn print_each(
    context: &CommandContext,
    tasks: &Tasks,
    ids: &[TaskIdArg],
    change: impl AsyncFn(TaskId) -> Result<Task, Error>,
) -> CommandResult {
    let change = async |id: &TaskIdArg| Ok(change(ids::task(tasks, id).await?).await?);
    let (changed, code) = change_each(context, ids, change).await;
    let views: Vec<_> = changed.iter().map(TaskView::from).collect();
    with_code(context.printer.result(&views, |_| changed.iter().map(state_line).collect()), code)
}

#[derive(Serialize)]
struct PausedView<'a> {
    queue: &'a str,
    paused: bool,
}

pub(in crate::commands) async fn pause(context: &CommandContext, args: PauseArgs) -> CommandResult {
    let PauseArgs { queue, reason } = args;
    let by = Identity::current().operator()?;
    context.open().await?.tasks()?.pause(&queue, by, reason).await?;
    print_paused(context, &queue, true)
}

pub(in crate::commands) async fn resume(context: &CommandContext, queue: &QueueName) -> CommandResult {
    context.open().await?.tasks()?.resume(queue).await?;
    print_paused(context, queue, false)
}

fn print_paused(context: &CommandContext, queue: &QueueName, paused: bool) -> CommandResult {
    let view = PausedView { queue: queue.as_str(), paused };
    context.printer.success(&view, |_| {
        let word = if paused { "paused" } else { "resumed" };
        format!("queue '{queue}' is {word}\n")
    })
}

pub(in crate::commands) async fn update(context: &CommandContext, args: UpdateArgs) -> CommandResult {
    let payload = args.payload.map(|source| add::read(Some(source))).transpose()?;
    let tasks = context.open().await?.tasks()?;
    let id = ids::task(&tasks, &args.id).await?;
    let retries = match args.max_attempts {
        // The delays of the policy stay. If they change in between, so does the version.
        Some(attempts) => Some(RetryPolicy { attempts, ..tasks.get(id).await?.retries }),
        None => None,
    };
    let change = TaskUpdate {
        expected: args.version,
        by: Some(Identity::current().operator()?),
        payload,
        priority: args.priority,
        run_at: args.run_at,
        retries,
        archived: None,
    };
    let task = tasks.update(id, change).await?;
    context.printer.success(&TaskView::from(&task), |_| {
        format!("{}  {}, version {}\n", task.id, task.state, task.version)
    })
}

const BATCH: u32 = 500;

pub(in crate::commands) async fn recover(context: &CommandContext) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let mut all = Recovered::default();
    loop {
        let found = tasks.recover(BATCH).await?;
        all.returned += found.returned;
        all.failed += found.failed;
        all.aborted += found.aborted;
        all.promoted += found.promoted;
        if found.expired() < BATCH {
            break;
        }
    }
    let Recovered { returned, failed, aborted, promoted } = all;
    context.printer.success(&all, |_| {
        if all == Recovered::default() {
            return "nothing to recover\n".to_owned();
        }
        let leases = count(all.expired().into(), "lease");
        format!(
            "{leases} expired: {returned} can run again, {failed} failed, {aborted} aborted; \
             {promoted} due tasks added to their queue\n"
        )
    })
}

pub(in crate::commands) async fn purge(context: &CommandContext, args: PurgeArgs) -> CommandResult {
    if !args.yes {
        confirm(&args)?;
    }
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let before = leasehold.now().await?.minus(args.older_than);
    let which = FinishedFilter { queue: args.queue, state: args.state, before, limit: BATCH };
    let mut progress = Progress::new(context.printer, "clearing", None);
    let mut cleared = 0;
    loop {
        let some = if args.archive { tasks.archive(&which).await? } else { tasks.purge(&which).await? };
        cleared += some;
        progress.add(some);
        if some < u64::from(BATCH) {
            break;
        }
    }
    drop(progress);
    let (key, word) = if args.archive { ("archived", "archived") } else { ("purged", "deleted") };
    context.printer.success(&json!({ key: cleared }), |_| format!("{word} {}\n", count(cleared, "task")))
}

/// Describes the affected tasks and asks the operator for confirmation.
fn confirm(args: &PurgeArgs) -> Result<(), Failure> {
    let verb = if args.archive { "Archive" } else { "Delete" };
    let state = args.state.map_or("finished", TaskState::as_str);
    let queue = args.queue.as_ref().map(|queue| format!(" of queue '{queue}'")).unwrap_or_default();
    let age = format_duration(args.older_than);
    ask("a purge", &format!("{verb} all {state} tasks{queue} that ended more than {age} ago? [y/N] "))
}

fn confirm_cancel(args: &CancelArgs) -> Result<(), Failure> {
    let state = args.state.map_or("unfinished", TaskState::as_str);
    let queue = args.queue.as_ref().map(|queue| format!(" of queue '{queue}'")).unwrap_or_default();
    let lock = args.lock.as_ref().map(|lock| format!(" with lock '{lock}'")).unwrap_or_default();
    ask("cancelling by a filter", &format!("Cancel all {state} tasks{queue}{lock}? [y/N] "))
}

/// Asks the operator a question; an answer other than yes is a failure.
fn ask(what: &str, question: &str) -> Result<(), Failure> {
    let mut stderr = io::stderr();
    if !io::stdin().is_terminal() || !stderr.is_terminal() {
        return Err(Failure::usage(format!("{what} without a terminal to ask on needs --yes")));
    }
    stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()).map_err(Failure::output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::internal)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::declined("nothing was changed")),
    }
}

#[derive(Serialize)]
struct RetentionOf<'a> {
    /// Queue; `None` for all queues without a retention of their own.
    queue: Option<&'a str>,
    retention: RetentionView,
}

pub(in crate::commands) async fn retention(context: &CommandContext, args: RetentionArgs) -> CommandResult {
    let RetentionArgs { queue, all, succeeded, failed, aborted, reset } = args;
    let tasks = context.open().await?.tasks()?;
    let current = match &queue {
        Some(queue) => tasks.retention(queue).await?,
        None => tasks.default_retention().await?,
    };
    let wanted = Retention {
        succeeded: succeeded.or(all).map_or(current.succeeded, |keep| keep.0),
        failed: failed.or(all).map_or(current.failed, |keep| keep.0),
        aborted: aborted.or(all).map_or(current.aborted, |keep| keep.0),
    };
    let is_set = all.or(succeeded).or(failed).or(aborted).is_some();
    let retention = if is_set || reset {
        tasks.set_retention(queue.as_ref(), is_set.then_some(wanted)).await?
    } else {
        current
    };
    let name = queue.as_ref().map(QueueName::as_str);
    let view = RetentionOf { queue: name, retention: RetentionView::from(&retention) };
    context.printer.success(&view, |_| {
        let of = name.map_or_else(
            || "queues without a retention of their own".to_owned(),
            |name| format!("queue '{name}'"),
        );
        let [succeeded, failed, aborted] =
            [retention.succeeded, retention.failed, retention.aborted].map(duration_text);
        format!("{of}: succeeded tasks are kept {succeeded}, failed {failed}, aborted {aborted}\n")
    })
}

fn duration_text(keep: Option<Ttl>) -> String {
    keep.map_or_else(|| "for ever".to_owned(), |keep| format!("for {}", format_duration(keep.as_duration())))
}
