//! The workers of `examples/http/`, run unchanged.

use std::path::PathBuf;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::test_server::TestServer;

async fn works(program: &str, file: &str, by: &str) {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token = TokenStore::new(leasehold).create("worker", Role::Worker, None).await.unwrap().text;
    server.use_token(&token);
    let mut new: Vec<Value> = (0..9).map(|n| json!({ "payload": { "numbers": [n, 1, 2] } })).collect();
    new.push(json!({ "payload": "nonsense", "maxAttempts": 1 }));
    assert_eq!(server.post("/api/v1/queues/sums%2Fall/tasks", &json!(new)).await.body["added"], 10);
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/http").join(file);
    let run = Command::new(program)
        .arg(example)
        .args(["sums/all", "--until-empty"])
        .env("LEASEHOLD_URL", &server.base)
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
    works("python3", "worker.py", "python").await;
}

#[tokio::test]
async fn the_worker_in_node_does_its_tasks() {
    works("node", "worker.mjs", "node").await;
}
