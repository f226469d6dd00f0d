//! What is not taken: bad input, and a store without tasks.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::store::{Capabilities, LockStore, Store};
use leasehold_server::{Access, Limits};
use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

const ADD: &str = "/api/v1/queues/q/tasks";
const LEASE: &str = "/api/v1/queues/q/lease";
const NOBODY: &str = "/api/v1/tasks/01890a5d-ac96-774b-bcce-b302099a8057";

#[tokio::test]
async fn a_task_that_makes_no_sense_is_not_added() {
    let lab = Lab::open().await;
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
        let reply = lab.post(ADD, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    let reply = lab.post(ADD, &json!([{}, { "priority": 5000 }])).await;
    assert!(reply.body["detail"].as_str().unwrap().starts_with("task 1: "), "{}", reply.body);
    let reply = lab.post(ADD, &json!({ "prioritty": 2 })).await;
    assert!(reply.body["detail"].as_str().unwrap().contains("prioritty"), "{}", reply.body);
    assert_eq!(lab.post("/api/v1/queues/%20q/tasks", &json!({})).await.code(), "INVALID");
    assert_eq!(lab.get("/api/v1/queues").await.body["queues"], json!([]));
}

#[tokio::test]
async fn a_payload_has_a_limit_whatever_the_body_may_be() {
    let limits = Limits { body_bytes: 4 << 20, ..Limits::default() };
    let lab = Lab::with(Leasehold::connect("memory:").await.unwrap(), Access::Open, limits).await;
    let reply = lab.post(ADD, &json!({ "payload": "x".repeat(1 << 20) })).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    assert!(reply.body["detail"].as_str().unwrap().contains("1048576 is the most"), "{}", reply.body);
    let small = Lab::open().await;
    let reply = small.post(ADD, &json!({ "payload": "x".repeat(1 << 20) })).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE"));
}

#[tokio::test]
async fn a_lease_has_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let lab = Lab::over(Leasehold::connect(&url).await.unwrap(), Access::Open).await;
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
        let reply = lab.post(LEASE, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    lab.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    for lab in Lab::each().await {
        assert_eq!(lab.get(NOBODY).await.code(), "UNKNOWN_TASK");
        for what in ["heartbeat", "complete", "fail", "release", "abort"] {
            let reply = lab.post(&format!("{NOBODY}/{what}"), &json!({ "token": 1 })).await;
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_TASK"), "{what}");
        }
        for what in ["retry", "cancel"] {
            let reply = Reply::of(lab.request(Method::POST, &format!("{NOBODY}/{what}"))).await;
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_TASK"), "{what}");
        }
        for what in ["pause", "resume"] {
            let reply = lab.post(&format!("/api/v1/queues/nowhere/{what}"), &json!({})).await;
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
            let reply = lab.get(path).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path}");
        }
        for body in [json!({}), json!({ "token": "x" }), json!({ "token": 1, "state": "done" })] {
            assert_eq!(lab.post(&format!("{NOBODY}/complete"), &body).await.code(), "INVALID", "{body}");
        }
        let both = json!({ "token": 1, "final": true, "retryInSeconds": 1 });
        assert_eq!(lab.post(&format!("{NOBODY}/fail"), &both).await.code(), "INVALID");
        let odd = json!({ "tasks": [{ "id": "01890a5d-ac96-774b-bcce-b302099a8057", "token": 1, "outcome": "abort", "error": "x" }] });
        assert_eq!(lab.post("/api/v1/tasks/settle", &odd).await.code(), "INVALID");
        lab.stop().await;
    }
}

/// A store in memory that says it has no tasks.
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
async fn a_store_without_tasks_says_that_it_has_none() {
    let memory = Leasehold::connect("memory:").await.unwrap();
    let leasehold = Leasehold::with_store(Arc::new(LocksOnly(memory.store()))).unwrap();
    let lab = Lab::over(leasehold, Access::Open).await;
    let none: Value = json!({});
    for reply in [
        lab.get(NOBODY).await,
        lab.get("/api/v1/tasks").await,
        lab.get("/api/v1/queues").await,
        lab.get("/api/v1/workers").await,
        lab.get("/api/v1/schedules").await,
        lab.post(ADD, &none).await,
        lab.post(ADD, &json!([none])).await,
        lab.post(LEASE, &none).await,
        lab.post("/api/v1/tasks/recover", &none).await,
    ] {
        assert_eq!((reply.status, reply.code()), (501, "NOT_SUPPORTED"), "{}", reply.body);
        assert!(reply.body["hint"].as_str().unwrap().contains("sqlite:"));
    }
    lab.stop().await;
}
