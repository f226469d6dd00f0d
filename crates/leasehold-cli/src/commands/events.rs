//! `history` lists past events of locks or of tasks; `watch` prints events as they happen.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::{EventView, TaskFeedItem, TaskHistoryView};
use leasehold::store::{Cursor, EventRange, ListEvents, ListTasks};

use super::context::{CommandContext, CommandResult};
use super::ids;
use super::tasks::queries::unknown_queue;
use crate::cli::{HistoryArgs, SelectedQueue, SelectedTasks, WatchArgs};
use crate::output::{Failure, List, event_line, history_table, task_event_line, task_history_table};

/// Interval at which the history is read; the poll interval of the store if that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
const PAGE: u32 = 500;
/// Minimum number of tasks, the newest, whose events are read.
const MIN_TASKS: usize = 500;

/// Prints events until its reader closes the pipe or the user interrupts it.
pub(super) async fn watch(context: &CommandContext, args: &WatchArgs) -> CommandResult {
    if let Some(queue) = args.queue() {
        return watch_tasks(context, &queue).await;
    }
    let leasehold = context.open().await?;
    let interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
    let mut position = newest_position(&leasehold).await?;
    context.printer.message("watching; press Ctrl-C to stop");
    loop {
        // Read all events, each once; a query for one lock would search the history again at every poll.
        let query = ListEvents::default().span(EventRange::After(position.clone())).limit(PAGE);
        let page = leasehold.locks().history(&query).await?;
        for event in page.items.iter().filter(|event| is_wanted(event, args)) {
            context.printer.line(event, |style| event_line(event, style))?;
        }
        position = page.next.unwrap_or(position);
        if page.items.is_empty() {
            tokio::time::sleep(interval).await;
        }
    }
}

async fn newest_position(leasehold: &Leasehold) -> Result<Cursor, Failure> {
    let newest = ListEvents::default().limit(1);
    let page = leasehold.locks().history(&newest).await?;
    Ok(page.next.unwrap_or_else(Cursor::start))
}

fn is_wanted(event: &EventView, args: &WatchArgs) -> bool {
    let named = args.name.as_ref().is_none_or(|name| *name == event.lock);
    let prefix = args.prefix.as_deref().unwrap_or_default();
    named && event.lock.as_str().starts_with(prefix)
}

/// Lists the newest events, newest last.
pub(super) async fn history(context: &CommandContext, args: &HistoryArgs) -> CommandResult {
    let limit = args.limit as usize;
    if let Some(tasks) = args.tasks() {
        return history_of_tasks(context, &tasks, limit).await;
    }
    let mut events = newest_events(&context.open().await?, args, limit.saturating_add(1)).await?;
    let more = events.len() > limit;
    events.drain(..events.len().saturating_sub(limit));
    let is_one_lock = args.name.is_some();
    context.printer.list(List {
        values: &events,
        name: |event: &EventView| event.lock.to_string(),
        empty: "no events are recorded",
        more: more.then_some("there are older ones; raise --limit"),
        table: |style| history_table(&events, is_one_lock, style),
    })
}

/// Returns the requested number of newest events, newest last.
async fn newest_events(
    leasehold: &Leasehold,
    args: &HistoryArgs,
    limit: usize,
) -> Result<Vec<EventView>, Failure> {
    let mut events = Vec::new();
    let mut span = EventRange::Newest;
    while events.len() < limit {
        let missing = u32::try_from(limit - events.len()).unwrap_or(u32::MAX);
        let query = ListEvents::default().lock(args.name.clone()).span(span).limit(PAGE.min(missing));
        let page = leasehold.locks().history(&query).await?;
        events.extend(page.items);
        match page.next {
            Some(next) => span = EventRange::Before(next),
            None => break,
        }
    }
    events.reverse();
    Ok(events)
}

/// Prints events of tasks until its reader closes the pipe or the user interrupts it.
async fn watch_tasks(context: &CommandContext, selected: &SelectedQueue) -> CommandResult {
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

/// Lists past events of tasks or of one execution.
async fn history_of_tasks(context: &CommandContext, selected: &SelectedTasks, limit: usize) -> CommandResult {
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
