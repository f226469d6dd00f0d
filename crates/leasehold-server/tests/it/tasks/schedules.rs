//! Schedules over HTTP, and their ticks while only a server runs.

use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

const NIGHTLY: &str = "/api/v1/schedules/nightly%2Freport";

async fn put(server: &TestServer, path: &str, body: &Value) -> Reply {
    Reply::of(server.request(Method::PUT, path).json(body)).await
}

#[tokio::test]
async fn a_schedule_is_set_shown_paused_and_removed() {
    for server in TestServer::each().await {
        let body = json!({ "cron": "0 3 * * *", "zone": "Europe/Berlin", "queue": "reports", "payload": { "a": 1 }, "missed": "last", "maxAttempts": 2 });
        let reply = put(&server, NIGHTLY, &body).await;
        assert_eq!(
            (reply.status, &reply.body["schedule"]["name"]),
            (200, &json!("nightly/report")),
            "{}",
            reply.body
        );
        assert_eq!(reply.body["schedule"]["next"].as_array().unwrap().len(), 5);
        let shown = server.get(&format!("{NIGHTLY}?next=2")).await;
        assert_eq!((&shown.body["cron"], &shown.body["missed"]), (&json!("0 3 * * *"), &json!("last")));
        assert_eq!(shown.body["next"].as_array().unwrap().len(), 2);
        let paused = Reply::of(server.request(Method::POST, &format!("{NIGHTLY}/pause"))).await;
        assert_eq!(
            (&paused.body["schedule"]["paused"], &paused.body["schedule"]["next"]),
            (&json!(true), &json!([]))
        );
        let resumed = Reply::of(server.request(Method::POST, &format!("{NIGHTLY}/resume"))).await;
        assert_eq!(resumed.body["schedule"]["paused"], false);
        assert_eq!(server.get("/api/v1/schedules").await.body["schedules"].as_array().unwrap().len(), 1);
        let removed = Reply::of(server.request(Method::DELETE, NIGHTLY)).await;
        assert_eq!((removed.status, &removed.body), (200, &json!({ "success": true })));
        for reply in [server.get(NIGHTLY).await, Reply::of(server.request(Method::DELETE, NIGHTLY)).await] {
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_SCHEDULE"));
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn ticks_become_tasks_while_only_a_server_runs() {
    let server = TestServer::open().await;
    put(&server, "/api/v1/schedules/often", &json!({ "cron": "* * * * * *", "queue": "ticks" })).await;
    let reply = server.post("/api/v1/queues/ticks/lease", &json!({ "waitSeconds": 30 })).await;
    assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1, "{}", reply.body);
}

#[tokio::test]
async fn an_invalid_schedule_is_rejected() {
    let server = TestServer::open().await;
    let good = json!({ "cron": "0 3 * * *", "queue": "q" });
    for (field, value) in [
        ("cron", json!("61 * * * *")),
        ("cron", json!("")),
        ("zone", json!("Mars/Olympus")),
        ("queue", json!("")),
        ("missed", json!("some")),
        ("priority", json!(5000)),
        ("maxAttempts", json!(0)),
        ("backoffSeconds", json!(-1)),
        ("crom", json!("0 3 * * *")),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let reply = put(&server, NIGHTLY, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    assert_eq!(put(&server, NIGHTLY, &json!({ "queue": "q" })).await.code(), "INVALID");
    assert_eq!(put(&server, NIGHTLY, &good).await.status, 200);
    for query in ["next=1001", "next=x", "nxt=1"] {
        assert_eq!(server.get(&format!("{NIGHTLY}?{query}")).await.code(), "INVALID", "{query}");
    }
}
