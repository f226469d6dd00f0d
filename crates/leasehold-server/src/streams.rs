//! Events that the server sends to subscribers. One reader polls the store for all subscribers of events of
//! locks; those of tasks with the same filter share one feed. Both end with the last subscriber.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::client::{EventView, TaskFeed, TaskFeedItem};
use leasehold::model::{LockName, QueueName};
use leasehold::store::{Cursor, EventRange, ListEvents, Page};
use leasehold::{Leasehold, Result};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::problem::{ApiResult, Problem};
use crate::sync::locked;

const POLL_INTERVAL: Duration = Duration::from_millis(150);
const RETRY_DELAY: Duration = Duration::from_secs(1);
const PAGE_SIZE: u32 = 500;
/// Capacity of a stream in batches. A subscriber of locks that is further behind reads from the store itself
/// until it has caught up; one of tasks is told that it has missed events.
const CAPACITY: usize = 64;
/// Maximum number of events of locks that the reader may still send to a subscriber, or that wait for it: the
/// channel is full, and the reader has read one more batch.
pub(crate) const MAX_PENDING: usize = (CAPACITY + 1) * PAGE_SIZE as usize;
/// Maximum number of feeds of tasks: each polls the store, and callers can invent names of queues.
const MAX_FEEDS: usize = 100;

/// Events of locks that were read together.
pub(crate) struct EventBatch {
    pub(crate) after: Cursor,
    pub(crate) events: Vec<StreamedEvent>,
    pub(crate) next: Cursor,
}

pub(crate) struct StreamedEvent {
    pub(crate) lock: LockName,
    pub(crate) json: String,
    /// Hash of the JSON, which distinguishes the event from all others.
    pub(crate) hash: u64,
}

/// Source of the events of locks. The store is polled only while there are subscribers.
pub(crate) struct EventStream {
    leasehold: Leasehold,
    stop: CancellationToken,
    reader: Arc<Mutex<Option<Reader>>>,
    /// Serializes the start of the reader.
    start: tokio::sync::Mutex<()>,
}

struct Reader {
    head: Cursor,
    newest: Option<u64>,
    sender: broadcast::Sender<Arc<EventBatch>>,
}

/// Subscription to all events after `head`.
pub(crate) struct EventSubscription {
    pub(crate) head: Cursor,
    /// Hash of the last event up to `head`, if there is one.
    pub(crate) newest: Option<u64>,
    pub(crate) batches: broadcast::Receiver<Arc<EventBatch>>,
}

impl EventStream {
    pub(crate) fn new(leasehold: Leasehold, stop: CancellationToken) -> Self {
        Self { leasehold, stop, reader: Arc::default(), start: tokio::sync::Mutex::default() }
    }

    pub(crate) async fn subscribe(&self) -> Result<EventSubscription> {
        let _starting = self.start.lock().await;
        if let Some(reader) = &*locked(&self.reader) {
            let Reader { head, newest, sender } = reader;
            return Ok(EventSubscription {
                head: head.clone(),
                newest: *newest,
                batches: sender.subscribe(),
            });
        }
        let last = self.leasehold.locks().history(&ListEvents::default().limit(1)).await?;
        let newest = last.items.first().map(|event| StreamedEvent::of(event).hash);
        let head = last.next.unwrap_or_else(Cursor::start);
        let (sender, batches) = broadcast::channel(CAPACITY);
        *locked(&self.reader) = Some(Reader { head: head.clone(), newest, sender });
        tokio::spawn(run_reader(self.leasehold.clone(), self.stop.clone(), self.reader.clone()));
        Ok(EventSubscription { head, newest, batches })
    }

    /// Reads the events after this cursor, for a subscriber that is behind the others.
    pub(crate) async fn read(&self, after: Cursor) -> Result<EventBatch> {
        read(&self.leasehold, after).await
    }
}

/// Polls the store until there are no subscribers or the server stops.
async fn run_reader(leasehold: Leasehold, stop: CancellationToken, reader: Arc<Mutex<Option<Reader>>>) {
    let Some(mut after) = locked(&reader).as_ref().map(|reader| reader.head.clone()) else { return };
    loop {
        let delay = match read(&leasehold, after.clone()).await {
            Ok(batch) => {
                let delay = if batch.events.is_empty() { POLL_INTERVAL } else { Duration::ZERO };
                // Returns at once: the next subscriber may start another reader.
                let Some(next) = publish_batch(&reader, batch) else { return };
                after = next;
                delay
            }
            Err(error) => {
                tracing::warn!(%error, "failed to read the events of the store");
                RETRY_DELAY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.cancelled() => break,
        }
    }
    // Drops the sender, so that remaining subscribers see the end of the stream.
    *locked(&reader) = None;
}

/// Sends a batch to all subscribers and returns the next cursor. A new subscriber sees a batch
/// either whole or not at all.
fn publish_batch(reader: &Mutex<Option<Reader>>, batch: EventBatch) -> Option<Cursor> {
    let mut reader = locked(reader);
    let Reader { head, newest, sender } = reader.as_mut()?;
    head.clone_from(&batch.next);
    *newest = batch.events.last().map(|event| event.hash).or(*newest);
    if sender.receiver_count() == 0 {
        *reader = None;
        return None;
    }
    let next = batch.next.clone();
    if !batch.events.is_empty() {
        let _ = sender.send(Arc::new(batch));
    }
    Some(next)
}

async fn read(leasehold: &Leasehold, after: Cursor) -> Result<EventBatch> {
    let query = ListEvents::default().span(EventRange::After(after.clone())).limit(PAGE_SIZE);
    let Page { items, next, .. } = leasehold.locks().history(&query).await?;
    let next = next.unwrap_or_else(|| after.clone());
    Ok(EventBatch { after, events: items.iter().map(StreamedEvent::of).collect(), next })
}

impl StreamedEvent {
    fn of(event: &EventView) -> Self {
        let json = serde_json::to_string(event).unwrap_or_default();
        let mut hash = DefaultHasher::new();
        json.hash(&mut hash);
        Self { lock: event.lock.clone(), json, hash: hash.finish() }
    }
}

/// Events of tasks that were found together, as JSON.
pub(crate) type TaskBatch = Vec<String>;

/// Tasks that a feed follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum TaskFilter {
    AllQueues,
    Queue(QueueName),
}

impl TaskFilter {
    /// Returns the queue, unless all are followed.
    pub(crate) const fn queue(&self) -> Option<&QueueName> {
        match self {
            Self::AllQueues => None,
            Self::Queue(queue) => Some(queue),
        }
    }
}

type Feeds = Mutex<HashMap<TaskFilter, broadcast::Sender<Arc<TaskBatch>>>>;

/// Source of the events of tasks. The store is polled only while there are subscribers.
pub(crate) struct TaskStream {
    leasehold: Leasehold,
    stop: CancellationToken,
    feeds: Arc<Feeds>,
    /// Serializes the start of feeds.
    start: tokio::sync::Mutex<()>,
}

impl TaskStream {
    pub(crate) fn new(leasehold: Leasehold, stop: CancellationToken) -> Self {
        Self { leasehold, stop, feeds: Arc::default(), start: tokio::sync::Mutex::default() }
    }

    /// Subscribes to the events of these tasks, from now on.
    pub(crate) async fn subscribe(
        &self,
        filter: TaskFilter,
    ) -> ApiResult<broadcast::Receiver<Arc<TaskBatch>>> {
        let _starting = self.start.lock().await;
        let running = {
            let feeds = locked(&self.feeds);
            if let Some(sender) = feeds.get(&filter) {
                return Ok(sender.subscribe());
            }
            feeds.len()
        };
        if running >= MAX_FEEDS {
            let detail = format!("this server follows the events of {MAX_FEEDS} queues already");
            return Err(Problem::new("RATE_LIMITED", detail).hint("follow all queues with tasks=true"));
        }
        let tasks = self.leasehold.tasks()?;
        let feed = match filter.queue() {
            Some(queue) => tasks.follow(queue).await?,
            None => tasks.follow_all().await?,
        };
        let (sender, batches) = broadcast::channel(CAPACITY);
        locked(&self.feeds).insert(filter.clone(), sender);
        tokio::spawn(run_feed(feed, filter, self.feeds.clone(), self.stop.clone()));
        Ok(batches)
    }
}

/// Polls the store until there are no subscribers or the server stops.
async fn run_feed(mut feed: TaskFeed, filter: TaskFilter, feeds: Arc<Feeds>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(feed.interval()) => {}
            () = stop.cancelled() => break,
        }
        let items = feed.poll().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read the events of tasks");
            Vec::new()
        });
        if !publish_items(&feeds, &filter, &items) {
            return;
        }
    }
    // Drops the sender, so that remaining subscribers see the end of the stream.
    locked(&feeds).remove(&filter);
}

/// Sends events to the subscribers. Returns `false` if there are none; then the feed must end.
fn publish_items(feeds: &Feeds, filter: &TaskFilter, items: &[TaskFeedItem]) -> bool {
    // A new subscriber subscribes under the same mutex: it either keeps this feed or starts another.
    let mut feeds = locked(feeds);
    let Some(sender) = feeds.get(filter) else { return false };
    if sender.receiver_count() == 0 {
        feeds.remove(filter);
        return false;
    }
    if !items.is_empty() {
        let json = items.iter().filter_map(|item| serde_json::to_string(item).ok());
        // Fails only without subscribers.
        let _ = sender.send(Arc::new(json.collect()));
    }
    true
}

#[cfg(test)]
mod tests {
    use leasehold::model::Payload;

    use super::*;

    #[tokio::test]
    async fn a_stream_that_opens_when_the_last_one_has_ended_stays_open() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let stream = EventStream::new(leasehold.clone(), CancellationToken::new());
        drop(stream.subscribe().await.unwrap());
        let ends = async {
            while locked(&stream.reader).is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ends).await.expect("the reader ends");
        let mut subscription = stream.subscribe().await.unwrap();
        // The first reader would poll within this time.
        tokio::time::sleep(2 * POLL_INTERVAL).await;
        let _guard = leasehold.lock("a").acquire().await.unwrap();
        let batch = tokio::time::timeout(Duration::from_secs(20), subscription.batches.recv()).await.unwrap();
        assert_eq!(batch.expect("the stream is open").events[0].lock.as_str(), "a");
    }

    #[tokio::test]
    async fn a_subscription_names_the_last_event_before_it() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let stream = EventStream::new(leasehold.clone(), CancellationToken::new());
        let last = async || {
            let all = stream.read(Cursor::start()).await.unwrap();
            all.events.last().map(|event| event.hash)
        };
        let _first = leasehold.lock("a").acquire().await.unwrap();
        let mut subscription = stream.subscribe().await.unwrap();
        assert_eq!(subscription.newest, last().await);
        let _second = leasehold.lock("b").acquire().await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), subscription.batches.recv()).await.unwrap().unwrap();
        let later = stream.subscribe().await.unwrap().newest;
        assert_eq!(later, last().await);
        assert!(later.is_some() && later != subscription.newest);
    }

    fn queue(number: usize) -> TaskFilter {
        TaskFilter::Queue(QueueName::new(format!("q{number}")).unwrap())
    }

    #[tokio::test]
    async fn subscribers_with_one_filter_share_a_feed_which_ends_with_the_last() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let stream = TaskStream::new(leasehold.clone(), CancellationToken::new());
        let mut all = Vec::new();
        for _ in 0..50 {
            all.push(stream.subscribe(queue(1)).await.unwrap());
        }
        assert_eq!(locked(&stream.feeds).len(), 1);
        leasehold.enqueue_to("q1", Payload::default()).await.unwrap();
        for batches in &mut all {
            let batch = tokio::time::timeout(Duration::from_secs(20), batches.recv()).await.unwrap().unwrap();
            assert!(batch.len() == 1 && batch[0].contains("\"kind\":\"added\""), "{batch:?}");
        }
        drop(all);
        let ends = async {
            while !locked(&stream.feeds).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ends).await.expect("the feed ends");
    }

    #[tokio::test]
    async fn the_number_of_feeds_is_bounded() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let stream = TaskStream::new(leasehold, CancellationToken::new());
        let mut all = Vec::new();
        for number in 0..MAX_FEEDS {
            all.push(stream.subscribe(queue(number)).await.unwrap());
        }
        assert_eq!(stream.subscribe(TaskFilter::AllQueues).await.unwrap_err().code(), "RATE_LIMITED");
        assert!(stream.subscribe(queue(5)).await.is_ok(), "a feed that runs has room for more");
    }

    #[tokio::test]
    async fn a_stopped_server_ends_its_feeds() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let stop = CancellationToken::new();
        let stream = TaskStream::new(leasehold, stop.clone());
        let mut batches = stream.subscribe(TaskFilter::AllQueues).await.unwrap();
        stop.cancel();
        let end = tokio::time::timeout(Duration::from_secs(20), batches.recv()).await.unwrap();
        assert_eq!(end.unwrap_err(), broadcast::error::RecvError::Closed);
    }
}
