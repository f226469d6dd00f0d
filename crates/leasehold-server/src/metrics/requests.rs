//! Request metrics by route and class of status. Routes are patterns, so the number of series is
//! bounded by the routes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use leasehold::BootInstant;
use leasehold::store::Histogram;

use crate::server::App;

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

/// Middleware that counts requests and measures the time until their response begins.
pub(crate) async fn count_requests(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = BootInstant::now();
    let pattern = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let route = app.metrics().requests.route(pattern);
    let method = request.method().as_str();
    let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len());
    let response = next.run(request).await;
    route.took.add(BootInstant::now().after(began));
    let kind = usize::from(response.status().as_u16() / 100).clamp(1, 5) - 1;
    route.counts[method][kind].fetch_add(1, Ordering::Relaxed);
    response
}
