//! Heartbeats and results of attempts.

use serde_json::{Value, json};

use crate::test_server::TestServer;

const WORKER: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Enqueues and leases `count` tasks.
async fn leased(server: &TestServer, count: u32) -> Vec<Value> {
    let new: Vec<Value> = (0..count).map(|n| json!({ "payload": n })).collect();
    server.post("/api/v1/queues/q/tasks", &json!(new)).await;
    let request = json!({ "worker": { "id": WORKER }, "max": count });
    let reply = server.post("/api/v1/queues/q/lease", &request).await;
    reply.body["tasks"].as_array().unwrap().clone()
}

fn path(task: &Value, what: &str) -> String {
    format!("/api/v1/tasks/{}/{what}", task["id"].as_str().unwrap())
}

#[tokio::test]
async fn an_attempt_ends_as_reported() {
    for server in TestServer::each().await {
        let tasks = leased(&server, 6).await;
        let bodies = [
            ("complete", json!({ "result": { "ok": [1, null] } }), "succeeded"),
            ("fail", json!({ "error": "no", "retryInSeconds": 60 }), "scheduled"),
            ("fail", json!({ "error": "never", "final": true }), "failed"),
            ("release", json!({}), "pending"),
            ("release", json!({ "retryInSeconds": 60 }), "scheduled"),
            ("abort", json!({}), "aborted"),
        ];
        for (task, (what, mut body, state)) in tasks.iter().zip(bodies) {
            body["token"] = task["token"].clone();
            for _ in 0..2 {
                let reply = server.post(&path(task, what), &body).await;
                assert_eq!(
                    (reply.status, &reply.body["state"]),
                    (200, &json!(state)),
                    "{what} {}",
                    reply.body
                );
            }
        }
        let done = server.get(&path(&tasks[0], "")[..path(&tasks[0], "").len() - 1]).await;
        assert_eq!(done.body["result"], json!({ "ok": [1, null] }));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_heartbeat_requires_only_the_token_and_returns_a_cancellation() {
    for server in TestServer::each().await {
        let task = leased(&server, 1).await.remove(0);
        let beat = json!({ "token": task["token"], "progress": { "done": 1, "of": 4, "note": "x" } });
        let reply = server.post(&path(&task, "heartbeat"), &beat).await;
        assert_eq!((reply.status, &reply.body), (200, &json!({ "success": true })));
        let seen = server.get(&format!("/api/v1/tasks/{}", task["id"].as_str().unwrap())).await;
        assert_eq!(seen.body["progress"], json!({ "done": 1, "of": 4, "note": "x" }));
        assert_eq!(server.get("/api/v1/workers").await.body["workers"][0]["id"], WORKER);
        let asked = server.post(&path(&task, "cancel"), &json!({ "reason": "enough" })).await;
        assert_eq!(asked.body["task"]["state"], "running");
        let reply = server.post(&path(&task, "heartbeat"), &json!({ "token": task["token"] })).await;
        assert_eq!(reply.body["cancel"]["reason"], "enough");
        let old = json!({ "token": task["token"].as_u64().unwrap() - 1 });
        for what in ["heartbeat", "complete", "fail", "release", "abort"] {
            let reply = server.post(&path(&task, what), &old).await;
            assert_eq!((reply.status, reply.code()), (409, "LEASE_LOST"), "{what}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn one_request_is_enough_for_all_leases_of_a_worker() {
    for server in TestServer::each().await {
        let tasks = leased(&server, 3).await;
        let mut held: Vec<Value> =
            tasks.iter().map(|task| json!({ "id": task["id"], "token": task["token"] })).collect();
        held[1]["token"] = json!(1);
        let worker = json!({ "id": WORKER, "host": "h", "queues": ["q"], "slots": 4, "draining": true });
        let beats = json!({ "worker": worker, "ttlSeconds": 10, "tasks": held });
        let reply = server.post("/api/v1/tasks/heartbeat", &beats).await;
        let kept: Vec<_> =
            reply.body["tasks"].as_array().unwrap().iter().map(|task| task["kept"] == true).collect();
        assert_eq!(kept, [true, false, true], "{}", reply.body);
        let listed = server.get("/api/v1/workers").await;
        assert_eq!(
            (&listed.body["workers"][0]["state"], &listed.body["workers"][0]["busy"]),
            (&json!("draining"), &json!(3))
        );
        let outcomes = [
            json!({ "outcome": "complete", "result": 1 }),
            json!({ "outcome": "complete" }),
            json!({ "outcome": "fail", "error": "e", "final": true }),
        ];
        let ended: Vec<Value> = held
            .iter()
            .zip(outcomes)
            .map(|(held, mut outcome)| {
                outcome["id"] = held["id"].clone();
                outcome["token"] = held["token"].clone();
                outcome
            })
            .collect();
        let reply = server.post("/api/v1/tasks/settle", &json!({ "tasks": ended })).await;
        let states: Vec<_> =
            reply.body["tasks"].as_array().unwrap().iter().map(|task| task["state"].clone()).collect();
        assert_eq!(states, [json!("succeeded"), Value::Null, json!("failed")], "{}", reply.body);
        let twice = json!({ "tasks": [ended[1], ended[1]] });
        assert_eq!(server.post("/api/v1/tasks/settle", &twice).await.code(), "INVALID");
        server.stop().await;
    }
}
