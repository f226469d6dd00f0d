//! All metrics by name. `docs/operations.md` describes each.

use leasehold::store::MetricsSnapshot;

use super::census::Count;
use super::meters::Meters;
use super::process::Usage;
use super::text::Kind::{Counter, Gauge, Histogram};
use super::text::Page;

/// Returns the page that Prometheus scrapes.
pub(crate) async fn page(meters: &Meters, engine: &str) -> String {
    let (reading, count) = meters.read().await;
    let mut page = Page::default();
    let version = env!("CARGO_PKG_VERSION");
    page.metric("leasehold_build_info", Gauge, "The version of leasehold, and the engine of its store.")
        .sample(&[("version", version), ("engine", engine)], 1);
    locks(&mut page, &reading);
    if meters.plain_names {
        plain(&mut page, &reading);
    }
    tasks(&mut page, &reading);
    store(&mut page, &reading);
    page.metric("leasehold_store_up", Gauge, "Whether the store could be counted at the last try.")
        .sample(&[], u8::from(count.is_some()));
    if let Some(count) = &count {
        now(&mut page, count);
    }
    requests(&mut page, meters);
    webhooks(&mut page, meters);
    process(&mut page, &Usage::now());
    page.finish()
}

fn locks(page: &mut Page, reading: &MetricsSnapshot) {
    page.metric("leasehold_lock_acquisitions_total", Counter, "Locks that were had.")
        .sample(&[], reading.acquisitions);
    page.metric("leasehold_lock_releases_total", Counter, "Locks that were given back.")
        .sample(&[], reading.releases);
    page.metric("leasehold_lock_acquire_duration_seconds", Histogram, "From asking for a lock to having it.")
        .buckets(&[], &reading.acquire);
    page.metric("leasehold_lock_hold_duration_seconds", Histogram, "How long locks were held.")
        .buckets(&[], &reading.hold);
    page.metric("leasehold_lock_conflicts_total", Counter, "Requests that found a lock taken.")
        .sample(&[], reading.conflicts);
    page.metric(
        "leasehold_lock_retries_total",
        Counter,
        "Times that a request which found a lock taken asked again.",
    )
    .sample(&[], reading.retries);
    page.metric(
        "leasehold_lock_failures_total",
        Counter,
        "Times that asking for a lock ended in an error of the store.",
    )
    .sample(&[], reading.failures);
    page.metric(
        "leasehold_stale_locks_recovered_total",
        Counter,
        "Leases on locks that ended without their holder, by how.",
    );
    for (how, count) in reading.recovered {
        page.sample(&[("how", how)], count);
    }
}

/// Writes the lock metrics again under the names that `/api/v1/stats` also uses, for dashboards
/// that expect those names.
fn plain(page: &mut Page, reading: &MetricsSnapshot) {
    page.metric(
        "lock_acquisition_time_ms",
        Gauge,
        "From asking for a lock to having it, on average since the start.",
    )
    .sample(&[], reading.acquire.mean() * 1000.0);
    for (name, help, count) in [
        ("lock_conflicts_total", "As leasehold_lock_conflicts_total.", reading.conflicts),
        ("lock_retries_total", "As leasehold_lock_retries_total.", reading.retries),
        ("lock_failures_total", "As leasehold_lock_failures_total.", reading.failures),
        (
            "stale_locks_recovered_total",
            "As leasehold_stale_locks_recovered_total, all together.",
            reading.recovered_in_all(),
        ),
    ] {
        page.metric(name, Counter, help).sample(&[], count);
    }
}

fn tasks(page: &mut Page, reading: &MetricsSnapshot) {
    page.metric("leasehold_task_leases_total", Counter, "Leases on tasks that were given.")
        .sample(&[], reading.task_leases);
    page.metric(
        "leasehold_task_lease_conflicts_total",
        Counter,
        "Signs of life and results of tasks whose lease was over.",
    )
    .sample(&[], reading.task_lease_conflicts);
    page.metric("leasehold_task_leases_expired_total", Counter, "Leases on tasks that ran out.")
        .sample(&[], reading.task_leases_expired);
    page.metric(
        "leasehold_version_conflicts_total",
        Counter,
        "Changes to something that had changed meanwhile.",
    );
    for (object, count) in reading.version_conflicts {
        page.sample(&[("object", object)], count);
    }
}

/// Omits operations that were never called, because they would be most of the page.
fn store(page: &mut Page, reading: &MetricsSnapshot) {
    let called = || reading.operations.iter().filter(|operation| operation.took.count() > 0);
    page.metric("leasehold_store_operation_duration_seconds", Histogram, "How long calls of the store took.");
    for operation in called() {
        page.buckets(&[("op", operation.op)], &operation.took);
    }
    page.metric(
        "leasehold_store_operation_errors_total",
        Counter,
        "Calls of the store that ended in an error.",
    );
    for operation in called() {
        page.sample(&[("op", operation.op)], operation.errors);
    }
    if let Some(budget) = reading.budget {
        page.metric(
            "leasehold_store_requests_left",
            Gauge,
            "Requests that the store's service still allows in this hour.",
        )
        .sample(&[], budget.remaining);
        page.metric(
            "leasehold_store_requests_limit",
            Gauge,
            "Requests that the store's service allows in an hour.",
        )
        .sample(&[], budget.limit);
    }
}

fn now(page: &mut Page, count: &Count) {
    page.metric("leasehold_locks_held", Gauge, "Locks that somebody holds; counted up to 10000.")
        .sample(&[], count.locks_held);
    page.metric("leasehold_lock_waiters", Gauge, "How many wait for locks.").sample(&[], count.lock_waiters);
    page.metric("leasehold_tasks", Gauge, "Tasks by queue and state; beyond 100 queues the rest is 'other'.");
    for ((queue, state), tasks) in &count.tasks {
        page.sample(&[("queue", queue), ("state", state)], tasks);
    }
    page.metric("leasehold_workers", Gauge, "Workers by state.");
    for (state, workers) in &count.workers {
        page.sample(&[("state", state)], workers);
    }
}

fn requests(page: &mut Page, meters: &Meters) {
    let routes = meters.requests.all();
    page.metric("leasehold_http_requests_total", Counter, "Requests by route and kind of answer.");
    for (pattern, route) in &routes {
        for (method, status, count) in route.counts() {
            page.sample(&[("method", method), ("route", pattern), ("status", &status)], count);
        }
    }
    page.metric(
        "leasehold_http_request_duration_seconds",
        Histogram,
        "Until the answer began, waits included.",
    );
    for (pattern, route) in &routes {
        page.buckets(&[("route", pattern)], &route.took.read());
    }
}

fn webhooks(page: &mut Page, meters: &Meters) {
    let triggers = meters.webhooks.all();
    page.metric("leasehold_webhook_deliveries_total", Counter, "Webhook deliveries by trigger and outcome.");
    for (trigger, counts) in &triggers {
        for (outcome, count) in counts.outcomes() {
            page.sample(&[("trigger", trigger), ("outcome", outcome)], count);
        }
    }
    page.metric(
        "leasehold_webhook_refused_total",
        Counter,
        "Webhook deliveries that were refused, by trigger and reason; no trigger if there is none of that id.",
    );
    for (trigger, counts) in &triggers {
        for (reason, count) in counts.refusals() {
            page.sample(&[("trigger", trigger), ("reason", reason)], count);
        }
    }
    let (reason, count) = meters.webhooks.unknown();
    if count > 0 {
        page.sample(&[("trigger", ""), ("reason", reason)], count);
    }
}

fn process(page: &mut Page, usage: &Usage) {
    if let Some(seconds) = usage.cpu_seconds {
        page.metric("process_cpu_seconds_total", Counter, "Processor time.").sample(&[], seconds);
    }
    if let Some(bytes) = usage.resident_bytes {
        page.metric("process_resident_memory_bytes", Gauge, "Memory in use.").sample(&[], bytes);
    }
    if let Some(files) = usage.open_files {
        page.metric("process_open_fds", Gauge, "Open files and connections.").sample(&[], files);
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;
    use leasehold::model::Timestamp;
    use leasehold::store::RateLimit;

    use super::*;

    #[tokio::test]
    async fn what_a_service_still_allows_is_shown_if_it_counts() {
        let shown = |reading: &MetricsSnapshot| {
            let mut page = Page::default();
            store(&mut page, reading);
            page.finish()
        };
        let (_, metered) = Leasehold::connect("memory:").await.unwrap().metered();
        let mut reading = metered.read().await;
        assert!(!shown(&reading).contains("leasehold_store_requests"));
        reading.budget = Some(RateLimit { limit: 5000, remaining: 12, renews_at: Timestamp::default() });
        let page = shown(&reading);
        assert!(page.contains("\nleasehold_store_requests_left 12\n"), "{page}");
        assert!(page.contains("\nleasehold_store_requests_limit 5000\n"), "{page}");
    }
}
