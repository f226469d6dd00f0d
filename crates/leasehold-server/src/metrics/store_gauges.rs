//! Gauges of the store's content. The store is queried at most every few seconds, independent of
//! the number of scrapes, and counts are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::client::WorkerView;
use leasehold::model::TaskState;
use leasehold::store::{Cursor, ListLocks, LockState};
use leasehold::{BootInstant, Leasehold, Result};
use tokio::sync::Mutex;

/// Time for which counts are reused.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Reuse time on an engine without an index for counting, where each scan of all locks costs money.
const CACHE_TTL_COSTLY: Duration = Duration::from_mins(1);
/// Reuse time where each read of one lock is one of a few thousand requests allowed per hour.
const CACHE_TTL_RATE_LIMITED: Duration = Duration::from_mins(10);
/// Timeout of a count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of pages of locks that are counted, with `PAGE_SIZE` locks each.
const MAX_PAGES: usize = 10;
const PAGE_SIZE: u32 = 1000;
/// Maximum number of queues with a label of their own in the metrics.
pub(super) const MAX_QUEUES: usize = 100;
/// Label of all other queues.
const OTHER: &str = "other";

/// Counts the content of a store.
pub(super) struct StoreGauges {
    leasehold: Leasehold,
    cache_ttl: Duration,
    last: Mutex<Option<(BootInstant, Option<Arc<StoreCounts>>)>>,
}

/// Content of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreCounts {
    /// Number of held locks. At most 10,000 locks are counted, including those that only have waiters.
    pub(crate) locks_held: u64,
    /// Number of waiters.
    pub(crate) lock_waiters: u64,
    /// Number of tasks by queue and state.
    pub(crate) tasks: BTreeMap<(String, &'static str), u64>,
    /// Number of workers by state: `alive`, `draining`, `gone`.
    pub(crate) workers: BTreeMap<&'static str, u64>,
}

impl StoreGauges {
    pub(super) fn new(leasehold: Leasehold) -> Self {
        let cache_ttl = match leasehold.capabilities().engine {
            "dynamodb" => CACHE_TTL_COSTLY,
            "github" => CACHE_TTL_RATE_LIMITED,
            _ => CACHE_TTL,
        };
        Self { leasehold, cache_ttl, last: Mutex::default() }
    }

    /// Returns the newest count, or `None` if the store does not respond.
    pub(super) async fn get(&self) -> Option<Arc<StoreCounts>> {
        // Held while counting, so that concurrent callers share one count.
        let mut last = self.last.lock().await;
        let now = BootInstant::now();
        if let Some((at, counts)) = &*last
            && now.after(*at) < self.cache_ttl
        {
            return counts.clone();
        }
        let counts = match tokio::time::timeout(COUNT_TIMEOUT, count(&self.leasehold)).await {
            Ok(Ok(counts)) => Some(Arc::new(counts)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to count the content of the store");
                None
            }
            Err(_) => {
                tracing::warn!("counting the content of the store timed out");
                None
            }
        };
        *last = Some((now, counts.clone()));
        counts
    }
}

async fn count(leasehold: &Leasehold) -> Result<StoreCounts> {
    let store = leasehold.store();
    let mut counts = StoreCounts::default();
    let now = store.locks().now().await?;
    let mut after: Option<Cursor> = None;
    for _ in 0..MAX_PAGES {
        let query = ListLocks::default().state(LockState::InUse).after(after).limit(PAGE_SIZE);
        let page = store.locks().list(&query).await?;
        for record in &page.items {
            counts.locks_held += u64::from(record.live(now).next().is_some());
            counts.lock_waiters += record.waiting(now).count() as u64;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if let Some(tasks) = store.tasks() {
        for (number, queue) in tasks.queues().await?.iter().enumerate() {
            let name = if number < MAX_QUEUES { queue.queue.as_str() } else { OTHER };
            for state in TaskState::ALL {
                *counts.tasks.entry((name.to_owned(), state.as_str())).or_default() +=
                    queue.counts.get(state);
            }
        }
        counts.workers = ["alive", "draining", "gone"].map(|state| (state, 0)).into();
        let now = tasks.now().await?;
        for worker in tasks.workers().await? {
            *counts.workers.entry(WorkerView::new(&worker, now).state).or_default() += 1;
        }
    }
    Ok(counts)
}
