//! The files in `deploy/` name only existing metrics, and the dashboard shows all of them.

use std::collections::BTreeSet;
use std::path::Path;

use leasehold::model::Payload;
use serde_json::Value;

use crate::metrics::scrape;
use crate::terraform::ADA;
use crate::test_server::TestServer;

fn deployed(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all metric names in a text: `leasehold_…` and `process_…`.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("leasehold_") || word.starts_with("process_")).map(known).collect()
}

/// Removes the suffix of a histogram series from a name.
fn known(name: &str) -> String {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    base.unwrap_or(name).to_owned()
}

async fn measured() -> BTreeSet<String> {
    let server = TestServer::open().await;
    server.leasehold.enqueue_to("q", Payload::new("{}").unwrap()).await.unwrap();
    server.lock(ADA).await;
    // These two exist only if the service of the store limits requests.
    let counted = ["leasehold_store_requests_left", "leasehold_store_requests_limit"].map(str::to_owned);
    scrape(&server).await.kinds.into_keys().chain(counted).collect()
}

#[tokio::test]
async fn rules_and_dashboard_name_only_existing_metrics() {
    let measured = measured().await;
    for file in ["prometheus/alerts.yml", "prometheus/recording.yml", "grafana/leasehold.json"] {
        let named = names(&deployed(file));
        assert!(!named.is_empty(), "{file}");
        let unknown: Vec<_> = named.difference(&measured).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[tokio::test]
async fn the_dashboard_shows_every_metric_in_panels_of_its_own() {
    let dashboard: Value = serde_json::from_str(&deployed("grafana/leasehold.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{panel}");
        for target in panel["targets"].as_array().unwrap_or(&Vec::new()) {
            let expr = target["expr"].as_str().unwrap();
            assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{expr}");
            assert_eq!(expr.matches('{').count(), expr.matches('}').count(), "{expr}");
            shown.extend(names(expr));
        }
    }
    let missing: Vec<_> = measured().await.difference(&shown).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_recording_rules_give_the_plain_names() {
    let rules = deployed("prometheus/recording.yml");
    for name in [
        "lock_acquisition_time_ms",
        "lock_conflicts_total",
        "lock_retries_total",
        "lock_failures_total",
        "stale_locks_recovered_total",
    ] {
        assert!(rules.contains(&format!("- record: {name}\n")), "{name}");
    }
}

#[test]
fn every_alert_is_described_and_documented() {
    let alerts = deployed("prometheus/alerts.yml");
    let page = deployed("../docs/operations.md");
    for alert in alerts.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        for part in ["expr: ", "severity: ", "summary: ", "description: "] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
        assert!(page.contains(&format!("`{name}`")), "docs/operations.md says nothing about {name}");
    }
}

#[tokio::test]
async fn the_page_on_operations_has_a_line_on_every_metric() {
    let page = deployed("../docs/operations.md");
    for name in measured().await {
        assert!(page.contains(&format!("| `{name}")), "{name}");
    }
}
