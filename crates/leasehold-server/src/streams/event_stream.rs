//! Event stream of locks: one reader polls the store for all subscribers of this server.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::client::EventView;
use leasehold::model::LockName;
use leasehold::store::{Cursor, EventRange, ListEvents, Page};
use leasehold::{Leasehold, Result};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::sync::locked;

const POLL_INTERVAL: Duration = Duration::from_millis(150);
const RETRY_DELAY: Duration = Duration::from_secs(1);
const PAGE_SIZE: u32 = 500;
/// Capacity in batches. A subscriber further behind reads from the store itself until it has caught up.
const CAPACITY: usize = 64;
/// Maximum number of events that the reader may still send to a subscriber, or that wait for it: the channel
/// is full, and the reader has read one more batch.
pub(crate) const MAX_PENDING: usize = (CAPACITY + 1) * PAGE_SIZE as usize;

/// Events that were read together.
pub(crate) struct Batch {
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

/// Source of the events. The store is polled only while there are subscribers.
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
    sender: broadcast::Sender<Arc<Batch>>,
}

/// Subscription to all events after `head`.
pub(crate) struct EventSubscription {
    pub(crate) head: Cursor,
    /// Hash of the last event up to `head`, if there is one.
    pub(crate) newest: Option<u64>,
    pub(crate) batches: broadcast::Receiver<Arc<Batch>>,
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
    pub(crate) async fn read(&self, after: Cursor) -> Result<Batch> {
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
                let Some(next) = publish(&reader, batch) else { return };
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
fn publish(reader: &Mutex<Option<Reader>>, batch: Batch) -> Option<Cursor> {
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

async fn read(leasehold: &Leasehold, after: Cursor) -> Result<Batch> {
    let query = ListEvents::default().span(EventRange::After(after.clone())).limit(PAGE_SIZE);
    let Page { items, next, .. } = leasehold.locks().history(&query).await?;
    let next = next.unwrap_or_else(|| after.clone());
    Ok(Batch { after, events: items.iter().map(StreamedEvent::of).collect(), next })
}

impl StreamedEvent {
    fn of(event: &EventView) -> Self {
        let json = serde_json::to_string(event).unwrap_or_default();
        let mut hash = DefaultHasher::new();
        json.hash(&mut hash);
        Self { lock: event.lock.clone(), json, hash: hash.finish() }
    }
}

#[cfg(test)]
mod tests {
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
        // The first reader would wake within this time.
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
}
