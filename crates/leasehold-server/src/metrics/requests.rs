//! Requests, by route and kind of answer. Routes are patterns, so there are as many series as the server has paths.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use leasehold::Moment;
use leasehold::store::Histogram;

use crate::server::App;

/// In µs. Requests may wait for a lock or a task.
const BOUNDS: &[u64] = &[
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    15_000_000, 60_000_000,
];
/// Methods that have a name of their own; all others are one.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "LOCK", "UNLOCK"];

/// The requests so far.
#[derive(Default)]
pub(crate) struct Requests(RwLock<BTreeMap<Arc<str>, Arc<Route>>>);

/// The requests of one route.
pub(super) struct Route {
    pub(super) took: Histogram,
    /// By method and first digit of the status.
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

    /// All of them, by route.
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

    /// How many, by method and kind of status, such as `2xx`. Those that there are none of are left out.
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

/// Counts and times requests until their answer begins.
pub(crate) async fn count_requests(State(app): State<App>, request: Request, next: Next) -> Response {
    let began = Moment::now();
    let pattern = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let route = app.meters().requests.route(pattern);
    let method = request.method().as_str();
    let method = METHODS.iter().position(|known| *known == method).unwrap_or(METHODS.len());
    let response = next.run(request).await;
    route.took.add(Moment::now().after(began));
    let kind = usize::from(response.status().as_u16() / 100).clamp(1, 5) - 1;
    route.counts[method][kind].fetch_add(1, Ordering::Relaxed);
    response
}
