//! Stepping in by hand.

use leasehold::model::Ttl;
use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

async fn added(lab: &Lab) -> String {
    let reply = lab.post("/api/v1/queues/q/tasks", &json!({ "payload": 1 })).await;
    reply.headers["location"].to_str().unwrap().to_owned()
}

async fn patch(lab: &Lab, path: &str, version: &str, body: Value) -> Reply {
    Reply::of(lab.request(Method::PATCH, path).header("if-match", version).json(&body)).await
}

#[tokio::test]
async fn a_task_is_changed_only_at_the_version_that_was_seen() {
    for lab in Lab::each().await {
        let path = added(&lab).await;
        let tag = lab.get(&path).await.headers["etag"].to_str().unwrap().to_owned();
        let reply =
            patch(&lab, &path, &tag, json!({ "payload": null, "priority": 7, "maxAttempts": 2 })).await;
        assert_eq!((reply.status, &reply.body["task"]["version"]), (200, &json!(2)), "{}", reply.body);
        assert_eq!(reply.headers["etag"], "\"2\"");
        assert_eq!(
            (&reply.body["task"]["payload"], &reply.body["task"]["priority"]),
            (&Value::Null, &json!(7))
        );
        let reply = patch(&lab, &path, &tag, json!({ "priority": 8 })).await;
        assert_eq!((reply.status, reply.code()), (412, "VERSION_CONFLICT"));
        assert_eq!(reply.body["currentVersion"], 2);
        for nonsense in ["2", "*", "W/\"2\"", "\"x\""] {
            assert_eq!(
                patch(&lab, &path, nonsense, json!({ "priority": 8 })).await.code(),
                "INVALID",
                "{nonsense}"
            );
        }
        assert_eq!(patch(&lab, &path, "\"2\"", json!({})).await.code(), "INVALID");
        let bare = lab.request(Method::PATCH, &path).json(&json!({ "priority": 8 }));
        assert_eq!(Reply::of(bare).await.code(), "INVALID");
        lab.stop().await;
    }
}

#[tokio::test]
async fn tasks_are_stopped_and_tried_again_and_forgotten() {
    for lab in Lab::each().await {
        let path = added(&lab).await;
        let reply = lab.post(&format!("{path}/cancel"), &json!({ "reason": "no need" })).await;
        assert_eq!((reply.status, &reply.body["task"]["state"]), (200, &json!("aborted")));
        let reply = lab.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!((reply.status, reply.code()), (409, "TASK_STATE"));
        let reply = Reply::of(lab.request(Method::POST, &format!("{path}/retry"))).await;
        assert_eq!((reply.status, &reply.body["task"]["state"]), (200, &json!("pending")));
        let reply = Reply::of(lab.request(Method::POST, &format!("{path}/cancel"))).await;
        assert_eq!(reply.status, 200);
        let reply = Reply::of(lab.request(Method::POST, "/api/v1/tasks/recover")).await;
        assert_eq!((&reply.body["success"], &reply.body["returned"]), (&json!(true), &json!(0)));
        let purge = async |query: &str| {
            Reply::of(lab.request(Method::DELETE, &format!("/api/v1/tasks?{query}"))).await
        };
        assert_eq!(purge("before=2020-01-01T00:00:00Z").await.body["purged"], 0);
        assert_eq!(purge("before=2100-01-01T00:00:00Z&state=failed").await.body["purged"], 0);
        let reply = purge("before=2100-01-01T00:00:00Z&state=aborted&queue=q").await;
        assert_eq!((&reply.body["purged"], &reply.body["more"]), (&json!(1), &json!(false)));
        assert_eq!(lab.get(&path).await.code(), "UNKNOWN_TASK");
        for nonsense in ["", "before=yesterday", "before=2100-01-01T00:00:00Z&state=running"] {
            assert_eq!(purge(nonsense).await.code(), "INVALID", "{nonsense}");
        }
        lab.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_taken_from_a_queue_that_is_paused() {
    for lab in Lab::each().await {
        added(&lab).await;
        let reply = lab.post("/api/v1/queues/q/pause", &json!({ "reason": "repair" })).await;
        assert_eq!((reply.status, &reply.body["paused"]), (200, &json!(true)));
        assert_eq!(lab.get("/api/v1/queues").await.body["queues"][0]["pause"]["reason"], "repair");
        let lease = "/api/v1/queues/q/lease";
        assert_eq!(lab.post(lease, &json!({})).await.body["tasks"], json!([]));
        let ask = json!({ "waitSeconds": 30 });
        let (reply, resumed) = tokio::join!(lab.post(lease, &ask), async {
            Reply::of(lab.request(Method::POST, "/api/v1/queues/q/resume")).await
        });
        assert_eq!(resumed.body["paused"], false);
        assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1);
        lab.stop().await;
    }
}

#[tokio::test]
async fn how_long_finished_tasks_are_kept_can_be_set_for_a_queue() {
    for lab in Lab::each().await {
        let path = "/api/v1/queues/q/retention";
        let put = async |body: Value| Reply::of(lab.request(Method::PUT, path).json(&body)).await;
        let week =
            json!({ "succeededSeconds": 604_800.0, "failedSeconds": 604_800.0, "abortedSeconds": 604_800.0 });
        assert_eq!(lab.get(path).await.body["retention"], week);
        let reply = put(json!({ "succeededSeconds": 3600, "failedSeconds": null })).await;
        let set = json!({ "succeededSeconds": 3600.0, "failedSeconds": null, "abortedSeconds": 604_800.0 });
        assert_eq!((reply.status, &reply.body["retention"]), (200, &set));
        assert_eq!(lab.get(path).await.body["retention"], set);
        // What is left out stays as it is.
        assert_eq!(put(json!({})).await.body["retention"], set);
        let keep = lab.leasehold.tasks().unwrap().retention(&"q".parse().unwrap()).await.unwrap();
        assert_eq!((keep.succeeded, keep.failed), (Some(Ttl::from_secs(3600)), None));
        for nonsense in
            [json!({ "failedSeconds": 0 }), json!({ "failedSeconds": "1d" }), json!({ "days": 3 })]
        {
            assert_eq!(put(nonsense.clone()).await.status, 400, "{nonsense}");
        }
        let reply = Reply::of(lab.request(Method::DELETE, path)).await;
        assert_eq!((reply.status, &reply.body["retention"]), (200, &week));
        lab.stop().await;
    }
}
