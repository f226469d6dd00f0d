//! Schedules over HTTP, and their ticks while only a server runs.

use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

const NIGHTLY: &str = "/api/v1/schedules/nightly%2Freport";

async fn put(lab: &Lab, path: &str, body: &Value) -> Reply {
    Reply::of(lab.request(Method::PUT, path).json(body)).await
}

#[tokio::test]
async fn a_schedule_is_set_shown_paused_and_removed() {
    for lab in Lab::each().await {
        let body = json!({ "cron": "0 3 * * *", "zone": "Europe/Berlin", "queue": "reports", "payload": { "a": 1 }, "missed": "last", "maxAttempts": 2 });
        let reply = put(&lab, NIGHTLY, &body).await;
        assert_eq!(
            (reply.status, &reply.body["schedule"]["name"]),
            (200, &json!("nightly/report")),
            "{}",
            reply.body
        );
        assert_eq!(reply.body["schedule"]["next"].as_array().unwrap().len(), 5);
        let shown = lab.get(&format!("{NIGHTLY}?next=2")).await;
        assert_eq!((&shown.body["cron"], &shown.body["missed"]), (&json!("0 3 * * *"), &json!("last")));
        assert_eq!(shown.body["next"].as_array().unwrap().len(), 2);
        let paused = Reply::of(lab.request(Method::POST, &format!("{NIGHTLY}/pause"))).await;
        assert_eq!(
            (&paused.body["schedule"]["paused"], &paused.body["schedule"]["next"]),
            (&json!(true), &json!([]))
        );
        let resumed = Reply::of(lab.request(Method::POST, &format!("{NIGHTLY}/resume"))).await;
        assert_eq!(resumed.body["schedule"]["paused"], false);
        assert_eq!(lab.get("/api/v1/schedules").await.body["schedules"].as_array().unwrap().len(), 1);
        let removed = Reply::of(lab.request(Method::DELETE, NIGHTLY)).await;
        assert_eq!((removed.status, &removed.body), (200, &json!({ "success": true })));
        for reply in [lab.get(NIGHTLY).await, Reply::of(lab.request(Method::DELETE, NIGHTLY)).await] {
            assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_SCHEDULE"));
        }
        lab.stop().await;
    }
}

#[tokio::test]
async fn ticks_become_tasks_while_only_a_server_runs() {
    let lab = Lab::open().await;
    put(&lab, "/api/v1/schedules/often", &json!({ "cron": "* * * * * *", "queue": "ticks" })).await;
    let reply = lab.post("/api/v1/queues/ticks/lease", &json!({ "waitSeconds": 30 })).await;
    assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1, "{}", reply.body);
}

#[tokio::test]
async fn a_schedule_that_makes_no_sense_is_refused() {
    let lab = Lab::open().await;
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
        let reply = put(&lab, NIGHTLY, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    assert_eq!(put(&lab, NIGHTLY, &json!({ "queue": "q" })).await.code(), "INVALID");
    assert_eq!(put(&lab, NIGHTLY, &good).await.status, 200);
    for query in ["next=1001", "next=x", "nxt=1"] {
        assert_eq!(lab.get(&format!("{NIGHTLY}?{query}")).await.code(), "INVALID", "{query}");
    }
}
