//! The workers of `examples/http/`, run unchanged.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};
use serde_json::{Value, json};
use tokio::process::Command;
use tower::ServiceExt;

use crate::store::serve;
use crate::test_server::TestServer;

const PYTHON: [&str; 3] = ["python3", "worker.py", "python"];
const NODE: [&str; 3] = ["node", "worker.mjs", "node"];

/// Returns a proxy that loses the first responses to lease requests.
fn proxy_that_loses_leases(server: Router, lost: usize) -> Router {
    let left = Arc::new(AtomicUsize::new(lost));
    Router::new().fallback(move |mut request: Request| {
        let (server, left) = (server.clone(), left.clone());
        async move {
            // What this router has added to the request must not reach the router of the server.
            request.extensions_mut().clear();
            let is_lease = request.uri().path().ends_with("/lease");
            let response = server.oneshot(request).await.unwrap();
            let take = |left: usize| left.checked_sub(1);
            if is_lease && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                return StatusCode::BAD_GATEWAY.into_response();
            }
            response
        }
    })
}

/// Lets the example work through a proxy that loses this number of responses to lease requests. Each task has
/// one attempt.
async fn works([program, file, by]: [&str; 3], lost: usize) {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let behind = Server::builder(leasehold.clone()).access(Access::Tokens(Vec::new())).build().router();
    let proxy = serve(proxy_that_loses_leases(behind, lost)).await;
    let token = TokenStore::new(leasehold).create("worker", Role::Worker, None).await.unwrap().text;
    server.use_token(&token);
    let task = |n: u64| json!({ "payload": { "numbers": [n, 1, 2] }, "maxAttempts": 1 });
    let mut new: Vec<Value> = (0..9).map(task).collect();
    new.push(json!({ "payload": "nonsense", "maxAttempts": 1 }));
    assert_eq!(server.post("/api/v1/queues/sums%2Fall/tasks", &json!(new)).await.body["added"], 10);
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(file);
    let run = Command::new(program)
        .arg(example)
        .args(["sums/all", "--until-empty"])
        .env("LEASEHOLD_URL", &proxy)
        .env("LEASEHOLD_API_TOKEN", &token)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(std::time::Duration::from_mins(1), run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let done = server.get("/api/v1/tasks?queue=sums%2Fall&state=succeeded").await;
    let mut sums: Vec<u64> = Vec::new();
    for task in done.body["tasks"].as_array().unwrap() {
        assert_eq!(task["result"]["by"], by);
        sums.push(task["result"]["sum"].as_u64().unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, (3..12).collect::<Vec<_>>());
    let failed = server.get("/api/v1/tasks?queue=sums%2Fall&state=failed").await;
    assert_eq!(failed.body["tasks"].as_array().unwrap().len(), 1, "{}", failed.body);
    assert!(failed.body["tasks"][0]["error"].as_str().unwrap().contains("Error"), "{}", failed.body);
    assert_eq!(server.get("/api/v1/workers").await.body["workers"][0]["version"], file);
    server.stop().await;
}

#[tokio::test]
async fn the_worker_in_python_does_its_tasks() {
    works(PYTHON, 0).await;
}

#[tokio::test]
async fn the_worker_in_node_does_its_tasks() {
    works(NODE, 0).await;
}

#[tokio::test]
async fn the_worker_in_python_finds_the_tasks_of_a_lost_response() {
    works(PYTHON, 1).await;
}

#[tokio::test]
async fn the_worker_in_node_finds_the_tasks_of_a_lost_response() {
    works(NODE, 1).await;
}
