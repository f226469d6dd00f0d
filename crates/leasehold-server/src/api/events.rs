//! Stream of server-sent events of locks, or of tasks, and the history of a lock.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};
use futures_util::{Stream, StreamExt, stream};
use leasehold::client::{EventView, FeedNotice};
use leasehold::model::{LockName, QueueName, WorkflowName};
use leasehold::store::{Cursor, EventRange, ListEvents};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use super::lease::LockPath;
use super::locks::page_size;
use crate::access::{Caller, Identity, Reader, StreamAccess, token_in};
use crate::openapi::roles::routes;
use crate::openapi::schemas::{PageCursor, PageSize};
use crate::problem::{ApiResult, Problem, Reply};
use crate::request::body::Query;
use crate::server::App;
use crate::streams::{EventBatch, EventSubscription, MAX_PENDING, TaskBatch, TaskFilter};

/// Delay after a failed read of the store.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time between two messages on a stream, so that neither peer nor a proxy closes the
/// connection as idle.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Reconnection delay that clients are told to use.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events)).routes(routes!(history))
}

/// Query for events.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// Events of the tasks of this queue, instead of locks.
    queue: Option<QueueName>,
    /// Events of the executions of this workflow, instead of locks.
    workflow: Option<WorkflowName>,
    /// If `true`, events of the tasks of all queues, instead of locks.
    #[serde(default)]
    tasks: bool,
    /// Only events of this lock. Default: all locks.
    lock: Option<LockName>,
    /// Only events of locks whose names start with this prefix.
    #[serde(default)]
    prefix: String,
    /// Same as the header `Last-Event-ID`, for clients that cannot set headers.
    last_event_id: Option<String>,
}

/// Streams the events of locks, or of tasks, as server-sent events.
///
/// The data of each message is one event as JSON. Without `queue`, `workflow` and `tasks` these are
/// events of the history of locks. The id of a message is then a position in the history of the store:
/// a client that reconnects with this id as `Last-Event-ID`, to this or another server of the same store,
/// receives every later event that is still in the history. Without an id the stream starts with new
/// events.
///
/// With `queue`, `workflow` or `tasks=true`, the stream has the new events of tasks, as in
/// `GET /api/v1/tasks/{id}/history`, within about a second. The server derives them from the tasks that
/// are stored; messages have no id, and a stream cannot be resumed. If events may be missing, a message
/// says so: its `kind` is `sampled` (more than 5,000 tasks are open or new) or `missed` (the client read
/// too slowly), and it has a `message`. A token with scopes needs the scope of the queue or workflow.
///
/// The server sends a comment at least every 15 s. It ends the stream when it stops, and a few seconds after
/// the token was revoked or has expired.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "locks", operation_id = "followEvents",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "Id of the last received event")),
    responses((status = OK, description = "Event stream without an end", body = String, content_type = "text/event-stream")),
)]
async fn events(
    app: App,
    caller: Caller<Reader>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    app.refuse_when_draining()?;
    let last = headers.get("last-event-id").map(|id| String::from_utf8_lossy(id.as_bytes()));
    let last = last.or(query.last_event_id.as_deref().map(Into::into)).filter(|id| !id.is_empty());
    let tasks = query.tasks()?;
    match &tasks {
        Some(tasks) => caller.must_reach_queues(tasks.queue())?,
        None => caller.must_reach_all()?,
    }
    let access = StreamAccess::new(&app.authenticator, token_in(&headers), caller.into_in_progress());
    if let Some(tasks) = tasks {
        if last.is_some() {
            return Err(Problem::invalid(
                "a stream of events of tasks cannot be resumed: its messages have no ids",
            ));
        }
        return follow_tasks(app, access, tasks).await;
    }
    let from = last.as_deref().map(Position::parse).transpose()?;
    let subscription = app.event_stream.subscribe().await?;
    let listener = LockListener::new(app, access, subscription, from, query);
    Ok(sse_response(stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((event, listener))
    })))
}

/// Position in the history: a number of events after a cursor, because the store has cursors only
/// between pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    after: Cursor,
    events: usize,
}

impl Position {
    fn between_pages(after: Cursor) -> Self {
        Self { after, events: 0 }
    }

    fn parse(id: &str) -> ApiResult<Self> {
        if id.contains(char::is_control) {
            return Err(Problem::invalid("invalid last event id: must be an id that a server sent"));
        }
        let parts = id.rsplit_once('~').and_then(|(after, events)| Some((after, events.parse().ok()?)));
        let (after, events) = parts.unwrap_or((id, 0));
        Ok(Self { after: Cursor(after.to_owned()), events })
    }

    fn id(&self) -> String {
        format!("{}~{}", self.after.0, self.events)
    }
}

impl EventsQuery {
    /// Returns the tasks that are followed; `None` if locks are followed.
    fn tasks(&self) -> ApiResult<Option<TaskFilter>> {
        let of_workflow = self.workflow.as_ref().map(WorkflowName::queue);
        let queues = [self.queue.clone(), of_workflow].into_iter().flatten().map(TaskFilter::Queue);
        let mut filters: Vec<_> = queues.chain(self.tasks.then_some(TaskFilter::AllQueues)).collect();
        let follows_locks = self.lock.is_some() || !self.prefix.is_empty();
        if filters.len() + usize::from(follows_locks) > 1 {
            return Err(Problem::invalid(
                "give only one of queue, workflow and tasks, and none of them with lock or prefix",
            ));
        }
        Ok(filters.pop())
    }

    fn matches(&self, lock: &LockName) -> bool {
        self.lock.as_ref().is_none_or(|filter| filter == lock) && lock.as_str().starts_with(&self.prefix)
    }
}

/// Stream of the events of locks to one client. It receives the events that the shared reader publishes, and
/// reads missed events from the store itself.
struct LockListener {
    app: App,
    access: StreamAccess,
    subscription: EventSubscription,
    filter: EventsQuery,
    position: Position,
    /// Events that this stream has read itself, after which those of the shared reader are new.
    read_here: Option<ReadHere>,
    /// Hash of the last event that the shared reader had sent before the subscription.
    sent_before: Option<u64>,
    behind: bool,
    ready: VecDeque<Event>,
    heartbeat: Interval,
}

impl LockListener {
    fn new(
        app: App,
        access: StreamAccess,
        subscription: EventSubscription,
        from: Option<Position>,
        filter: EventsQuery,
    ) -> Self {
        let behind = from.is_some();
        let position = from.unwrap_or_else(|| Position::between_pages(subscription.head.clone()));
        let ready = VecDeque::from([first_message().id(position.id())]);
        let (sent_before, heartbeat) = (subscription.newest, heartbeat_timer());
        Self {
            app,
            access,
            subscription,
            filter,
            position,
            read_here: None,
            sent_before,
            behind,
            ready,
            heartbeat,
        }
    }

    /// Returns the next message, or `None` when the server stops or the token is no longer valid.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let app = self.app.clone();
            app.unless_draining(self.poll()).await.ok()??;
        }
    }

    /// Waits for a batch or the heartbeat. May leave `ready` empty.
    async fn poll(&mut self) -> Option<()> {
        if self.access.is_lost(&self.app.authenticator, Identity::must_reach_all).await {
            return None;
        }
        if self.behind {
            self.catch_up().await;
            return Some(());
        }
        tokio::select! {
            biased;
            received = self.subscription.batches.recv() => match received {
                Ok(batch) => self.take(&batch, 0),
                Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return None,
            },
            () = self.access.wait() => {}
            // Sends the position, so that a client without matching events can resume near the end
            // of the history.
            _ = self.heartbeat.tick() => {
                self.ready.push_back(Event::default().id(self.position.id()).comment("heartbeat"));
            }
        }
        Some(())
    }

    async fn catch_up(&mut self) {
        let Ok(batch) = self.app.event_stream.read(self.position.after.clone()).await else {
            tokio::time::sleep(RETRY_DELAY).await;
            self.ready.push_back(Event::default().comment("the store is unavailable"));
            return;
        };
        let mut read_here = self.read_here.take().unwrap_or_default();
        for event in &batch.events {
            read_here.add(event.hash);
            if self.sent_before == Some(event.hash) {
                read_here = ReadHere::default();
            }
        }
        self.behind = !batch.events.is_empty();
        self.take(&batch, self.position.events);
        self.read_here = Some(read_here);
    }

    fn take(&mut self, batch: &EventBatch, skip: usize) {
        for (number, event) in batch.events.iter().enumerate().skip(skip) {
            if self.read_here.as_mut().is_some_and(|read_here| read_here.remove(event.hash)) {
                continue;
            }
            // All streams see the same order, so every event after the first new one is new.
            self.read_here = None;
            let position = if number + 1 == batch.events.len() {
                Position::between_pages(batch.next.clone())
            } else {
                Position { after: batch.after.clone(), events: number + 1 }
            };
            if self.filter.matches(&event.lock) {
                self.ready.push_back(Event::default().id(position.id()).data(&event.json));
            }
        }
        // A batch without new events ends before the position of this stream.
        if self.read_here.is_none() {
            self.position = Position::between_pages(batch.next.clone());
        }
    }
}

/// Hashes of events that a stream has read itself and that the shared reader may still send, oldest first.
#[derive(Default)]
struct ReadHere(VecDeque<u64>);

impl ReadHere {
    fn add(&mut self, hash: u64) {
        if self.0.len() == MAX_PENDING {
            self.0.pop_front();
        }
        self.0.push_back(hash);
    }

    /// Removes an event and those before it, which are not sent any more. Returns whether it was there.
    fn remove(&mut self, hash: u64) -> bool {
        let found = self.0.iter().position(|known| *known == hash);
        if let Some(place) = found {
            self.0.drain(..=place);
        }
        found.is_some()
    }
}

/// Streams the new events of these tasks, which the caller may follow.
async fn follow_tasks(app: App, access: StreamAccess, filter: TaskFilter) -> ApiResult<Response> {
    let batches = app.task_stream.subscribe(filter.clone()).await?;
    let (ready, heartbeat) = (VecDeque::from([first_message()]), heartbeat_timer());
    let listener = TaskListener { app, access, filter, batches, ready, heartbeat };
    Ok(sse_response(stream::unfold(listener, async |mut listener| {
        let event = listener.next().await?;
        Some((event, listener))
    })))
}

/// Stream of the events of tasks to one client.
struct TaskListener {
    app: App,
    access: StreamAccess,
    filter: TaskFilter,
    batches: Receiver<Arc<TaskBatch>>,
    ready: VecDeque<Event>,
    heartbeat: Interval,
}

impl TaskListener {
    /// Returns the next message, or `None` when the server stops or the token is no longer valid.
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let app = self.app.clone();
            app.unless_draining(self.receive()).await.ok()??;
        }
        self.ready.pop_front()
    }

    async fn receive(&mut self) -> Option<()> {
        let filter = &self.filter;
        let may_follow = |identity: &Identity| identity.must_reach_queues(filter.queue());
        if self.access.is_lost(&self.app.authenticator, may_follow).await {
            return None;
        }
        tokio::select! {
            biased;
            received = self.batches.recv() => match received {
                Ok(batch) => self.ready.extend(batch.iter().map(|json| Event::default().data(json))),
                Err(RecvError::Lagged(_)) => {
                    let notice = serde_json::to_string(&FeedNotice::missed()).unwrap_or_default();
                    self.ready.push_back(Event::default().data(notice));
                }
                Err(RecvError::Closed) => return None,
            },
            () = self.access.wait() => {}
            _ = self.heartbeat.tick() => self.ready.push_back(Event::default().comment("heartbeat")),
        }
        Some(())
    }
}

/// Returns the response with these messages.
fn sse_response(messages: impl Stream<Item = Event> + Send + 'static) -> Response {
    // A proxy that buffers whole responses would never forward this one.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (unbuffered, Sse::new(messages.map(Ok::<_, Infallible>))).into_response()
}

/// Returns the first message of a stream.
fn first_message() -> Event {
    Event::default().retry(RECONNECT_DELAY)
}

/// Returns the interval at which a message is due, also without events.
fn heartbeat_timer() -> Interval {
    let mut heartbeat = tokio::time::interval(HEARTBEAT_INTERVAL);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    heartbeat
}

/// Query for a page of history.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// `nextCursor` of the previous page.
    #[serde(default)]
    #[param(value_type = Option<PageCursor>)]
    cursor: String,
    /// Maximum number of events, 1 to 1000. Default: 100.
    #[param(value_type = Option<PageSize>)]
    limit: Option<u32>,
}

/// Page of history.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HistoryPage {
    /// Events, newest first.
    events: Vec<EventView>,
    /// Cursor of the next page, with older events; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists the events of a lock, newest first.
#[utoipa::path(
    get, path = "/api/v1/locks/{name}/history", tag = "locks", operation_id = "lockHistory",
    params(("name" = LockName, Path, description = "Name of the lock; encode '/' as %2F"), HistoryQuery),
    responses((status = OK, body = HistoryPage)),
)]
async fn history(
    app: App,
    _: Caller<Reader>,
    LockPath(name): LockPath,
    Query(query): Query<HistoryQuery>,
) -> Reply<HistoryPage> {
    let span =
        if query.cursor.is_empty() { EventRange::Newest } else { EventRange::Before(Cursor(query.cursor)) };
    let list = ListEvents::default().lock(name).span(span).limit(page_size(query.limit)?);
    let page = app.leasehold.locks().history(&list).await?;
    Ok(axum::Json(HistoryPage { events: page.items, next_cursor: page.next.map(|next| next.0) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_the_round_trip_through_its_id() {
        for (cursor, events) in [("12", 0), ("7/3/a~4", 2), ("1-2-3", 17), ("ü/~", 0)] {
            let position = Position { after: Cursor(cursor.to_owned()), events };
            assert_eq!(Position::parse(&position.id()).unwrap(), position);
        }
        assert_eq!(Position::parse("12").unwrap(), Position::between_pages(Cursor("12".to_owned())));
        assert!(Position::parse("1\n2").is_err());
    }

    #[test]
    fn events_that_the_shared_reader_cannot_send_again_are_forgotten() {
        let (mut read_here, all) = (ReadHere::default(), 3 * MAX_PENDING as u64);
        for hash in 0..all {
            read_here.add(hash);
        }
        assert_eq!(read_here.0.len(), MAX_PENDING);
        assert!(read_here.0.capacity() <= 2 * MAX_PENDING);
        let oldest = all - MAX_PENDING as u64;
        assert!(!read_here.remove(oldest - 1));
        assert!(read_here.remove(oldest) && !read_here.remove(oldest));
        assert!(read_here.remove(all - 2), "the shared reader may begin with any of them");
        assert_eq!(read_here.0, [all - 1]);
    }
}
