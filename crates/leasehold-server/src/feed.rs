//! Event stream of locks: one reader polls the store for all subscribers of this server.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::client::EventView;
use leasehold::model::LockName;
use leasehold::store::{Cursor, EventRange, ListEvents, Page};
use leasehold::{Leasehold, Result};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// Poll interval.
const LOOK: Duration = Duration::from_millis(150);
/// Delay after a failed poll.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of events per read.
const PAGE: u32 = 500;
/// Capacity in batches. A subscriber further behind reads from the store itself until it has caught up.
const BEHIND: usize = 64;

/// Events that were read together.
pub(crate) struct Batch {
    /// Cursor before the first event.
    pub(crate) after: Cursor,
    pub(crate) lines: Vec<Line>,
    /// Cursor after the last event.
    pub(crate) next: Cursor,
}

/// One event, serialized.
pub(crate) struct Line {
    pub(crate) lock: LockName,
    pub(crate) json: String,
    /// Hash of the JSON, which distinguishes the event from all others.
    pub(crate) mark: u64,
}

/// Source of the events. The store is polled only while there are subscribers.
pub(crate) struct Feed {
    leasehold: Leasehold,
    stop: CancellationToken,
    live: Arc<Mutex<Option<Live>>>,
    /// Serializes the start of the reader.
    start: tokio::sync::Mutex<()>,
}

struct Live {
    head: Cursor,
    sender: broadcast::Sender<Arc<Batch>>,
}

/// Subscription to all events after `head`.
pub(crate) struct Joined {
    pub(crate) head: Cursor,
    pub(crate) batches: broadcast::Receiver<Arc<Batch>>,
}

impl Feed {
    pub(crate) fn new(leasehold: Leasehold, stop: CancellationToken) -> Self {
        Self { leasehold, stop, live: Arc::default(), start: tokio::sync::Mutex::default() }
    }

    /// Subscribes to events from now on.
    pub(crate) async fn join(&self) -> Result<Joined> {
        let _alone = self.start.lock().await;
        if let Some(live) = &*lock(&self.live) {
            return Ok(Joined { head: live.head.clone(), batches: live.sender.subscribe() });
        }
        let newest = ListEvents { limit: 1, ..ListEvents::default() };
        let head = self.leasehold.history(&newest).await?.next.unwrap_or_else(Cursor::start);
        let (sender, batches) = broadcast::channel(BEHIND);
        *lock(&self.live) = Some(Live { head: head.clone(), sender });
        tokio::spawn(read_on(self.leasehold.clone(), self.stop.clone(), self.live.clone()));
        Ok(Joined { head, batches })
    }

    /// Reads the events after this cursor, for a subscriber that is behind the others.
    pub(crate) async fn read(&self, after: Cursor) -> Result<Batch> {
        read(&self.leasehold, after).await
    }
}

/// Polls the store until there are no subscribers or the server stops.
async fn read_on(leasehold: Leasehold, stop: CancellationToken, live: Arc<Mutex<Option<Live>>>) {
    let mut place = lock(&live).as_ref().map(|live| live.head.clone());
    while let Some(after) = place.take() {
        let pause = match read(&leasehold, after.clone()).await {
            Ok(batch) => {
                let pause = if batch.lines.is_empty() { LOOK } else { Duration::ZERO };
                place = tell(&live, batch);
                pause
            }
            Err(error) => {
                tracing::warn!(%error, "the events of the store cannot be read");
                place = Some(after);
                PAUSE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => break,
        }
    }
    // Drops the sender, so that remaining subscribers see the end of the stream.
    *lock(&live) = None;
}

/// Sends a batch to all subscribers and returns the next cursor. A new subscriber sees a batch
/// either whole or not at all.
fn tell(live: &Mutex<Option<Live>>, batch: Batch) -> Option<Cursor> {
    let mut live = lock(live);
    let Live { head, sender } = live.as_mut()?;
    head.clone_from(&batch.next);
    if sender.receiver_count() == 0 {
        *live = None;
        return None;
    }
    let next = batch.next.clone();
    if !batch.lines.is_empty() {
        let _ = sender.send(Arc::new(batch));
    }
    Some(next)
}

async fn read(leasehold: &Leasehold, after: Cursor) -> Result<Batch> {
    let ask = ListEvents { lock: None, span: EventRange::After(after.clone()), limit: PAGE };
    let Page { items, next } = leasehold.history(&ask).await?;
    let next = next.unwrap_or_else(|| after.clone());
    Ok(Batch { after, lines: items.iter().map(Line::of).collect(), next })
}

impl Line {
    fn of(event: &EventView) -> Self {
        let json = serde_json::to_string(event).unwrap_or_default();
        let mut mark = DefaultHasher::new();
        json.hash(&mut mark);
        Self { lock: event.lock.clone(), json, mark: mark.finish() }
    }
}

fn lock(live: &Mutex<Option<Live>>) -> MutexGuard<'_, Option<Live>> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}
