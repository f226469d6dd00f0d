//! Gauges of the store's content. The store is queried at most every few seconds, independent of
//! the number of scrapes, and counts are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{TaskState, Timestamp, WorkerStatus};
use leasehold::store::{Cursor, ListLocks, LockState};
use leasehold::{BootInstant, Leasehold, Result};
use tokio::sync::Mutex;

/// Time for which a count is reused.
const FRESH: Duration = Duration::from_secs(5);
/// Reuse time on an engine without an index for counting, where each scan of all locks costs money.
const FRESH_WHERE_DEAR: Duration = Duration::from_mins(1);
/// Reuse time where each read of one lock is one of a few thousand requests allowed per hour.
const FRESH_WHERE_COUNTED: Duration = Duration::from_mins(10);
/// Timeout of a count.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of pages of locks that are counted, with `PAGE` locks each.
const PAGES: usize = 10;
const PAGE: u32 = 1000;
/// Maximum number of queues with a label of their own in the metrics.
pub(super) const QUEUES: usize = 100;
/// Label of all other queues.
const OTHER: &str = "other";

/// Counts the content of a store.
pub(super) struct Census {
    leasehold: Leasehold,
    fresh: Duration,
    last: Mutex<Option<(BootInstant, Option<Arc<Count>>)>>,
}

/// Content of a store.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Number of held locks. At most 10,000 locks are counted, including those that only have waiters.
    pub(crate) locks_held: u64,
    /// Number of waiters.
    pub(crate) lock_waiters: u64,
    /// Number of tasks by queue and state.
    pub(crate) tasks: BTreeMap<(String, &'static str), u64>,
    /// Number of workers by state: `active`, `draining`, `gone`.
    pub(crate) workers: BTreeMap<&'static str, u64>,
}

impl Census {
    pub(super) fn new(leasehold: Leasehold) -> Self {
        let fresh = match leasehold.capabilities().engine {
            "dynamodb" => FRESH_WHERE_DEAR,
            "github" => FRESH_WHERE_COUNTED,
            _ => FRESH,
        };
        Self { leasehold, fresh, last: Mutex::default() }
    }

    /// Returns the newest count, or `None` if the store does not respond.
    pub(super) async fn take(&self) -> Option<Arc<Count>> {
        // Held while counting, so that concurrent callers share one count.
        let mut last = self.last.lock().await;
        let now = BootInstant::now();
        if let Some((at, count)) = &*last
            && now.after(*at) < self.fresh
        {
            return count.clone();
        }
        let count = match tokio::time::timeout(PATIENCE, count(&self.leasehold)).await {
            Ok(Ok(count)) => Some(Arc::new(count)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "what is in the store could not be counted");
                None
            }
            Err(_) => {
                tracing::warn!("the store takes too long to be counted");
                None
            }
        };
        *last = Some((now, count.clone()));
        count
    }
}

async fn count(leasehold: &Leasehold) -> Result<Count> {
    let store = leasehold.store();
    let mut count = Count::default();
    let now = store.locks().now().await?;
    let mut after: Option<Cursor> = None;
    for _ in 0..PAGES {
        let ask = ListLocks { prefix: None, state: Some(LockState::InUse), after, limit: PAGE };
        let page = store.locks().list(&ask).await?;
        for record in &page.items {
            count.locks_held += u64::from(record.live(now).next().is_some());
            count.lock_waiters += record.waiting(now).count() as u64;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if let Some(tasks) = store.tasks() {
        for (number, queue) in tasks.queues().await?.iter().enumerate() {
            let name = if number < QUEUES { queue.queue.as_str() } else { OTHER };
            for state in TaskState::ALL {
                *count.tasks.entry((name.to_owned(), word(state))).or_default() += queue.counts.get(state);
            }
        }
        count.workers = ["active", "draining", "gone"].map(|state| (state, 0)).into();
        let now = tasks.now().await?;
        for worker in tasks.workers().await? {
            *count.workers.entry(state_of(&worker, now)).or_default() += 1;
        }
    }
    Ok(count)
}

fn state_of(worker: &WorkerStatus, now: Timestamp) -> &'static str {
    match worker {
        worker if worker.is_gone(now) => "gone",
        worker if worker.info.draining => "draining",
        _ => "active",
    }
}

const fn word(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => "scheduled",
        TaskState::Blocked => "blocked",
        TaskState::Pending => "pending",
        TaskState::Running => "running",
        TaskState::Succeeded => "succeeded",
        TaskState::Failed => "failed",
        TaskState::Aborted => "aborted",
    }
}
