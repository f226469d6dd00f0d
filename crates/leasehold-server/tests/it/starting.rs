//! A server whose store is not connected yet.

use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Server, listen_early};
use serde_json::{Value, json};

async fn get(base: &str, path: &str) -> (u16, Value) {
    let response = crate::test_server::client().get(format!("{base}{path}")).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

#[tokio::test]
async fn before_the_store_is_connected_only_the_liveness_probe_succeeds() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (listening, stage) = listen_early(Limits::default(), None, listener).unwrap();
    let base = format!("http://{}", listening.address());
    assert_eq!(get(&base, "/healthz").await, (200, json!({ "status": "ok" })));
    for path in ["/readyz", "/api/v1/workflows", "/openapi.json", "/nowhere"] {
        let (status, body) = get(&base, path).await;
        assert_eq!((status, &body["code"]), (503, &json!("STORE_UNAVAILABLE")), "{path}");
        assert_eq!(body["retryAfterSeconds"], 1);
    }
    // A single client, which would reuse its earlier connection.
    let client = crate::test_server::client();
    let before = client.get(format!("{base}/readyz")).send().await.unwrap();
    assert_eq!((before.status().as_u16(), &before.headers()["connection"]), (503, &"close".parse().unwrap()));
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    stage.open(&Server::builder(leasehold).access(Access::Open).build());
    // The server stays available after the handle is dropped.
    drop(stage);
    let after = client.get(format!("{base}/readyz")).send().await.unwrap();
    assert_eq!(after.status().as_u16(), 200);
    listening.stop().await;
}
