//! Event streams of tasks: all subscribers of this server with the same filter share one feed, which
//! ends with the last of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use leasehold::Leasehold;
use leasehold::client::{TaskFeed, TaskFeedItem};
use leasehold::model::QueueName;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::problem::{ApiResult, Problem};
use crate::sync::locked;

/// Capacity in batches. A subscriber further behind is told that it has missed events.
const CAPACITY: usize = 64;
/// Maximum number of feeds: each polls the store, and callers can invent names of queues.
const MAX_FEEDS: usize = 100;

/// Events that were found together, as JSON.
pub(crate) type Batch = Vec<String>;

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

type Feeds = Mutex<HashMap<TaskFilter, broadcast::Sender<Arc<Batch>>>>;

/// Source of the events. The store is polled only while there are subscribers.
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
    pub(crate) async fn subscribe(&self, filter: TaskFilter) -> ApiResult<broadcast::Receiver<Arc<Batch>>> {
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
        if !publish(&feeds, &filter, &items) {
            return;
        }
    }
    // Drops the sender, so that remaining subscribers see the end of the stream.
    locked(&feeds).remove(&filter);
}

/// Sends events to the subscribers. Returns `false` if there are none; then the feed must end.
fn publish(feeds: &Feeds, filter: &TaskFilter, items: &[TaskFeedItem]) -> bool {
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
    use std::time::Duration;

    use leasehold::model::Payload;

    use super::*;

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
