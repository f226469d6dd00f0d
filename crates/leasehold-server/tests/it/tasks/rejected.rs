//! Rejected requests: invalid input, and a store without tasks.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::{Capabilities, LockStore, Store};
use leasehold_server::{Access, Limits};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

const ADD: &str = "/api/v1/queues/q/tasks";
const LEASE: &str = "/api/v1/queues/q/lease";
const UNKNOWN_TASK: &str = "/api/v1/tasks/01890a5d-ac96-774b-bcce-b302099a8057";

#[tokio::test]
async fn an_invalid_task_is_rejected() {
    let server = TestServer::open().await;
    for body in [
        json!({ "payload": 1, "prioritty": 2 }),
        json!({ "priority": 1001 }),
        json!({ "key": "" }),
        json!({ "lock": "a\nb" }),
        json!({ "delaySeconds": -1 }),
        json!({ "delaySeconds": "soon" }),
        json!({ "runAt": "tomorrow" }),
        json!({ "runAt": "2030-01-01T00:00:00Z", "delaySeconds": 1 }),
        json!({ "maxAttempts": 0 }),
        json!({ "maxAttempts": 1001 }),
        json!({ "backoffSeconds": 0 }),
        json!({ "reuse": "always" }),
        json!("text"),
        json!([{ "payload": 1 }, { "priority": 5000 }]),
        json!(vec![json!({}); 1001]),
    ] {
        let reply = server.post(ADD, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    let reply = server.post(ADD, &json!([{}, { "priority": 5000 }])).await;
    assert!(reply.body["detail"].as_str().unwrap().starts_with("task 1: "), "{}", reply.body);
    let reply = server.post(ADD, &json!({ "prioritty": 2 })).await;
    assert!(reply.body["detail"].as_str().unwrap().contains("prioritty"), "{}", reply.body);
    assert_eq!(server.post("/api/v1/queues/%20q/tasks", &json!({})).await.code(), "INVALID");
    assert_eq!(server.get("/api/v1/queues").await.body["queues"], json!([]));
}

#[tokio::test]
async fn a_payload_has_a_limit_whatever_the_body_may_be() {
    let mut limits = Limits::default();
    limits.body_bytes = 4 << 20;
    let server = TestServer::with(Leasehold::connect("memory:").await.unwrap(), Access::Open, limits).await;
    let reply = server.post(ADD, &json!({ "payload": "x".repeat(1 << 20) })).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    assert!(reply.body["detail"].as_str().unwrap().contains("1048576 is the most"), "{}", reply.body);
    let small = TestServer::open().await;
    let reply = small.post(ADD, &json!({ "payload": "x".repeat(1 << 20) })).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE"));
}

#[tokio::test]
async fn an_invalid_lease_request_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let server = TestServer::over(Leasehold::connect(&url).await.unwrap(), Access::Open).await;
    for body in [
        json!({ "ttlSeconds": 0 }),
        json!({ "ttlSeconds": -5 }),
        json!({ "ttlSeconds": 0.01 }),
        json!({ "ttlSeconds": 1e10 }),
        json!({ "waitSeconds": 61 }),
        json!({ "waitSeconds": -1 }),
        json!({ "max": 0 }),
        json!({ "max": 1001 }),
        json!({ "worker": { "id": "me" } }),
        json!({ "worker": "me" }),
        json!({ "worker": { "id": "01890a5d-ac96-774b-bcce-b302099a8057", "host": "x".repeat(300) } }),
        json!({ "worker": { "id": "01890a5d-ac96-774b-bcce-b302099a8057", "colour": "red" } }),
        json!({ "wait": 1 }),
    ] {
        let reply = server.post(LEASE, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn missing_resources_are_404() {
    for server in TestServer::each().await {
        assert_eq!(server.get(UNKNOWN_TASK).await.code(), "UNKNOWN_TASK");
        for what in ["heartbeat", "complete", "fail", "release", "abort"] {
            let reply = server.post(&format!("{UNKNOWN_TASK}/{what}"), &json!({ "token": 1 })).await;
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_TASK"), "{what}");
        }
        for what in ["retry", "cancel"] {
            let reply = Reply::of(server.request(Method::POST, &format!("{UNKNOWN_TASK}/{what}"))).await;
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_TASK"), "{what}");
        }
        for what in ["pause", "resume"] {
            let reply = server.post(&format!("/api/v1/queues/nowhere/{what}"), &json!({})).await;
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_QUEUE"), "{what}");
        }
        for path in [
            "/api/v1/tasks/42",
            "/api/v1/tasks?state=lost",
            "/api/v1/tasks?limit=0",
            "/api/v1/tasks?limit=1001",
            "/api/v1/tasks?worker=me",
            "/api/v1/tasks?colour=red",
        ] {
            let reply = server.get(path).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path}");
        }
        for body in [json!({}), json!({ "token": "x" }), json!({ "token": 1, "state": "done" })] {
            assert_eq!(
                server.post(&format!("{UNKNOWN_TASK}/complete"), &body).await.code(),
                "INVALID",
                "{body}"
            );
        }
        let both = json!({ "token": 1, "final": true, "retryInSeconds": 1 });
        assert_eq!(server.post(&format!("{UNKNOWN_TASK}/fail"), &both).await.code(), "INVALID");
        let odd = json!({ "tasks": [{ "id": "01890a5d-ac96-774b-bcce-b302099a8057", "token": 1, "outcome": "abort", "error": "x" }] });
        assert_eq!(server.post("/api/v1/tasks/settle", &odd).await.code(), "INVALID");
        server.stop().await;
    }
}

/// Store in memory without support for tasks.
struct LocksOnly(Arc<dyn Store>);

#[async_trait::async_trait]
impl Store for LocksOnly {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn locks(&self) -> &dyn LockStore {
        self.0.locks()
    }
}

#[tokio::test]
async fn a_store_without_tasks_is_501() {
    let memory = Leasehold::connect("memory:").await.unwrap();
    let leasehold = Leasehold::with_store(Arc::new(LocksOnly(memory.store()))).unwrap();
    let server = TestServer::over(leasehold, Access::Open).await;
    let none: Value = json!({});
    for reply in [
        server.get(UNKNOWN_TASK).await,
        server.get("/api/v1/tasks").await,
        server.get("/api/v1/queues").await,
        server.get("/api/v1/workers").await,
        server.get("/api/v1/schedules").await,
        server.post(ADD, &none).await,
        server.post(ADD, &json!([none])).await,
        server.post(LEASE, &none).await,
        server.post("/api/v1/tasks/recover", &none).await,
    ] {
        assert_eq!((reply.status, reply.code()), (501, "NOT_SUPPORTED"), "{}", reply.body);
        assert!(reply.body["hint"].as_str().unwrap().contains("sqlite:"));
    }
    server.stop().await;
}
