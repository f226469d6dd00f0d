//! A server whose store is not there yet.

use leasehold::Leasehold;
use leasehold_server::{Access, Limits, Server, listen_early};
use serde_json::{Value, json};

async fn get(base: &str, path: &str) -> (u16, Value) {
    let response = crate::lab::client().get(format!("{base}{path}")).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

#[tokio::test]
async fn before_the_store_is_there_it_is_alive_and_nothing_else() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (listening, stage) = listen_early(Limits::default(), None, listener).unwrap();
    let base = format!("http://{}", listening.address());
    assert_eq!(get(&base, "/healthz").await, (200, json!({ "status": "ok" })));
    for path in ["/readyz", "/api/v1/workflows", "/openapi.json", "/nowhere"] {
        let (status, body) = get(&base, path).await;
        assert_eq!((status, &body["code"]), (503, &json!("STORE_UNAVAILABLE")), "{path}");
        assert_eq!(body["retryAfterSeconds"], 1);
    }
    // One client, so that its connection of before would be used again.
    let client = crate::lab::client();
    let before = client.get(format!("{base}/readyz")).send().await.unwrap();
    assert_eq!((before.status().as_u16(), &before.headers()["connection"]), (503, &"close".parse().unwrap()));
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    stage.open(&Server::builder(leasehold).access(Access::Open).build());
    // Whoever opens it may be done with it then.
    drop(stage);
    let after = client.get(format!("{base}/readyz")).send().await.unwrap();
    assert_eq!(after.status().as_u16(), 200);
    listening.stop().await;
}
