//! `history` and `watch` of tasks and executions.

use leasehold::client::{TaskFeedItem, TaskHistoryView};
use leasehold::store::ListTasks;

use super::context::{CommandContext, CommandResult};
use super::ids;
use super::tasks::queries::unknown_queue;
use crate::cli::{SelectedQueue, SelectedTasks};
use crate::output::{List, task_event_line, task_history_table};

/// Minimum number of tasks, the newest, whose events are read.
const MIN_TASKS: usize = 500;

/// Prints events of tasks until its reader closes the pipe or the user interrupts it.
pub(super) async fn watch(context: &CommandContext, selected: &SelectedQueue) -> CommandResult {
    let tasks = context.open().await?.tasks()?;
    let mut feed = match selected {
        SelectedQueue::All => tasks.follow_all().await?,
        SelectedQueue::One(queue) => {
            if let Some(unknown) = unknown_queue(&tasks, queue).await? {
                context.printer.message(unknown);
            }
            tasks.follow(queue).await?
        }
    };
    context.printer.message("watching; press Ctrl-C to stop");
    loop {
        for item in feed.next().await? {
            match &item {
                TaskFeedItem::Event(event) => {
                    context.printer.line(event, |style| task_event_line(event, style))?;
                }
                // Not among the lines of a table: a program that reads them expects events.
                TaskFeedItem::Notice(notice) => {
                    context.printer.message(&notice.message);
                    context.printer.event(notice)?;
                }
                _ => context.printer.event(&item)?,
            }
        }
    }
}

pub(super) async fn history(
    context: &CommandContext,
    selected: &SelectedTasks,
    limit: usize,
) -> CommandResult {
    let leasehold = context.open().await?;
    let tasks = leasehold.tasks()?;
    let mut unknown = None;
    let mut events = match selected {
        SelectedTasks::Task(id) => tasks.history(ids::task(&tasks, id).await?).await?,
        SelectedTasks::Execution(id) => {
            let execution = leasehold.workflows()?.get(ids::execution(&tasks, id).await?).await?;
            tasks.history(execution.id.task()).await?
        }
        SelectedTasks::Queue(selected) => {
            let queue = match selected {
                SelectedQueue::All => None,
                SelectedQueue::One(queue) => Some(queue),
            };
            let query = ListTasks::default().queue(queue.cloned()).archived(true);
            let events = tasks.history_of(&query, limit.max(MIN_TASKS)).await?;
            if let Some(queue) = queue.filter(|_| events.is_empty()) {
                unknown = unknown_queue(&tasks, queue).await?;
            }
            events
        }
    };
    let more = events.len() > limit;
    events.drain(..events.len().saturating_sub(limit));
    let is_one_task = !matches!(selected, SelectedTasks::Queue(_));
    context.printer.list(List {
        values: &events,
        name: |event: &TaskHistoryView| event.task.to_string(),
        empty: unknown.as_deref().unwrap_or("no task is stored"),
        more: more.then_some("there are older ones; raise --limit"),
        table: |style| task_history_table(&events, is_one_task, style),
    })
}
