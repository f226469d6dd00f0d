//! All metrics of the server: requests by route and class of status, and webhook deliveries. Routes are
//! patterns, so the number of series is bounded by the routes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use leasehold::store::{Histogram, InstrumentedStore, MetricsSnapshot};
use leasehold::{BootInstant, Leasehold};

use super::store_gauges::{StoreCounts, StoreGauges};
use crate::webhooks::{Outcome, RejectLog, RejectReason};

/// All metrics of the server.
pub(crate) struct MetricsRegistry {
    store: Arc<InstrumentedStore>,
    store_gauges: StoreGauges,
    pub(crate) requests: Requests,
    /// Counters of webhook deliveries.
    pub(crate) webhooks: WebhookCounts,
    /// Whether `/metrics` needs no token.
    pub(crate) is_public: bool,
    /// Whether the page also has the unprefixed names.
    pub(crate) plain_names: bool,
}

impl MetricsRegistry {
    /// Returns an instrumented handle on the store, and the registry.
    pub(crate) fn new(leasehold: &Leasehold, is_public: bool) -> (Leasehold, Self) {
        let (measured, store) = leasehold.instrumented();
        // Queries for the gauges bypass the instrumentation, so that they are not counted.
        let store_gauges = StoreGauges::new(leasehold.clone());
        (
            measured,
            Self {
                store,
                store_gauges,
                requests: Requests::default(),
                webhooks: WebhookCounts::default(),
                is_public,
                plain_names: false,
            },
        )
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

/// Requests since the start.
#[derive(Default)]
pub(crate) struct Requests(RwLock<BTreeMap<Arc<str>, Arc<Route>>>);

/// Requests of one route.
pub(super) struct Route {
    pub(super) took: Histogram,
    /// Counts by method and first digit of the status.
    counts: Vec<[AtomicU64; 5]>,
}

impl Requests {
    /// Runs a request, counts it, and measures the time until its response begins.
    pub(crate) async fn measure(&self, request: Request, next: Next) -> Response {
        let began = BootInstant::now();
        let pattern = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
        let route = self.route(pattern);
        let method = request.method().as_str();
        let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len());
        let response = next.run(request).await;
        route.took.add(BootInstant::now().after(began));
        let kind = usize::from(response.status().as_u16() / 100).clamp(1, 5) - 1;
        route.counts[method][kind].fetch_add(1, Ordering::Relaxed);
        response
    }

    fn route(&self, pattern: &str) -> Arc<Route> {
        if let Some(route) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(pattern) {
            return route.clone();
        }
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        routes.entry(pattern.into()).or_insert_with(|| Arc::new(Route::new())).clone()
    }

    /// Returns the counters of all routes.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Route>)> {
        let routes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        routes.iter().map(|(pattern, route)| (pattern.clone(), route.clone())).collect()
    }
}

impl Route {
    fn new() -> Self {
        let counts = (0..=METHODS.len()).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
        Self { took: Histogram::new(BOUNDS), counts }
    }

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

/// Deliveries since the start.
#[derive(Default)]
pub(crate) struct WebhookCounts {
    triggers: RwLock<BTreeMap<Arc<str>, Arc<Counts>>>,
    unknown: AtomicU64,
    log: RejectLog,
}

/// Deliveries for one trigger.
#[derive(Default)]
pub(super) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    rejections: [AtomicU64; RejectReason::ALL.len()],
}

impl WebhookCounts {
    /// Counts a delivery for a trigger, which must be one of the settings.
    pub(crate) fn add(&self, trigger: &str, outcome: Outcome) {
        self.of(trigger).outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected delivery and logs it, unless another rejection was logged shortly before.
    pub(crate) fn reject(&self, trigger: &str, reason: RejectReason) {
        self.log.write(Some(trigger), reason.as_str());
        self.add(trigger, Outcome::Rejected);
        self.of(trigger).rejections[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a delivery for a trigger that does not exist.
    pub(crate) fn reject_unknown(&self) {
        self.log.write(None, UNKNOWN);
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of deliveries for triggers that do not exist, and the reason label for them.
    pub(super) fn unknown(&self) -> (&'static str, u64) {
        (UNKNOWN, self.unknown.load(Ordering::Relaxed))
    }

    /// Returns the counters of all triggers.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Counts>)> {
        let triggers = self.triggers.read().unwrap_or_else(PoisonError::into_inner);
        triggers.iter().map(|(trigger, counts)| (trigger.clone(), counts.clone())).collect()
    }

    fn of(&self, trigger: &str) -> Arc<Counts> {
        if let Some(counts) = self.triggers.read().unwrap_or_else(PoisonError::into_inner).get(trigger) {
            return counts.clone();
        }
        let mut triggers = self.triggers.write().unwrap_or_else(PoisonError::into_inner);
        triggers.entry(trigger.into()).or_default().clone()
    }
}

impl Counts {
    /// Returns the counts by outcome; zero counts are omitted.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(Outcome::ALL.map(Outcome::as_str), &self.outcomes)
    }

    /// Returns the counts by reason of the rejection; zero counts are omitted.
    pub(super) fn rejections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(RejectReason::ALL.map(RejectReason::as_str), &self.rejections)
    }
}

fn occurred<const N: usize>(
    labels: [&'static str; N],
    counts: &[AtomicU64; N],
) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    labels.into_iter().zip(counts).filter(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_and_each_reason_has_its_own_count() {
        let counts = WebhookCounts::default();
        for (times, reason) in (1..).zip(RejectReason::ALL) {
            (0..times).for_each(|_| counts.reject("push", reason));
        }
        for (times, outcome) in (1..).zip(Outcome::ALL) {
            (0..times).for_each(|_| counts.add("pay", outcome));
        }
        let all = counts.all();
        let labels: Vec<_> = all.iter().map(|(trigger, _)| &**trigger).collect();
        assert_eq!(labels, ["pay", "push"]);
        let outcomes: Vec<_> = all[0].1.outcomes().collect();
        assert_eq!(outcomes, (1..).zip(Outcome::ALL).map(|(n, o)| (o.as_str(), n)).collect::<Vec<_>>());
        let rejections: Vec<_> = all[1].1.rejections().collect();
        assert_eq!(
            rejections,
            (1..).zip(RejectReason::ALL).map(|(n, r)| (r.as_str(), n)).collect::<Vec<_>>()
        );
    }
}
