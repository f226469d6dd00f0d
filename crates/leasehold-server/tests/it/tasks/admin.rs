//! Changes by an operator.

use leasehold::model::Ttl;
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

async fn added(server: &TestServer) -> String {
    let reply = server.post("/api/v1/queues/q/tasks", &json!({ "payload": 1 })).await;
    reply.headers["location"].to_str().unwrap().to_owned()
}

async fn patch(server: &TestServer, path: &str, version: &str, body: Value) -> Reply {
    Reply::of(server.request(Method::PATCH, path).header("if-match", version).json(&body)).await
}

#[tokio::test]
async fn a_task_is_updated_only_at_the_expected_version() {
    for server in TestServer::each().await {
        let path = added(&server).await;
        let tag = server.get(&path).await.headers["etag"].to_str().unwrap().to_owned();
        let reply =
            patch(&server, &path, &tag, json!({ "payload": null, "priority": 7, "maxAttempts": 2 })).await;
        assert_eq!((reply.status, &reply.body["task"]["version"]), (200, &json!(2)), "{}", reply.body);
        assert_eq!(reply.headers["etag"], "\"2\"");
        assert_eq!(
            (&reply.body["task"]["payload"], &reply.body["task"]["priority"]),
            (&Value::Null, &json!(7))
        );
        let reply = patch(&server, &path, &tag, json!({ "priority": 8 })).await;
        assert_eq!((reply.status, reply.code()), (412, "VERSION_CONFLICT"));
        assert_eq!(reply.body["currentVersion"], 2);
        for nonsense in ["2", "*", "W/\"2\"", "\"x\""] {
            assert_eq!(
                patch(&server, &path, nonsense, json!({ "priority": 8 })).await.code(),
                "INVALID",
                "{nonsense}"
            );
        }
        assert_eq!(patch(&server, &path, "\"2\"", json!({})).await.code(), "INVALID");
        let bare = server.request(Method::PATCH, &path).json(&json!({ "priority": 8 }));
        assert_eq!(Reply::of(bare).await.code(), "INVALID");
        server.stop().await;
    }
}

#[tokio::test]
async fn tasks_are_canceled_retried_and_purged() {
    for server in TestServer::each().await {
        let path = added(&server).await;
        let reply = server.post(&format!("{path}/cancel"), &json!({ "reason": "no need" })).await;
        assert_eq!((reply.status, &reply.body["task"]["state"]), (200, &json!("aborted")));
        let reply = server.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!((reply.status, reply.code()), (409, "TASK_STATE"));
        let reply = Reply::of(server.request(Method::POST, &format!("{path}/retry"))).await;
        assert_eq!((reply.status, &reply.body["task"]["state"]), (200, &json!("pending")));
        let reply = Reply::of(server.request(Method::POST, &format!("{path}/cancel"))).await;
        assert_eq!(reply.status, 200);
        let reply = Reply::of(server.request(Method::POST, "/api/v1/tasks/recover")).await;
        assert_eq!((&reply.body["success"], &reply.body["returned"]), (&json!(true), &json!(0)));
        let purge = async |query: &str| {
            Reply::of(server.request(Method::DELETE, &format!("/api/v1/tasks?{query}"))).await
        };
        assert_eq!(purge("before=2020-01-01T00:00:00Z").await.body["purged"], 0);
        assert_eq!(purge("before=2100-01-01T00:00:00Z&state=failed").await.body["purged"], 0);
        let reply = purge("before=2100-01-01T00:00:00Z&state=aborted&queue=q").await;
        assert_eq!((&reply.body["purged"], &reply.body["more"]), (&json!(1), &json!(false)));
        assert_eq!(server.get(&path).await.code(), "UNKNOWN_TASK");
        for nonsense in ["", "before=yesterday", "before=2100-01-01T00:00:00Z&state=running"] {
            assert_eq!(purge(nonsense).await.code(), "INVALID", "{nonsense}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_paused_queue_leases_no_tasks() {
    for server in TestServer::each().await {
        added(&server).await;
        let reply = server.post("/api/v1/queues/q/pause", &json!({ "reason": "repair" })).await;
        assert_eq!((reply.status, &reply.body["paused"]), (200, &json!(true)));
        assert_eq!(server.get("/api/v1/queues").await.body["queues"][0]["pause"]["reason"], "repair");
        let lease = "/api/v1/queues/q/lease";
        assert_eq!(server.post(lease, &json!({})).await.body["tasks"], json!([]));
        let request = json!({ "waitSeconds": 30 });
        let (reply, resumed) = tokio::join!(server.post(lease, &request), async {
            Reply::of(server.request(Method::POST, "/api/v1/queues/q/resume")).await
        });
        assert_eq!(resumed.body["paused"], false);
        assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_retention_of_a_queue_can_be_set() {
    for server in TestServer::each().await {
        let path = "/api/v1/queues/q/retention";
        let put = async |body: Value| Reply::of(server.request(Method::PUT, path).json(&body)).await;
        let week =
            json!({ "succeededSeconds": 604_800.0, "failedSeconds": 604_800.0, "abortedSeconds": 604_800.0 });
        assert_eq!(server.get(path).await.body["retention"], week);
        let reply = put(json!({ "succeededSeconds": 3600, "failedSeconds": null })).await;
        let set = json!({ "succeededSeconds": 3600.0, "failedSeconds": null, "abortedSeconds": 604_800.0 });
        assert_eq!((reply.status, &reply.body["retention"]), (200, &set));
        assert_eq!(server.get(path).await.body["retention"], set);
        // Omitted fields keep their values.
        assert_eq!(put(json!({})).await.body["retention"], set);
        let keep = server.leasehold.tasks().unwrap().retention("q").await.unwrap();
        assert_eq!((keep.succeeded, keep.failed), (Some(Ttl::from_secs(3600)), None));
        for nonsense in
            [json!({ "failedSeconds": 0 }), json!({ "failedSeconds": "1d" }), json!({ "days": 3 })]
        {
            assert_eq!(put(nonsense.clone()).await.status, 400, "{nonsense}");
        }
        let reply = Reply::of(server.request(Method::DELETE, path)).await;
        assert_eq!((reply.status, &reply.body["retention"]), (200, &week));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_task_that_does_not_run_is_explained() {
    for server in TestServer::each().await {
        let acquired = server.post("/api/v1/locks/db/acquire", &json!({ "holder": "deploy" })).await;
        assert_eq!(acquired.status, 200, "{}", acquired.body);
        let reply = server.post("/api/v1/queues/q/tasks", &json!({ "payload": 1, "lock": "db" })).await;
        let path = reply.headers["location"].to_str().unwrap().to_owned();
        server.post("/api/v1/queues/q/pause", &json!({ "reason": "repair" })).await;
        let why = server.get(&format!("{path}/why")).await;
        assert_eq!((why.status, &why.body["state"]), (200, &json!("pending")), "{}", why.body);
        let reasons = why.body["reasons"].as_array().unwrap();
        let codes: Vec<_> = reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect();
        assert_eq!(codes, ["queue_paused", "behind_lock", "no_worker"], "{}", why.body);
        assert_eq!((&reasons[1]["lock"], &reasons[1]["holder"]), (&json!("db"), &json!("deploy")));
        assert!(reasons[0]["text"].as_str().unwrap().contains("(repair)"), "{}", why.body);
        let unknown = server.get("/api/v1/tasks/00000000-0000-0000-0000-000000000000/why").await;
        assert_eq!((unknown.status, unknown.code()), (404, "UNKNOWN_TASK"));
        server.stop().await;
    }
}
