//! Metrics of the server in the Prometheus text format.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::Leasehold;
use leasehold::model::Payload;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};

use crate::terraform::{ADA, BOB};
use crate::test_server::{Reply, TestServer};

/// Page, parsed as strictly as Prometheus does.
pub(crate) struct Exposition {
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) samples: BTreeMap<String, f64>,
}

impl Exposition {
    fn parse(text: &str) -> Self {
        let (mut kinds, mut samples) = (BTreeMap::new(), BTreeMap::new());
        let (mut helped, mut current) = (BTreeSet::new(), String::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
                name.clone_into(&mut current);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, current);
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let name = series.split('{').next().unwrap();
                assert!(
                    name.bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
                );
                let suffixes = ["", "_bucket", "_sum", "_count"];
                assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "{line}");
                check_labels(&series[name.len()..]);
                let value: f64 = value.parse().unwrap();
                assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
            }
        }
        let read = Self { kinds, samples };
        read.check_histograms();
        read
    }

    /// Checks that the last bucket equals the count.
    fn check_histograms(&self) {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let counts = self
                .samples
                .iter()
                .filter(|(series, _)| series.split('{').next().unwrap() == format!("{name}_count"));
            for (series, count) in counts {
                let labels = series[name.len() + "_count".len()..].trim_matches(['{', '}']);
                let labels = if labels.is_empty() { String::new() } else { format!("{labels},") };
                let infinite = format!("{name}_bucket{{{labels}le=\"+Inf\"}}");
                assert_eq!(self.samples.get(&infinite), Some(count), "{infinite}");
            }
        }
    }

    /// Returns the value of a series as an integer.
    fn get(&self, series: &str) -> u64 {
        let value = self.samples.get(series).unwrap_or_else(|| panic!("no {series}"));
        format!("{value}").parse().unwrap()
    }
}

fn check_labels(labels: &str) {
    if labels.is_empty() {
        return;
    }
    let inside = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
    let (mut rest, mut seen) = (inside, BTreeSet::new());
    while !rest.is_empty() {
        let (label, value) = rest.split_once("=\"").unwrap();
        assert!(seen.insert(label), "{labels}");
        let mut escaped = false;
        let end = value.char_indices().find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        rest = &value[end.unwrap().0 + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

pub(crate) async fn scrape(server: &TestServer) -> Exposition {
    let reply = server.get("/metrics").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    Exposition::parse(reply.body.as_str().unwrap())
}

/// Promised metric names.
const PROMISED: [&str; 16] = [
    "leasehold_lock_acquire_duration_seconds",
    "leasehold_lock_conflicts_total",
    "leasehold_lock_retries_total",
    "leasehold_lock_failures_total",
    "leasehold_stale_locks_recovered_total",
    "leasehold_locks_held",
    "leasehold_lock_waiters",
    "leasehold_lock_hold_duration_seconds",
    "leasehold_task_leases_total",
    "leasehold_task_lease_conflicts_total",
    "leasehold_task_leases_expired_total",
    "leasehold_version_conflicts_total",
    "leasehold_tasks",
    "leasehold_workers",
    "leasehold_store_operation_duration_seconds",
    "leasehold_build_info",
];

#[tokio::test]
async fn every_metric_is_well_formed_and_correct() {
    let server = TestServer::open().await;
    server.leasehold.enqueue_to("q \"1\"", Payload::new("{}").unwrap()).await.unwrap();
    server.lock(ADA).await;
    server.lock(BOB).await;
    server.put(ADA, 1).await;
    server.unlock(ADA).await;
    server.lock(BOB).await;
    server.get("/nowhere").await;
    let page = scrape(&server).await;
    for name in PROMISED {
        assert!(page.kinds.contains_key(name), "{name}");
    }
    assert_eq!(page.get("leasehold_lock_acquisitions_total"), 2);
    assert_eq!(page.get("leasehold_lock_acquire_duration_seconds_count"), 2);
    assert_eq!(page.get("leasehold_lock_conflicts_total"), 1);
    assert_eq!(page.get("leasehold_locks_held"), 1);
    assert_eq!(page.get("leasehold_tasks{queue=\"q \\\"1\\\"\",state=\"pending\"}"), 1);
    assert_eq!(page.get("leasehold_store_operation_duration_seconds_count{op=\"lock_acquire\"}"), 3);
    let locks = "leasehold_http_requests_total{method=\"LOCK\",route=\"/tf/{name}\",status=\"2xx\"}";
    assert_eq!(page.get(locks), 2);
    assert_eq!(page.get("leasehold_http_requests_total{method=\"GET\",route=\"none\",status=\"4xx\"}"), 1);
    assert!(page.get("process_resident_memory_bytes") > 0);
    assert_eq!(page.get("leasehold_store_up"), 1);
}

#[tokio::test]
async fn queues_beyond_a_hundred_share_one_label() {
    let server = TestServer::open().await;
    for number in 0..130 {
        server.leasehold.enqueue_to(format!("q{number:03}"), Payload::new("{}").unwrap()).await.unwrap();
    }
    let page = scrape(&server).await;
    let queues = page
        .samples
        .keys()
        .filter(|series| series.starts_with("leasehold_tasks{") && series.contains("state=\"pending\""));
    assert_eq!(queues.count(), 101);
    assert_eq!(page.get("leasehold_tasks{queue=\"other\",state=\"pending\"}"), 30);
}

#[tokio::test]
async fn stats_have_the_common_names() {
    let server = TestServer::open().await;
    server.lock(ADA).await;
    server.lock(BOB).await;
    server.unlock(ADA).await;
    let stats = server.get("/api/v1/stats").await.body;
    for (name, value) in [
        ("totalAcquisitions", 1),
        ("totalReleases", 1),
        ("totalConflicts", 1),
        ("failedAcquisitions", 0),
        ("staleLocksClaimed", 0),
        ("lock_conflicts_total", 1),
        ("lock_retries_total", 0),
        ("lock_failures_total", 0),
        ("stale_locks_recovered_total", 0),
    ] {
        assert_eq!(stats[name], value, "{name}: {stats}");
    }
    for name in ["averageAcquisitionTimeMs", "lock_acquisition_time_ms"] {
        assert!(stats[name].as_f64().unwrap() >= 0.0, "{stats}");
    }
    assert_eq!(stats["now"]["locksHeld"], 0);
}

#[tokio::test]
async fn the_page_has_the_plain_names_if_enabled() {
    const PLAIN: [&str; 5] = [
        "lock_acquisition_time_ms",
        "lock_conflicts_total",
        "lock_retries_total",
        "lock_failures_total",
        "stale_locks_recovered_total",
    ];
    let server = TestServer::open().await;
    let page = scrape(&server).await;
    assert!(PLAIN.iter().all(|name| !page.kinds.contains_key(*name)), "{:?}", page.kinds);
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).plain_metric_names().build();
    let server = TestServer::serve(server, leasehold).await;
    server.lock(ADA).await;
    server.lock(BOB).await;
    let page = scrape(&server).await;
    for name in PLAIN {
        assert!(page.kinds.contains_key(name), "{name}");
    }
    assert_eq!(page.get("lock_conflicts_total"), page.get("leasehold_lock_conflicts_total"));
    assert_eq!((page.get("lock_conflicts_total"), page.get("lock_retries_total")), (1, 0));
    assert!(page.samples["lock_acquisition_time_ms"] > 0.0);
}

#[tokio::test]
async fn metrics_require_the_role_reader_unless_public() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    assert_eq!(server.get("/metrics").await.code(), "UNAUTHENTICATED");
    assert_eq!(server.get("/api/v1/stats").await.code(), "UNAUTHENTICATED");
    let reader = TokenStore::new(leasehold.clone()).create("prometheus", Role::Reader, None).await.unwrap();
    server.use_token(&reader.text);
    scrape(&server).await;
    let server = Server::builder(leasehold.clone()).public_metrics().build();
    let server = TestServer::serve(server, leasehold).await;
    scrape(&server).await;
    assert_eq!(Reply::of(server.request(reqwest::Method::GET, "/api/v1/stats")).await.status, 401);
}
