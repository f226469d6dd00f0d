//! `history` lists past events; `watch` prints events as they happen. Those of tasks are in `task_events.rs`.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::EventView;
use leasehold::store::{Cursor, EventRange, ListEvents};

use super::context::{CommandContext, CommandResult};
use super::task_events;
use crate::cli::{HistoryArgs, WatchArgs};
use crate::output::{Failure, List, event_line, history_table};

/// Interval at which the history is read; the poll interval of the store if that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
const PAGE: u32 = 500;

/// Prints events until its reader closes the pipe or the user interrupts it.
pub(super) async fn watch(context: &CommandContext, args: &WatchArgs) -> CommandResult {
    if let Some(queue) = args.queue() {
        return task_events::watch(context, &queue).await;
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

pub(super) async fn history(context: &CommandContext, args: &HistoryArgs) -> CommandResult {
    let limit = args.limit as usize;
    if let Some(tasks) = args.tasks() {
        return task_events::history(context, &tasks, limit).await;
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
