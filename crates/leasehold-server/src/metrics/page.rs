//! All metrics by name. `docs/operations.md` describes each.

use leasehold::store::MetricsSnapshot;

use super::process::Usage;
use super::registry::MetricsRegistry;
use super::store_gauges::StoreCounts;
use super::text::Kind::{Counter, Gauge, Histogram};
use super::text::Page;

/// Returns the page that Prometheus scrapes.
pub(crate) async fn page(registry: &MetricsRegistry, engine: &str) -> String {
    let (snapshot, counts) = registry.read().await;
    let mut page = Page::default();
    let version = env!("CARGO_PKG_VERSION");
    page.metric("leasehold_build_info", Gauge, "Version of leasehold and engine of its store.")
        .sample(&[("version", version), ("engine", engine)], 1);
    locks(&mut page, &snapshot);
    if registry.plain_names {
        plain(&mut page, &snapshot);
    }
    tasks(&mut page, &snapshot);
    store(&mut page, &snapshot);
    page.metric("leasehold_store_up", Gauge, "Whether the last query for the store gauges succeeded.")
        .sample(&[], u8::from(counts.is_some()));
    if let Some(counts) = &counts {
        now(&mut page, counts);
    }
    requests(&mut page, registry);
    webhooks(&mut page, registry);
    process(&mut page, &Usage::now());
    page.finish()
}

fn locks(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.metric("leasehold_lock_acquisitions_total", Counter, "Number of acquired locks.")
        .sample(&[], snapshot.acquisitions);
    page.metric("leasehold_lock_releases_total", Counter, "Number of released locks.")
        .sample(&[], snapshot.releases);
    page.metric(
        "leasehold_lock_acquire_duration_seconds",
        Histogram,
        "Time from an acquire request to the grant.",
    )
    .buckets(&[], &snapshot.acquire);
    page.metric("leasehold_lock_hold_duration_seconds", Histogram, "Time for which locks were held.")
        .buckets(&[], &snapshot.hold);
    page.metric(
        "leasehold_lock_conflicts_total",
        Counter,
        "Number of acquire requests that found the lock held.",
    )
    .sample(&[], snapshot.conflicts);
    page.metric("leasehold_lock_retries_total", Counter, "Number of retries after a conflict.")
        .sample(&[], snapshot.retries);
    page.metric(
        "leasehold_lock_failures_total",
        Counter,
        "Number of acquire requests that failed with a store error.",
    )
    .sample(&[], snapshot.failures);
    page.metric(
        "leasehold_stale_locks_recovered_total",
        Counter,
        "Number of lock leases that ended without a release by the holder, by cause.",
    );
    for (how, counts) in snapshot.recovered {
        page.sample(&[("how", how)], counts);
    }
}

/// Writes the lock metrics again under the names that `/api/v1/stats` also uses, for dashboards
/// that expect those names.
fn plain(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.metric(
        "lock_acquisition_time_ms",
        Gauge,
        "Average time from an acquire request to the grant since the start.",
    )
    .sample(&[], snapshot.acquire.mean() * 1000.0);
    for (name, help, counts) in [
        ("lock_conflicts_total", "Same as leasehold_lock_conflicts_total.", snapshot.conflicts),
        ("lock_retries_total", "Same as leasehold_lock_retries_total.", snapshot.retries),
        ("lock_failures_total", "Same as leasehold_lock_failures_total.", snapshot.failures),
        (
            "stale_locks_recovered_total",
            "Sum of leasehold_stale_locks_recovered_total.",
            snapshot.recovered_in_all(),
        ),
    ] {
        page.metric(name, Counter, help).sample(&[], counts);
    }
}

fn tasks(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.metric("leasehold_task_leases_total", Counter, "Number of granted task leases.")
        .sample(&[], snapshot.task_leases);
    page.metric(
        "leasehold_task_lease_conflicts_total",
        Counter,
        "Number of heartbeats and results that were rejected because the task lease had ended.",
    )
    .sample(&[], snapshot.task_lease_conflicts);
    page.metric("leasehold_task_leases_expired_total", Counter, "Number of expired task leases.")
        .sample(&[], snapshot.task_leases_expired);
    page.metric(
        "leasehold_version_conflicts_total",
        Counter,
        "Number of changes that were rejected because the version had changed.",
    );
    for (object, counts) in snapshot.version_conflicts {
        page.sample(&[("object", object)], counts);
    }
}

/// Omits operations that were never called, because they would be most of the page.
fn store(page: &mut Page, snapshot: &MetricsSnapshot) {
    let called = || snapshot.operations.iter().filter(|operation| operation.took.count() > 0);
    page.metric("leasehold_store_operation_duration_seconds", Histogram, "Duration of store calls.");
    for operation in called() {
        page.buckets(&[("op", operation.op)], &operation.took);
    }
    page.metric("leasehold_store_operation_errors_total", Counter, "Number of store calls that failed.");
    for operation in called() {
        page.sample(&[("op", operation.op)], operation.errors);
    }
    if let Some(budget) = snapshot.budget {
        page.metric(
            "leasehold_store_requests_left",
            Gauge,
            "Number of requests that the service of the store still allows in this hour.",
        )
        .sample(&[], budget.remaining);
        page.metric(
            "leasehold_store_requests_limit",
            Gauge,
            "Number of requests that the service of the store allows per hour.",
        )
        .sample(&[], budget.limit);
    }
}

fn now(page: &mut Page, counts: &StoreCounts) {
    page.metric("leasehold_locks_held", Gauge, "Number of held locks, counted up to 10000.")
        .sample(&[], counts.locks_held);
    page.metric("leasehold_lock_waiters", Gauge, "Number of waiters for locks.")
        .sample(&[], counts.lock_waiters);
    page.metric(
        "leasehold_tasks",
        Gauge,
        "Number of tasks by queue and state; queues beyond the first 100 have the label 'other'.",
    );
    for ((queue, state), tasks) in &counts.tasks {
        page.sample(&[("queue", queue), ("state", state)], tasks);
    }
    page.metric("leasehold_workers", Gauge, "Number of workers by state.");
    for (state, workers) in &counts.workers {
        page.sample(&[("state", state)], workers);
    }
}

fn requests(page: &mut Page, registry: &MetricsRegistry) {
    let routes = registry.requests.all();
    page.metric("leasehold_http_requests_total", Counter, "Number of requests by route and class of status.");
    for (pattern, route) in &routes {
        for (method, status, counts) in route.counts() {
            page.sample(&[("method", method), ("route", pattern), ("status", &status)], counts);
        }
    }
    page.metric(
        "leasehold_http_request_duration_seconds",
        Histogram,
        "Time until the response began, including waits.",
    );
    for (pattern, route) in &routes {
        page.buckets(&[("route", pattern)], &route.took.read());
    }
}

fn webhooks(page: &mut Page, registry: &MetricsRegistry) {
    let triggers = registry.webhooks.all();
    page.metric(
        "leasehold_webhook_deliveries_total",
        Counter,
        "Number of webhook deliveries by trigger and outcome.",
    );
    for (trigger, counts) in &triggers {
        for (outcome, counts) in counts.outcomes() {
            page.sample(&[("trigger", trigger), ("outcome", outcome)], counts);
        }
    }
    page.metric(
        "leasehold_webhook_refused_total",
        Counter,
        "Number of rejected webhook deliveries by trigger and reason; the trigger is empty if its id does not exist.",
    );
    for (trigger, counts) in &triggers {
        for (reason, counts) in counts.rejections() {
            page.sample(&[("trigger", trigger), ("reason", reason)], counts);
        }
    }
    let (reason, counts) = registry.webhooks.unknown();
    if counts > 0 {
        page.sample(&[("trigger", ""), ("reason", reason)], counts);
    }
}

fn process(page: &mut Page, usage: &Usage) {
    if let Some(seconds) = usage.cpu_seconds {
        page.metric("process_cpu_seconds_total", Counter, "CPU time in seconds.").sample(&[], seconds);
    }
    if let Some(bytes) = usage.resident_bytes {
        page.metric("process_resident_memory_bytes", Gauge, "Resident memory in bytes.").sample(&[], bytes);
    }
    if let Some(files) = usage.open_files {
        page.metric("process_open_fds", Gauge, "Number of open file descriptors.").sample(&[], files);
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;
    use leasehold::model::Timestamp;
    use leasehold::store::RateLimit;

    use super::*;

    #[tokio::test]
    async fn the_remaining_rate_limit_is_shown_if_the_service_has_one() {
        let shown = |snapshot: &MetricsSnapshot| {
            let mut page = Page::default();
            store(&mut page, snapshot);
            page.finish()
        };
        let (_, metered) = Leasehold::connect("memory:").await.unwrap().instrumented();
        let mut snapshot = metered.read().await;
        assert!(!shown(&snapshot).contains("leasehold_store_requests"));
        snapshot.budget = Some(RateLimit { limit: 5000, remaining: 12, renews_at: Timestamp::default() });
        let page = shown(&snapshot);
        assert!(page.contains("\nleasehold_store_requests_left 12\n"), "{page}");
        assert!(page.contains("\nleasehold_store_requests_limit 5000\n"), "{page}");
    }
}
