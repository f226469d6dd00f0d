//! Metrics of deliveries.

use reqwest::Method;

use super::senders::{github, payment, push, server};
use crate::metrics::scrape;
use crate::test_server::{Reply, TestServer};

async fn unsigned(server: &TestServer, path: &str, signature: Option<&str>) -> Reply {
    let request = server.request(Method::POST, path).body("{}");
    Reply::of(
        signature.into_iter().fold(request, |request, value| request.header("x-hub-signature-256", value)),
    )
    .await
}

#[tokio::test]
async fn deliveries_are_counted_by_trigger_and_outcome() {
    let server = server().await;
    push(&server, "push", "guid-1", r#"{"after":"1"}"#).await;
    push(&server, "push", "guid-1", r#"{"after":"1"}"#).await;
    push(&server, "push", "guid-2", r#"{"after":"2"}"#).await;
    push(&server, "github", "guid-3", r#"{"after":"3"}"#).await;
    github(&server, "github", &[("x-github-event", "ping")], "{}").await;
    github(&server, "github", &[], "{}").await;
    for signature in [None, Some("x"), Some("sha256=00"), Some(&*format!("sha256={}", "0".repeat(64)))] {
        unsigned(&server, "/api/webhooks/push", signature).await;
    }
    payment(&server, r#"{"id":"evt_1"}"#, None, -400).await;
    payment(&server, r#"{"id":"evt_2"}"#, None, 0).await;
    payment(&server, r#"{"id":"evt_2","a":1}"#, None, 0).await;
    unsigned(&server, "/api/webhooks/plain", None).await;
    for number in 0..3 {
        unsigned(&server, &format!("/api/webhooks/no-such-{number}"), None).await;
    }
    let page = scrape(&server).await;
    let series = |name: &str| {
        let all = page.samples.iter().filter(|(series, _)| series.starts_with(name));
        all.map(|(series, count)| format!("{} {count}", &series[name.len()..])).collect::<Vec<_>>()
    };
    assert_eq!(
        series("leasehold_webhook_deliveries_total"),
        [
            r#"{trigger="github",outcome="filtered"} 1"#,
            r#"{trigger="github",outcome="queued"} 1"#,
            r#"{trigger="github",outcome="refused"} 1"#,
            r#"{trigger="payments",outcome="refused"} 2"#,
            r#"{trigger="payments",outcome="started"} 1"#,
            r#"{trigger="plain",outcome="refused"} 1"#,
            r#"{trigger="push",outcome="duplicate"} 1"#,
            r#"{trigger="push",outcome="locked"} 1"#,
            r#"{trigger="push",outcome="refused"} 4"#,
            r#"{trigger="push",outcome="started"} 1"#,
        ]
    );
    assert_eq!(
        series("leasehold_webhook_refused_total"),
        [
            r#"{trigger="",reason="unknown_trigger"} 3"#,
            r#"{trigger="github",reason="invalid"} 1"#,
            r#"{trigger="payments",reason="key_reused"} 1"#,
            r#"{trigger="payments",reason="too_old"} 1"#,
            r#"{trigger="plain",reason="not_json"} 1"#,
            r#"{trigger="push",reason="malformed_signature"} 2"#,
            r#"{trigger="push",reason="missing_signature"} 1"#,
            r#"{trigger="push",reason="wrong_signature"} 1"#,
        ]
    );
    server.stop().await;
}
