//! The page `/metrics` in the text format of Prometheus, with metrics of the store, the server and its process.

use std::fmt::{Display, Write};
use std::fs;

use leasehold::store::{Buckets, MetricsSnapshot};

use super::registry::{MetricsRegistry, StoreCounts};

pub(crate) async fn page(registry: &MetricsRegistry, engine: &str, has_plain_names: bool) -> String {
    let (snapshot, counts) = registry.read().await;
    let mut page = Page::default();
    let version = env!("CARGO_PKG_VERSION");
    page.gauge("leasehold_build_info", "Version of leasehold and engine of its store.")
        .sample(&[("version", version), ("engine", engine)], 1);
    locks(&mut page, &snapshot);
    if has_plain_names {
        plain(&mut page, &snapshot);
    }
    tasks(&mut page, &snapshot);
    store(&mut page, &snapshot);
    page.gauge("leasehold_store_up", "Whether the last query for the store gauges succeeded.")
        .sample(&[], u8::from(counts.is_some()));
    if let Some(counts) = &counts {
        now(&mut page, counts);
    }
    requests(&mut page, registry);
    webhooks(&mut page, registry);
    process(&mut page);
    page.text
}

fn locks(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.counter("leasehold_lock_acquisitions_total", "Number of acquired locks.")
        .sample(&[], snapshot.acquisitions);
    page.counter("leasehold_lock_releases_total", "Number of released locks.").sample(&[], snapshot.releases);
    page.histogram("leasehold_lock_acquire_duration_seconds", "Time from an acquire request to the grant.")
        .buckets(&[], &snapshot.acquire);
    page.histogram("leasehold_lock_hold_duration_seconds", "Time for which locks were held.")
        .buckets(&[], &snapshot.hold);
    page.counter("leasehold_lock_conflicts_total", "Number of acquire requests that found the lock held.")
        .sample(&[], snapshot.conflicts);
    page.counter("leasehold_lock_retries_total", "Number of retries after a conflict.")
        .sample(&[], snapshot.retries);
    page.counter(
        "leasehold_lock_failures_total",
        "Number of acquire requests that failed with a store error.",
    )
    .sample(&[], snapshot.failures);
    page.counter(
        "leasehold_stale_locks_recovered_total",
        "Number of lock leases that ended without a release by the holder, by cause.",
    );
    for (how, counts) in snapshot.recovered {
        page.sample(&[("how", how)], counts);
    }
}

/// Writes the lock metrics again under the names that `/api/v1/stats` also uses, for dashboards
/// that expect those names.
fn plain(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.gauge(
        "lock_acquisition_time_ms",
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
        page.counter(name, help).sample(&[], counts);
    }
}

fn tasks(page: &mut Page, snapshot: &MetricsSnapshot) {
    page.counter("leasehold_task_leases_total", "Number of granted task leases.")
        .sample(&[], snapshot.task_leases);
    page.counter(
        "leasehold_task_lease_conflicts_total",
        "Number of heartbeats and results that were rejected because the task lease had ended.",
    )
    .sample(&[], snapshot.task_lease_conflicts);
    page.counter("leasehold_task_leases_expired_total", "Number of expired task leases.")
        .sample(&[], snapshot.task_leases_expired);
    page.counter(
        "leasehold_version_conflicts_total",
        "Number of changes that were rejected because the version had changed.",
    );
    for (object, counts) in snapshot.version_conflicts {
        page.sample(&[("object", object)], counts);
    }
}

/// Writes the metrics of store calls. Omits operations that were never called, because they would be most of
/// the page.
fn store(page: &mut Page, snapshot: &MetricsSnapshot) {
    let called = || snapshot.operations.iter().filter(|operation| operation.took.count() > 0);
    page.histogram("leasehold_store_operation_duration_seconds", "Duration of store calls.");
    for operation in called() {
        page.buckets(&[("op", operation.op)], &operation.took);
    }
    page.counter("leasehold_store_operation_errors_total", "Number of store calls that failed.");
    for operation in called() {
        page.sample(&[("op", operation.op)], operation.errors);
    }
    if let Some(rate_limit) = snapshot.rate_limit {
        page.gauge(
            "leasehold_store_requests_left",
            "Number of requests that the service of the store still allows in this hour.",
        )
        .sample(&[], rate_limit.remaining);
        page.gauge(
            "leasehold_store_requests_limit",
            "Number of requests that the service of the store allows per hour.",
        )
        .sample(&[], rate_limit.limit);
    }
}

fn now(page: &mut Page, counts: &StoreCounts) {
    page.gauge("leasehold_locks_held", "Number of held locks, counted up to 10000.")
        .sample(&[], counts.locks_held);
    page.gauge("leasehold_lock_waiters", "Number of waiters for locks.").sample(&[], counts.lock_waiters);
    page.gauge(
        "leasehold_tasks",
        "Number of tasks by queue and state; queues beyond the first 100 have the label 'other'.",
    );
    for ((queue, state), tasks) in &counts.tasks {
        page.sample(&[("queue", queue), ("state", state)], tasks);
    }
    page.gauge("leasehold_workers", "Number of workers by state.");
    for (state, workers) in &counts.workers {
        page.sample(&[("state", state)], workers);
    }
}

fn requests(page: &mut Page, registry: &MetricsRegistry) {
    let routes = registry.requests.all();
    page.counter("leasehold_http_requests_total", "Number of requests by route and class of status.");
    for (pattern, route) in &routes {
        for (method, status, counts) in route.counts() {
            page.sample(&[("method", method), ("route", pattern), ("status", &status)], counts);
        }
    }
    page.histogram(
        "leasehold_http_request_duration_seconds",
        "Time until the response began, including waits.",
    );
    for (pattern, route) in &routes {
        page.buckets(&[("route", pattern)], &route.took.read());
    }
}

fn webhooks(page: &mut Page, registry: &MetricsRegistry) {
    let triggers = registry.webhooks.triggers.all();
    page.counter(
        "leasehold_webhook_deliveries_total",
        "Number of webhook deliveries by trigger and outcome.",
    );
    for (trigger, counts) in &triggers {
        for (outcome, counts) in counts.outcomes() {
            page.sample(&[("trigger", trigger), ("outcome", outcome)], counts);
        }
    }
    page.counter("leasehold_webhook_refused_total", "Number of rejected webhook deliveries by trigger and reason; the trigger is empty if its id does not exist.");
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

fn process(page: &mut Page) {
    let read = |path| fs::read_to_string(path).ok();
    if let Some(seconds) = read("/proc/self/stat").as_deref().and_then(cpu_seconds) {
        page.counter("process_cpu_seconds_total", "CPU time in seconds.").sample(&[], seconds);
    }
    if let Some(bytes) = read("/proc/self/status").as_deref().and_then(resident_bytes) {
        page.gauge("process_resident_memory_bytes", "Resident memory in bytes.").sample(&[], bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Number of open file descriptors.").sample(&[], files.count());
    }
}

#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

type Label<'a> = (&'static str, &'a str);

impl Page {
    fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.metric(name, "counter", help)
    }

    fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.metric(name, "gauge", help)
    }

    fn histogram(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.metric(name, "histogram", help)
    }

    /// Starts a metric. All its samples must follow before the next metric.
    fn metric(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
        self
    }

    fn sample(&mut self, labels: &[Label<'_>], value: impl Display) -> &mut Self {
        self.line("", labels, None, value);
        self
    }

    /// Writes the samples of a histogram, with cumulative counts as the format requires.
    fn buckets(&mut self, labels: &[Label<'_>], buckets: &Buckets) -> &mut Self {
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
            page.text
        };
        let (_, instrumented) = Leasehold::connect("memory:").await.unwrap().instrumented();
        let mut snapshot = instrumented.read().await;
        assert!(!shown(&snapshot).contains("leasehold_store_requests"));
        snapshot.rate_limit = Some(RateLimit::new(5000, 12, Timestamp::default()));
        let page = shown(&snapshot);
        assert!(page.contains("\nleasehold_store_requests_left 12\n"), "{page}");
        assert!(page.contains("\nleasehold_store_requests_limit 5000\n"), "{page}");
    }

    #[test]
    fn a_metric_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        page.counter("a_total", "What it\nis.").sample(&[], 3);
        page.gauge("b", "b").sample(&[("q", "x\"y\\z\n"), ("s", "t")], 0.5);
        let histogram = leasehold::store::Histogram::new(&[100_000]);
        for millis in [50, 50, 1400] {
            histogram.add(Duration::from_millis(millis));
        }
        page.histogram("c_seconds", "c").buckets(&[("op", "get")], &histogram.read());
        assert_eq!(
            page.text,
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
