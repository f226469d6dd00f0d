//! Enqueuing and querying tasks.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::client::TaskView;
use leasehold::store::memory::MemoryStore;
use leasehold::testing::FaultyStore;
use leasehold_server::{Access, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn a_task_is_added_and_returned_as_in_the_cli() {
    for server in TestServer::each().await {
        let new = json!({ "payload": { "to": "ada", "n": 1.10 }, "key": "welcome", "priority": 5, "lock": "mail/ada",
            "maxAttempts": 3, "backoffSeconds": 0.5 });
        let reply = server.post("/api/v1/queues/mail%2Fout/tasks", &new).await;
        assert_eq!(reply.status, 201, "{}", reply.body);
        assert_eq!((&reply.body["success"], &reply.body["duplicate"]), (&json!(true), &json!(false)));
        let task = &reply.body["task"];
        assert_eq!(
            (&task["queue"], &task["state"], &task["version"]),
            (&json!("mail/out"), &json!("pending"), &json!(1))
        );
        assert_eq!((&task["maxAttempts"], &task["backoffSeconds"]), (&json!(3), &json!(0.5)));
        let place = reply.headers["location"].to_str().unwrap().to_owned();
        assert_eq!(place, format!("/api/v1/tasks/{}", task["id"].as_str().unwrap()));
        let found = server.get(&place).await;
        assert_eq!((found.status, &found.body), (200, task));
        assert_eq!(found.headers["etag"], "\"1\"");
        let id = task["id"].as_str().unwrap().parse().unwrap();
        let view = TaskView::from(&server.leasehold.tasks().unwrap().get(id).await.unwrap());
        assert_eq!(serde_json::to_value(view).unwrap(), found.body);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_key_adds_one_task_and_refuses_another_payload() {
    let server = TestServer::open().await;
    let add = async |key: &str, payload: Value| {
        let request =
            server.request(Method::POST, "/api/v1/queues/mail/tasks").header("idempotency-key", key);
        Reply::of(request.json(&json!({ "payload": payload }))).await
    };
    let first = add("\"k 1\"", json!(1)).await;
    assert_eq!((first.status, &first.body["task"]["key"]), (201, &json!("k 1")));
    let again = add("k 1", json!(1)).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    assert_eq!(again.body["task"]["id"], first.body["task"]["id"]);
    let other = add("k 1", json!(2)).await;
    assert_eq!((other.status, other.code()), (422, "KEY_REUSED"));
    let both = server.request(Method::POST, "/api/v1/queues/mail/tasks").header("idempotency-key", "a");
    assert_eq!(Reply::of(both.json(&json!({ "key": "b" }))).await.code(), "INVALID");
    let many = server.request(Method::POST, "/api/v1/queues/mail/tasks").header("idempotency-key", "a");
    assert_eq!(Reply::of(many.json(&json!([{}]))).await.code(), "INVALID");
    let many = json!([{ "key": "k 1", "payload": 1 }, { "key": "k 1", "payload": 2 }, { "payload": null }]);
    let reply = server.post("/api/v1/queues/mail/tasks", &many).await;
    assert_eq!((reply.status, &reply.body["added"]), (201, &json!(1)), "{}", reply.body);
    let tasks = &reply.body["tasks"];
    assert_eq!((&tasks[0]["duplicate"], &tasks[1]["code"]), (&json!(true), &json!("KEY_REUSED")));
    assert!(tasks[2]["id"].is_string());
    let reply = server.post("/api/v1/queues/mail/tasks", &json!([{ "key": "k 1", "payload": 1 }])).await;
    assert_eq!(reply.status, 200);
}

/// The store fails between the enqueue and the read for the response.
#[tokio::test]
async fn a_task_that_was_added_is_never_reported_as_an_error() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()));
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).without_maintenance().build();
    let server = TestServer::serve(server, leasehold).await;
    store.fail_read_after(0);
    let reply = server.post("/api/v1/queues/mail/tasks", &json!({ "payload": 1 })).await;
    assert_eq!((reply.status, &reply.body["duplicate"]), (201, &json!(false)), "{}", reply.body);
    let task = &reply.body["task"];
    assert_eq!((&task["state"], &task["payload"]), (&json!("pending"), &json!(1)), "{task}");
    let listed = server.get("/api/v1/tasks?queue=mail").await.body;
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["tasks"][0]["id"], task["id"]);
}

#[tokio::test]
async fn tasks_are_listed_a_page_at_a_time_and_counted() {
    for server in TestServer::each().await {
        let many: Vec<_> = (0..5).map(|n| json!({ "payload": n })).collect();
        assert_eq!(server.post("/api/v1/queues/a/tasks", &json!(many)).await.body["added"], 5);
        let later = json!({ "delaySeconds": 3600, "lock": "l" });
        assert_eq!(server.post("/api/v1/queues/b/tasks", &later).await.body["task"]["state"], "scheduled");
        let (mut seen, mut path) = (Vec::new(), "/api/v1/tasks?queue=a&state=pending&limit=2".to_owned());
        loop {
            let page = server.get(&path).await;
            assert_eq!(page.status, 200, "{}", page.body);
            let tasks = page.body["tasks"].as_array().unwrap();
            assert!(tasks.len() <= 2);
            seen.extend(tasks.iter().map(|task| task["payload"].as_u64().unwrap()));
            let Some(cursor) = page.body["nextCursor"].as_str() else { break };
            path = format!("/api/v1/tasks?queue=a&state=pending&limit=2&cursor={cursor}");
        }
        assert_eq!(seen, [4, 3, 2, 1, 0]);
        assert_eq!(server.get("/api/v1/tasks?lock=l").await.body["tasks"].as_array().unwrap().len(), 1);
        let queues = server.get("/api/v1/queues").await;
        assert_eq!(queues.body["queues"][0]["queue"], "a");
        assert_eq!(queues.body["queues"][0]["counts"]["pending"], 5);
        assert_eq!(queues.body["queues"][1]["counts"]["scheduled"], 1);
        server.stop().await;
    }
}
