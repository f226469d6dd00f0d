//! Metrics in the Prometheus text format and as JSON, and the probes for liveness and readiness.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, Request};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use crate::access::{Caller, Reader, Role};
use crate::metrics::{StoreCounts, page};
use crate::openapi::roles::routes;
use crate::problem::{ApiResult, Reply};
use crate::server::App;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(Some(Role::Reader) => metrics))
        .routes(routes!(stats))
        .routes(routes!(None => healthz))
        .routes(routes!(None => readyz))
}

/// Counters of this server since its start, and the current content of the store.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Stats {
    /// Number of acquired locks.
    total_acquisitions: u64,
    /// Number of released locks.
    total_releases: u64,
    /// Number of acquire requests that found the lock held.
    total_conflicts: u64,
    /// Average time from an acquire request to the grant, in milliseconds.
    average_acquisition_time_ms: f64,
    /// Number of acquire requests that failed with a store error.
    failed_acquisitions: u64,
    /// Number of lock leases that expired or were taken over without a release by the holder.
    stale_locks_claimed: u64,
    /// Same as `averageAcquisitionTimeMs`.
    #[serde(rename = "lock_acquisition_time_ms")]
    lock_acquisition_time_ms: f64,
    /// Same as `totalConflicts`.
    #[serde(rename = "lock_conflicts_total")]
    lock_conflicts_total: u64,
    /// Number of retries after a conflict.
    #[serde(rename = "lock_retries_total")]
    lock_retries_total: u64,
    /// Same as `failedAcquisitions`.
    #[serde(rename = "lock_failures_total")]
    lock_failures_total: u64,
    /// Same as `staleLocksClaimed`.
    #[serde(rename = "stale_locks_recovered_total")]
    stale_locks_recovered_total: u64,
    /// Number of granted task leases.
    total_task_leases: u64,
    /// Number of heartbeats and results that were rejected because the task lease had ended.
    task_lease_conflicts: u64,
    /// Number of expired task leases.
    task_leases_expired: u64,
    /// Current content of the store, including that of other servers and clients; `null` if the
    /// store does not respond.
    now: Option<StoreStats>,
}

/// Current content of the store.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct StoreStats {
    /// Number of held locks, counted up to 10,000.
    locks_held: u64,
    /// Number of waiters.
    lock_waiters: u64,
    /// Number of tasks by state, over all queues.
    tasks: BTreeMap<&'static str, u64>,
    /// Number of workers by state.
    workers: BTreeMap<&'static str, u64>,
}

/// Returns the metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "metrics", operation_id = "getMetrics",
    responses((status = OK, description = "Metrics", body = String, content_type = "text/plain")),
)]
async fn metrics(app: App, request: Request) -> ApiResult<Response> {
    if !app.options.public_metrics {
        Caller::<Reader>::from_request_parts(&mut request.into_parts().0, &app).await?;
    }
    let engine = app.leasehold.capabilities().engine;
    let text = page(&app.metrics, engine, app.options.plain_metric_names).await;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Returns the main metrics as JSON, under common names.
#[utoipa::path(
    get, path = "/api/v1/stats", tag = "metrics", operation_id = "getStats",
    responses((status = OK, body = Stats)),
)]
async fn stats(app: App, _: Caller<Reader>) -> Reply<Stats> {
    let (snapshot, count) = app.metrics.read().await;
    let average = snapshot.acquire.mean() * 1000.0;
    let recovered = snapshot.recovered_in_all();
    Ok(axum::Json(Stats {
        total_acquisitions: snapshot.acquisitions,
        total_releases: snapshot.releases,
        total_conflicts: snapshot.conflicts,
        average_acquisition_time_ms: average,
        failed_acquisitions: snapshot.failures,
        stale_locks_claimed: recovered,
        lock_acquisition_time_ms: average,
        lock_conflicts_total: snapshot.conflicts,
        lock_retries_total: snapshot.retries,
        lock_failures_total: snapshot.failures,
        stale_locks_recovered_total: recovered,
        total_task_leases: snapshot.task_leases,
        task_lease_conflicts: snapshot.task_lease_conflicts,
        task_leases_expired: snapshot.task_leases_expired,
        now: count.as_deref().map(StoreStats::of),
    }))
}

impl StoreStats {
    fn of(count: &StoreCounts) -> Self {
        let mut tasks = BTreeMap::new();
        for ((_, state), number) in &count.tasks {
            *tasks.entry(*state).or_default() += number;
        }
        let StoreCounts { locks_held, lock_waiters, .. } = *count;
        Self { locks_held, lock_waiters, tasks, workers: count.workers.clone() }
    }
}

/// Health of the server.
#[derive(Serialize, ToSchema)]
struct HealthStatus {
    /// Always `ok`.
    status: &'static str,
}

/// Liveness probe: succeeds while the process runs.
///
/// Does not check the store.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = OK, body = HealthStatus)))]
async fn healthz() -> axum::Json<HealthStatus> {
    axum::Json(HealthStatus { status: "ok" })
}

/// Readiness probe: succeeds if the store responds and the server is not stopping.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = OK, body = HealthStatus)))]
async fn readyz(app: App) -> Reply<HealthStatus> {
    app.refuse_when_draining()?;
    app.leasehold.ping().await?;
    Ok(healthz().await)
}
