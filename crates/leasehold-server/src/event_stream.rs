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
    sender: broadcast::Sender<Arc<Batch>>,
}

/// Subscription to all events after `head`.
pub(crate) struct EventSubscription {
    pub(crate) head: Cursor,
    pub(crate) batches: broadcast::Receiver<Arc<Batch>>,
}

impl EventStream {
    pub(crate) fn new(leasehold: Leasehold, stop: CancellationToken) -> Self {
        Self { leasehold, stop, reader: Arc::default(), start: tokio::sync::Mutex::default() }
    }

    pub(crate) async fn subscribe(&self) -> Result<EventSubscription> {
        let _starting = self.start.lock().await;
        if let Some(reader) = &*locked(&self.reader) {
            return Ok(EventSubscription { head: reader.head.clone(), batches: reader.sender.subscribe() });
        }
        let newest = ListEvents::default().limit(1);
        let head = self.leasehold.locks().history(&newest).await?.next.unwrap_or_else(Cursor::start);
        let (sender, batches) = broadcast::channel(CAPACITY);
        *locked(&self.reader) = Some(Reader { head: head.clone(), sender });
        tokio::spawn(run_reader(self.leasehold.clone(), self.stop.clone(), self.reader.clone()));
        Ok(EventSubscription { head, batches })
    }

    /// Reads the events after this cursor, for a subscriber that is behind the others.
    pub(crate) async fn read(&self, after: Cursor) -> Result<Batch> {
        read(&self.leasehold, after).await
    }
}

/// Polls the store until there are no subscribers or the server stops.
async fn run_reader(leasehold: Leasehold, stop: CancellationToken, reader: Arc<Mutex<Option<Reader>>>) {
    let mut next = locked(&reader).as_ref().map(|reader| reader.head.clone());
    while let Some(after) = next.take() {
        let delay = match read(&leasehold, after.clone()).await {
            Ok(batch) => {
                let delay = if batch.events.is_empty() { POLL_INTERVAL } else { Duration::ZERO };
                next = publish(&reader, batch);
                delay
            }
            Err(error) => {
                tracing::warn!(%error, "failed to read the events of the store");
                next = Some(after);
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
    let Reader { head, sender } = reader.as_mut()?;
    head.clone_from(&batch.next);
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
