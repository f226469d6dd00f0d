//! All metrics of the server: requests by route and class of status, webhook deliveries, and gauges of the
//! store's content. Routes are patterns, so the number of series is bounded by the routes. The store is
//! queried at most every few seconds, independent of the number of scrapes, and counts are bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use futures_util::FutureExt;
use leasehold::client::WorkerView;
use leasehold::model::TaskState;
use leasehold::store::{Cursor, Histogram, InstrumentedStore, ListLocks, LockState, MetricsSnapshot};
use leasehold::{BootInstant, Leasehold, Result};
use tokio::sync::Mutex;

use crate::webhooks::{Outcome, RejectLog, RejectReason};

pub(crate) struct MetricsRegistry {
    store: Arc<InstrumentedStore>,
    store_gauges: StoreGauges,
    pub(crate) requests: Labeled<Route>,
    pub(crate) webhooks: WebhookCounts,
}

impl MetricsRegistry {
    /// Returns an instrumented handle on the store, and the registry.
    pub(crate) fn new(leasehold: &Leasehold) -> (Leasehold, Self) {
        let (measured, store) = leasehold.instrumented();
        // Queries for the gauges bypass the instrumentation, so that they are not counted.
        let store_gauges = StoreGauges::new(leasehold.clone());
        let (requests, webhooks) = Default::default();
        (measured, Self { store, store_gauges, requests, webhooks })
    }

    /// Returns the counters of this server, without reading the content of the store.
    pub(crate) async fn read_counters(&self) -> MetricsSnapshot {
        self.store.read().await
    }

    pub(crate) async fn read(&self) -> (MetricsSnapshot, Option<Arc<StoreCounts>>) {
        (self.store.read().await, self.store_gauges.get().await)
    }
}

/// Histogram bounds in µs. The high bounds cover requests that wait for a lock or a task.
const BOUNDS: &[u64] = &[
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    15_000_000, 60_000_000,
];
/// Methods with a label of their own; all others share the label `other`.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "LOCK", "UNLOCK"];

/// Counters by label, added with their first use.
#[derive(Default)]
pub(crate) struct Labeled<T>(RwLock<BTreeMap<Arc<str>, Arc<T>>>);

impl<T: Default> Labeled<T> {
    fn of(&self, label: &str) -> Arc<T> {
        if let Some(counters) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(label) {
            return counters.clone();
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(label.into()).or_default().clone()
    }

    pub(super) fn all(&self) -> BTreeMap<Arc<str>, Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Route {
    pub(super) took: Histogram,
    /// Counts by method and first digit of the status.
    counts: [[AtomicU64; 5]; METHODS.len() + 1],
}

impl Labeled<Route> {
    /// Runs a request, counts it, and measures the time until its response begins.
    pub(crate) fn measure<R: Future<Output = Response>>(
        &self,
        request: Request,
        run: impl FnOnce(Request) -> R,
    ) -> impl Future<Output = Response> {
        let began = BootInstant::now();
        let pattern = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        let route = self.of(pattern);
        let method = request.method().as_str();
        let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len());
        run(request).map(move |response| {
            route.took.add(BootInstant::now().after(began));
            let kind = usize::from(response.status().as_u16() / 100).clamp(1, 5) - 1;
            route.counts[method][kind].fetch_add(1, Ordering::Relaxed);
            response
        })
    }
}

impl Default for Route {
    fn default() -> Self {
        Self { took: Histogram::new(BOUNDS), counts: Default::default() }
    }
}

impl Route {
    /// Returns the counts by method and class of status, such as `2xx`; zero counts are omitted.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, String, u64)> {
        self.counts.iter().enumerate().flat_map(|(method, kinds)| {
            let method = METHODS.get(method).copied().unwrap_or("other");
            let kinds = kinds
                .iter()
                .enumerate()
                .map(move |(kind, count)| (method, format!("{}xx", kind + 1), count.load(Ordering::Relaxed)));
            kinds.filter(|(_, _, count)| *count > 0)
        })
    }
}

/// Reason of a rejection without a trigger.
const UNKNOWN: &str = "unknown_trigger";

#[derive(Default)]
pub(crate) struct WebhookCounts {
    pub(super) triggers: Labeled<Counts>,
    unknown: AtomicU64,
    log: RejectLog,
}

#[derive(Default)]
pub(crate) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    rejections: [AtomicU64; RejectReason::ALL.len()],
}

impl WebhookCounts {
    /// Counts a delivery for a trigger, which must be one of the settings.
    pub(crate) fn add(&self, trigger: &str, outcome: Outcome) {
        self.triggers.of(trigger).outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected delivery and logs it, unless another rejection was logged shortly before.
    pub(crate) fn reject(&self, trigger: &str, reason: RejectReason) {
        self.log.write(Some(trigger), RejectReason::ALL[reason as usize].1);
        self.add(trigger, Outcome::Rejected);
        self.triggers.of(trigger).rejections[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reject_unknown(&self) {
        self.log.write(None, UNKNOWN);
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of deliveries for triggers that do not exist, and the reason label for them.
    pub(super) fn unknown(&self) -> (&'static str, u64) {
        (UNKNOWN, self.unknown.load(Ordering::Relaxed))
    }
}

impl Counts {
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(Outcome::ALL, &self.outcomes)
    }

    pub(super) fn rejections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(RejectReason::ALL, &self.rejections)
    }
}

fn occurred<T, const N: usize>(
    all: [(T, &'static str); N],
    counts: &[AtomicU64; N],
) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    all.map(|(_, label)| label).into_iter().zip(counts).filter(|(_, count)| *count > 0)
}

const CACHE_TTL: Duration = Duration::from_secs(5);
/// Reuse time on an engine without an index for counting, where each scan of all locks costs money.
const CACHE_TTL_COSTLY: Duration = Duration::from_mins(1);
/// Reuse time where each read of one lock is one of a few thousand requests allowed per hour.
const CACHE_TTL_RATE_LIMITED: Duration = Duration::from_mins(10);
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of pages of locks that are counted, with `PAGE_SIZE` locks each.
const MAX_PAGES: usize = 10;
const PAGE_SIZE: u32 = 1000;
/// Maximum number of queues with a label of their own in the metrics.
const MAX_QUEUES: usize = 100;
const OTHER: &str = "other";

struct StoreGauges {
    leasehold: Leasehold,
    cache_ttl: Duration,
    last: Mutex<Option<(BootInstant, Option<Arc<StoreCounts>>)>>,
}

#[derive(Debug, Default)]
pub(crate) struct StoreCounts {
    /// Number of held locks. At most 10,000 locks are counted, including those that only have waiters.
    pub(crate) locks_held: u64,
    /// Whether there are more locks than were counted.
    pub(crate) has_more_locks: bool,
    pub(crate) lock_waiters: u64,
    pub(crate) tasks: BTreeMap<(String, &'static str), u64>,
    /// Number of workers by state: `alive`, `draining`, `dead`.
    pub(crate) workers: BTreeMap<&'static str, u64>,
}

impl StoreGauges {
    fn new(leasehold: Leasehold) -> Self {
        let cache_ttl = match leasehold.capabilities().engine {
            "dynamodb" => CACHE_TTL_COSTLY,
            "github" => CACHE_TTL_RATE_LIMITED,
            _ => CACHE_TTL,
        };
        Self { leasehold, cache_ttl, last: Mutex::default() }
    }

    /// Returns the newest count, or `None` if the store does not respond.
    async fn get(&self) -> Option<Arc<StoreCounts>> {
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
    counts.has_more_locks = after.is_some();
    if let Some(tasks) = store.tasks() {
        for (number, queue) in tasks.queues().await?.iter().enumerate() {
            let name = if number < MAX_QUEUES { queue.queue.as_str() } else { OTHER };
            for state in TaskState::ALL {
                *counts.tasks.entry((name.to_owned(), state.as_str())).or_default() +=
                    queue.counts.get(state);
            }
        }
        counts.workers = ["alive", "draining", "dead"].map(|state| (state, 0)).into();
        let now = tasks.now().await?;
        for worker in tasks.workers().await? {
            *counts.workers.entry(WorkerView::new(&worker, now).state).or_default() += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_and_each_reason_has_its_own_count() {
        let counts = WebhookCounts::default();
        for (times, (reason, _)) in (1..).zip(RejectReason::ALL) {
            (0..times).for_each(|_| counts.reject("push", reason));
        }
        for (times, (outcome, _)) in (1..).zip(Outcome::ALL) {
            (0..times).for_each(|_| counts.add("pay", outcome));
        }
        let all = counts.triggers.all();
        let labels: Vec<_> = all.keys().map(|trigger| &**trigger).collect();
        assert_eq!(labels, ["pay", "push"]);
        assert!(
            all["pay"].outcomes().eq(Outcome::ALL.into_iter().zip(1..).map(|((_, label), n)| (label, n)))
        );
        let rejections = all["push"].rejections();
        assert!(rejections.eq(RejectReason::ALL.into_iter().zip(1..).map(|((_, label), n)| (label, n))));
    }
}
