//! Spans arrive at a collector.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::routing::post;
use leasehold_server::otlp::Exporter;
use tracing_subscriber::layer::SubscriberExt;

use crate::lab::Lab;
use crate::terraform::ADA;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_calls_of_the_store_arrive_at_a_collector() {
    let got = Arc::new(Mutex::new(Vec::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let keep = got.clone();
    let route = post(async move |body: Bytes| keep.lock().unwrap().extend_from_slice(&body));
    let app = axum::Router::new().route("/v1/traces", route);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let exporter = tokio::task::spawn_blocking(move || Exporter::new(&collector).unwrap()).await.unwrap();
    // For all threads: the server's tasks may run on any.
    let subscriber = tracing_subscriber::registry().with(exporter.layer());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let lab = Lab::open().await;
    assert_eq!(lab.lock(ADA).await.status, 200);
    tokio::task::spawn_blocking(move || exporter.finish()).await.unwrap();
    let got = String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    for word in ["leasehold", "request", "/tf/{name}", "store", "lock_acquire", "tf/prod"] {
        assert!(got.contains(word), "{word} is not among {} bytes", got.len());
    }
}

#[test]
fn an_address_that_is_none_is_refused() {
    assert!(Exporter::new("collector:4318").is_err());
    assert!(Exporter::new("https://collector:4318").is_err());
}
