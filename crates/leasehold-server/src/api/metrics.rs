//! What is measured: as Prometheus reads it, and as JSON under the names that people know.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Caller, Reader, Role};
use crate::metrics::{Count, page};
use crate::problem::Answer;
use crate::roles::routes;
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(Some(Role::Reader) => metrics)).routes(routes!(stats))
}

/// What this server has counted since it started.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Stats {
    /// Locks that were had.
    total_acquisitions: u64,
    /// Locks that were given back.
    total_releases: u64,
    /// Requests that found a lock taken.
    total_conflicts: u64,
    /// From asking for a lock to having it, on the average.
    average_acquisition_time_ms: f64,
    /// Times that asking for a lock ended in an error of the store.
    failed_acquisitions: u64,
    /// Leases on locks that ended without their holder.
    stale_locks_claimed: u64,
    /// As `averageAcquisitionTimeMs`.
    #[serde(rename = "lock_acquisition_time_ms")]
    lock_acquisition_time_ms: f64,
    /// As `totalConflicts`.
    #[serde(rename = "lock_conflicts_total")]
    lock_conflicts_total: u64,
    /// Times that a request which found a lock taken asked again.
    #[serde(rename = "lock_retries_total")]
    lock_retries_total: u64,
    /// As `failedAcquisitions`.
    #[serde(rename = "lock_failures_total")]
    lock_failures_total: u64,
    /// As `staleLocksClaimed`.
    #[serde(rename = "stale_locks_recovered_total")]
    stale_locks_recovered_total: u64,
    /// Leases on tasks that were given.
    total_task_leases: u64,
    /// Signs of life and results of tasks whose lease was over.
    task_lease_conflicts: u64,
    /// Leases on tasks that ran out.
    task_leases_expired: u64,
    /// What is in the store now, whoever put it there; nothing if the store does not answer.
    now: Option<Now>,
}

/// What is in the store now.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Now {
    /// Locks that somebody holds; counted up to 10,000.
    locks_held: u64,
    /// How many wait for locks.
    lock_waiters: u64,
    /// Tasks by state, all queues together.
    tasks: BTreeMap<&'static str, u64>,
    /// Workers by state.
    workers: BTreeMap<&'static str, u64>,
}

/// What is measured, in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "metrics", operation_id = "getMetrics",
    responses(
        (status = OK, description = "The metrics", body = String, content_type = "text/plain"),
    ),
)]
async fn metrics(State(app): State<App>, request: Request) -> Answer<Response> {
    if !app.meters().for_everyone {
        Caller::<Reader>::from_request_parts(&mut request.into_parts().0, &app).await?;
    }
    let text = page(app.meters(), app.leasehold().capabilities().engine).await;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// The same in a few numbers, under the names that people know.
#[utoipa::path(
    get, path = "/api/v1/stats", tag = "metrics", operation_id = "getStats",
    responses(
        (status = OK, body = Stats),
    ),
)]
async fn stats(State(app): State<App>, _: Caller<Reader>) -> Answer<axum::Json<Stats>> {
    let (reading, count) = app.meters().read().await;
    let average = reading.acquire.mean() * 1000.0;
    let recovered = reading.recovered_in_all();
    Ok(axum::Json(Stats {
        total_acquisitions: reading.acquisitions,
        total_releases: reading.releases,
        total_conflicts: reading.conflicts,
        average_acquisition_time_ms: average,
        failed_acquisitions: reading.failures,
        stale_locks_claimed: recovered,
        lock_acquisition_time_ms: average,
        lock_conflicts_total: reading.conflicts,
        lock_retries_total: reading.retries,
        lock_failures_total: reading.failures,
        stale_locks_recovered_total: recovered,
        total_task_leases: reading.task_leases,
        task_lease_conflicts: reading.task_lease_conflicts,
        task_leases_expired: reading.task_leases_expired,
        now: count.as_deref().map(Now::of),
    }))
}

impl Now {
    fn of(count: &Count) -> Self {
        let mut tasks = BTreeMap::new();
        for ((_, state), number) in &count.tasks {
            *tasks.entry(*state).or_default() += number;
        }
        let (locks_held, lock_waiters) = (count.locks_held, count.lock_waiters);
        Self { locks_held, lock_waiters, tasks, workers: count.workers.clone() }
    }
}
