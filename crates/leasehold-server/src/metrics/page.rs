//! The page `/metrics` in the text format of Prometheus, with metrics of the store, the server and its process.

use std::fmt::{Display, Write};
use std::fs;

use leasehold::store::{Buckets, MetricsSnapshot};

use self::Kind::{Counter, Gauge, Histogram};
use super::registry::MetricsRegistry;
use super::store_gauges::StoreCounts;

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

/// Page under construction.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    name: &'static str,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Label and its value.
type Label<'a> = (&'static str, &'a str);

impl Page {
    /// Starts a metric. All its samples must follow before the next metric.
    pub(super) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut Self {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
        self
    }

    /// Writes one sample.
    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: impl Display) -> &mut Self {
        self.line("", labels, None, value);
        self
    }

    /// Writes the samples of a histogram, with cumulative counts as the format requires.
    pub(super) fn buckets(&mut self, labels: &[Label<'_>], buckets: &Buckets) -> &mut Self {
        let mut below = 0;
        for (bound, count) in buckets.bounds.iter().zip(&buckets.counts) {
            below += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.line("_bucket", labels, Some(("le", &bound)), below);
        }
        self.line("_sum", labels, None, buckets.sum);
        self.line("_count", labels, None, below);
        self
    }

    /// Returns the complete page.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], last: Option<Label<'_>>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let mut sign = '{';
        for (label, value) in labels.iter().copied().chain(last) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{sign}{label}=\"{value}\"");
            sign = ',';
        }
        let end = if sign == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

/// Clock ticks per second: 100 on every Linux system that this runs on.
const TICKS: f64 = 100.0;

/// Resource usage of this process.
#[derive(Debug, Default)]
struct Usage {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
}

impl Usage {
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let status = fs::read_to_string("/proc/self/status").ok();
        let files = fs::read_dir("/proc/self/fd").ok();
        Self {
            cpu_seconds: stat.as_deref().and_then(cpu_seconds),
            resident_bytes: status.as_deref().and_then(resident_bytes),
            open_files: files.map(|files| files.count() as u64),
        }
    }
}

/// Returns fields 14 and 15 in seconds. Field 2 is a name in parentheses that may contain spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let (_, instrumented) = Leasehold::connect("memory:").await.unwrap().instrumented();
        let mut snapshot = instrumented.read().await;
        assert!(!shown(&snapshot).contains("leasehold_store_requests"));
        snapshot.budget = Some(RateLimit::new(5000, 12, Timestamp::default()));
        let page = shown(&snapshot);
        assert!(page.contains("\nleasehold_store_requests_left 12\n"), "{page}");
        assert!(page.contains("\nleasehold_store_requests_limit 5000\n"), "{page}");
    }

    #[test]
    fn a_metric_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        page.metric("a_total", Kind::Counter, "What it\nis.").sample(&[], 3);
        page.metric("b", Kind::Gauge, "b").sample(&[("q", "x\"y\\z\n"), ("s", "t")], 0.5);
        let histogram = leasehold::store::Histogram::new(&[100_000]);
        for millis in [50, 50, 1400] {
            histogram.add(Duration::from_millis(millis));
        }
        page.metric("c_seconds", Kind::Histogram, "c").buckets(&[("op", "get")], &histogram.read());
        assert_eq!(
            page.finish(),
            "# HELP a_total What it\\nis.\n# TYPE a_total counter\na_total 3\n\
             # HELP b b\n# TYPE b gauge\nb{q=\"x\\\"y\\\\z\\n\",s=\"t\"} 0.5\n\
             # HELP c_seconds c\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{op=\"get\",le=\"0.1\"} 2\nc_seconds_bucket{op=\"get\",le=\"+Inf\"} 3\n\
             c_seconds_sum{op=\"get\"} 1.5\nc_seconds_count{op=\"get\"} 3\n"
        );
    }

    #[test]
    fn resource_usage_is_parsed() {
        let stat = "12 (a b) c) S 1 1 1 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("nonsense"), None);
        assert_eq!(resident_bytes("VmPeak:\t1 kB\nVmRSS:\t  12 kB\n"), Some(12 * 1024));
    }
}
