//! What is in the store now. Counted at most every few seconds however many ask, and only up to a bound.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{TaskState, Timestamp, WorkerStatus};
use leasehold::store::{Cursor, ListLocks, LockState};
use leasehold::{Leasehold, Moment, Result};
use tokio::sync::Mutex;

/// So long a count is good…
const FRESH: Duration = Duration::from_secs(5);
/// …and so long on an engine that has no index to count by, where each look at all locks costs money…
const FRESH_WHERE_DEAR: Duration = Duration::from_mins(1);
/// …and so long where each look at one lock is a request of a few thousand in an hour.
const FRESH_WHERE_COUNTED: Duration = Duration::from_mins(10);
/// A store that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many locks are counted: so many pages of so many.
const PAGES: usize = 10;
const PAGE: u32 = 1000;
/// So many queues have a name of their own in the metrics…
pub(super) const QUEUES: usize = 100;
/// …and the others have this one.
const OTHER: &str = "other";

/// Counts what is in a store.
pub(super) struct Census {
    leasehold: Leasehold,
    fresh: Duration,
    last: Mutex<Option<(Moment, Option<Arc<Count>>)>>,
}

/// What is in a store.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Locks that somebody holds; at most 10,000 are counted, with those that are only waited for.
    pub(crate) locks_held: u64,
    /// Who wait for them.
    pub(crate) lock_waiters: u64,
    /// Tasks by queue and state.
    pub(crate) tasks: BTreeMap<(String, &'static str), u64>,
    /// Workers by state: `active`, `draining`, `gone`.
    pub(crate) workers: BTreeMap<&'static str, u64>,
}

impl Census {
    pub(super) fn new(leasehold: Leasehold) -> Self {
        let fresh = match leasehold.abilities().engine {
            "dynamodb" => FRESH_WHERE_DEAR,
            "github" => FRESH_WHERE_COUNTED,
            _ => FRESH,
        };
        Self { leasehold, fresh, last: Mutex::default() }
    }

    /// The newest count; none if the store does not answer.
    pub(super) async fn take(&self) -> Option<Arc<Count>> {
        // Held while counting: those who come meanwhile get the same count.
        let mut last = self.last.lock().await;
        let now = Moment::now();
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
