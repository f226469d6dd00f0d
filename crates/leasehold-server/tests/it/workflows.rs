//! Workflows and executions over HTTP.

use leasehold::Leasehold;
use leasehold_server::access::TokenDesk;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

const SETTINGS: &str = r#"
[workflows.deploy]
runner = "external"
description = "Brings it to production"
ttl = "20s"
[workflows."a/b"]
runner = "external"
on_locked = "queue"
queue_limit = 1
[workflows.own]
command = ["true"]
[workflows.short]
runner = "external"
max_runtime = "1ms"
"#;

const START: &str = "/api/v1/workflows/deploy/executions";

async fn lab() -> Lab {
    Lab::configured(Leasehold::connect("memory:").await.unwrap(), Access::Open, SETTINGS).await
}

async fn start(lab: &Lab, path: &str, key: &str, body: &Value) -> Reply {
    Reply::of(lab.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

async fn lease(lab: &Lab, workflow: &str) -> Value {
    let reply = lab.post(&format!("/api/v1/workflows/{workflow}/lease"), &json!({ "ttlSeconds": 10 })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["execution"].clone()
}

async fn complete(lab: &Lab, execution: &Value, status: &str) -> Reply {
    let path = format!("/api/v1/executions/{}/complete", execution["id"].as_str().unwrap());
    lab.post(&path, &json!({ "token": execution["token"], "state": status })).await
}

#[tokio::test]
async fn a_start_is_created_and_then_known_by_its_key() {
    let lab = lab().await;
    let first = start(&lab, START, "k", &json!({ "input": { "a": 1 } })).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let place = first.headers["location"].to_str().unwrap();
    let execution = lab.get(place).await;
    assert_eq!(execution.body["input"], json!({ "a": 1 }));
    assert_eq!((&execution.body["state"], &execution.body["key"]), (&json!("pending"), &json!("k")));
    let again = start(&lab, START, "\"k\"", &json!({ "input": { "a": 1 } })).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    let other = start(&lab, START, "k", &json!({ "input": { "a": 2 } })).await;
    assert_eq!((other.status, other.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(other.body["existingExecutionId"], first.body["executionId"]);
    let locked = start(&lab, START, "l", &json!({})).await;
    assert_eq!((locked.status, locked.code()), (409, "WORKFLOW_LOCKED"));
    let skipped = start(&lab, START, "l", &json!({ "onLocked": "skip" })).await;
    assert_eq!((skipped.status, &skipped.body["state"]), (200, &json!("skipped")));
    let queued = start(&lab, START, "l", &json!({ "onLocked": "queue" })).await;
    assert_eq!((queued.status, &queued.body["state"]), (202, &json!("blocked")));
    lab.stop().await;
}

#[tokio::test]
async fn no_more_wait_than_may() {
    let lab = lab().await;
    let path = "/api/v1/workflows/a%2Fb/executions";
    let statuses = [start(&lab, path, "1", &json!({})).await, start(&lab, path, "2", &json!({})).await];
    assert_eq!(statuses.map(|reply| reply.status), [201, 202]);
    let full = start(&lab, path, "3", &json!({})).await;
    assert_eq!((full.status, full.code()), (409, "WORKFLOW_LOCKED"));
    let lock = lab.get("/api/v1/workflows/a%2Fb/lock").await;
    assert_eq!((&lock.body["isLocked"], &lock.body["queued"]), (&json!(true), &json!(1)));
    lab.stop().await;
}

#[tokio::test]
async fn an_execution_is_run_elsewhere_by_its_token() {
    let lab = lab().await;
    assert_eq!(lease(&lab, "deploy").await, Value::Null);
    start(&lab, START, "k", &json!({ "input": 5 })).await;
    let execution = lease(&lab, "deploy").await;
    assert_eq!((&execution["state"], &execution["input"]), (&json!("running"), &json!(5)));
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    let beat = json!({ "token": execution["token"], "progress": { "done": 1, "of": 2 } });
    let heard = lab.post(&format!("{path}/heartbeat"), &beat).await;
    assert_eq!(heard.body, json!({ "success": true, "stopRequested": false }));
    assert_eq!(lab.get(&path).await.body["progress"]["done"], 1);
    let lock = lab.get("/api/v1/workflows/deploy/lock").await.body;
    assert_eq!((&lock["isLocked"], &lock["executionId"]), (&json!(true), &execution["id"]));
    let stale = lab.post(&format!("{path}/heartbeat"), &json!({ "token": 1 })).await;
    assert_eq!((stale.status, stale.code()), (409, "STALE_TOKEN"));
    let zombie = lab.post(&format!("{path}/complete"), &json!({ "token": 1, "status": "succeeded" })).await;
    assert_eq!((zombie.status, zombie.code()), (409, "STALE_TOKEN"));
    let done = json!({ "token": execution["token"], "status": "succeeded", "result": { "ok": true } });
    let done = lab.post(&format!("{path}/complete"), &done).await;
    assert_eq!(done.body["result"], json!({ "ok": true }), "{}", done.body);
    assert_eq!(lab.get("/api/v1/workflows/deploy/lock").await.body["isLocked"], false);
    assert_eq!(lab.post(&format!("{path}/abort"), &json!({})).await.code(), "EXECUTION_FINISHED");
    lab.stop().await;
}

#[tokio::test]
async fn what_has_failed_is_tried_again_by_the_same_key() {
    let lab = lab().await;
    let first = start(&lab, START, "k", &json!({})).await;
    let failed = complete(&lab, &lease(&lab, "deploy").await, "failed").await;
    assert_eq!((failed.status, &failed.body["state"]), (200, &json!("failed")));
    let second = start(&lab, START, "k", &json!({})).await;
    assert_eq!((second.status, &second.body["attempt"]), (201, &json!(2)));
    assert_eq!(second.body["retryOf"], first.body["executionId"]);
    let both = lab.get("/api/v1/executions?key=k").await.body;
    let all = both["executions"].as_array().unwrap();
    let ids: Vec<_> = all.iter().map(|execution| &execution["id"]).collect();
    assert_eq!(ids, [&second.body["executionId"], &first.body["executionId"]], "the key leads to both");
    let shown = lab.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await;
    assert_eq!(shown.body["key"], "k", "the failed one keeps it");
    lab.stop().await;
}

#[tokio::test]
async fn whoever_waits_for_an_execution_gets_it_when_it_comes() {
    let lab = lab().await;
    let body = json!({ "waitSeconds": 30 });
    let waiting = lab.post("/api/v1/workflows/deploy/lease", &body);
    let (taken, started) = tokio::join!(waiting, async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        start(&lab, START, "k", &json!({})).await
    });
    assert_eq!(taken.body["execution"]["id"], started.body["executionId"]);
    lab.stop().await;
}

#[tokio::test]
async fn an_execution_is_stopped_and_says_so() {
    let lab = lab().await;
    start(&lab, START, "k", &json!({})).await;
    let execution = lease(&lab, "deploy").await;
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    let asked = lab.post(&format!("{path}/abort"), &json!({ "reason": "no more" })).await;
    assert_eq!((asked.status, &asked.body["state"]), (202, &json!("running")));
    let heard = lab.post(&format!("{path}/heartbeat"), &json!({ "token": execution["token"] })).await;
    assert_eq!(heard.body["stopRequested"], true);
    assert_eq!(lab.get("/api/v1/workflows/deploy/lock").await.body["isLocked"], true, "until it is dead");
    assert_eq!(complete(&lab, &execution, "aborted").await.body["state"], "aborted");
    lab.stop().await;
}

#[tokio::test]
async fn what_runs_for_too_long_is_over() {
    let lab = lab().await;
    start(&lab, "/api/v1/workflows/short/executions", "k", &json!({})).await;
    let execution = lease(&lab, "short").await;
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let late = lab.post(&format!("{path}/heartbeat"), &json!({ "token": execution["token"] })).await;
    assert_eq!((late.status, late.code()), (409, "EXECUTION_FINISHED"));
    let ended = lab.get(&path).await.body;
    assert_eq!(ended["state"], "aborted");
    assert!(ended["reason"].as_str().unwrap().starts_with("timeout"), "{ended}");
    lab.stop().await;
}

#[tokio::test]
async fn only_an_admin_takes_a_lock_away() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut lab = Lab::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let desk = TokenDesk::new(leasehold);
    let [reader, worker, operator, admin] = [Role::Reader, Role::Worker, Role::Operator, Role::Admin];
    let mut tokens = Vec::new();
    for role in [reader, worker, operator, admin] {
        tokens.push(desk.create(&role.to_string(), role, None).await.unwrap().text);
    }
    lab.use_token(&tokens[0]);
    assert_eq!(start(&lab, START, "k", &json!({})).await.code(), "FORBIDDEN");
    assert_eq!(lab.get("/api/v1/workflows").await.status, 200);
    lab.use_token(&tokens[1]);
    let started = start(&lab, START, "k", &json!({})).await;
    let path = format!("/api/v1/executions/{}/abort", started.body["executionId"].as_str().unwrap());
    assert_eq!(lab.post(&path, &json!({})).await.code(), "FORBIDDEN");
    let unlock = async |lab: &Lab, body: &Value| {
        Reply::of(lab.request(Method::DELETE, "/api/v1/workflows/deploy/lock").json(body)).await
    };
    lab.use_token(&tokens[2]);
    assert_eq!(unlock(&lab, &json!({ "reason": "stuck" })).await.code(), "FORBIDDEN");
    lab.use_token(&tokens[3]);
    assert_eq!(unlock(&lab, &json!({})).await.code(), "INVALID");
    let unlocked = unlock(&lab, &json!({ "reason": "stuck" })).await;
    assert_eq!((unlocked.status, &unlocked.body["isLocked"]), (200, &json!(false)), "{}", unlocked.body);
    lab.stop().await;
}

#[tokio::test]
async fn lists_show_what_there_is() {
    let lab = lab().await;
    start(&lab, START, "k", &json!({})).await;
    let workflows = lab.get("/api/v1/workflows").await.body;
    let deploy = &workflows["workflows"][1];
    assert_eq!((&deploy["name"], &deploy["runner"]), (&json!("deploy"), &json!("external")));
    assert_eq!(
        (&deploy["description"], &deploy["executions"]["pending"]),
        (&json!("Brings it to production"), &json!(1))
    );
    for query in [
        "",
        "?workflow=deploy",
        "?status=pending&limit=5",
        "?state=pending",
        "?key=k",
        "?key=k&state=pending",
    ] {
        let page = lab.get(&format!("/api/v1/executions{query}")).await.body;
        assert_eq!(page["executions"].as_array().unwrap().len(), 1, "{query}");
    }
    for query in ["?status=failed", "?state=queued", "?key=l", "?key=k&state=failed", "?key=k&workflow=other"]
    {
        let none = lab.get(&format!("/api/v1/executions{query}")).await.body;
        assert_eq!(none["executions"], json!([]), "{query}");
    }
    for query in ["?status=lost", "?state=lost", "?colour=red", "?limit=many"] {
        assert_eq!(lab.get(&format!("/api/v1/executions{query}")).await.code(), "INVALID", "{query}");
    }
    lab.stop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let lab = lab().await;
    let unknown = start(&lab, "/api/v1/workflows/other/executions", "k", &json!({})).await;
    assert_eq!((unknown.status, unknown.code()), (404, "UNKNOWN_WORKFLOW"));
    for body in [json!({ "onLocked": "explode" }), json!({ "inputs": 1 }), json!([])] {
        assert_eq!(start(&lab, START, "k", &body).await.code(), "INVALID", "{body}");
    }
    for key in ["\"", "\"a\"b", &"x".repeat(300)] {
        assert_eq!(start(&lab, START, key, &json!({})).await.code(), "INVALID", "{key}");
    }
    for body in [json!({ "ttlSeconds": -1 }), json!({ "ttlSeconds": 1e300 }), json!({ "waitSeconds": "x" })] {
        let reply = lab.post("/api/v1/workflows/deploy/lease", &body).await;
        assert_eq!(reply.code(), "INVALID", "{body}");
    }
    let own = lab.post("/api/v1/workflows/own/lease", &json!({})).await;
    assert_eq!((own.status, own.code()), (400, "INVALID"));
    assert_eq!(lab.get("/api/v1/executions/exec_1").await.code(), "INVALID");
    let gone = lab.get("/api/v1/executions/exec_01890a5d-ac96-774b-bcce-b302099a8057").await;
    assert_eq!((gone.status, gone.code()), (404, "UNKNOWN_EXECUTION"));
    lab.stop().await;
}

#[tokio::test]
async fn a_server_that_is_stopping_starts_nothing_and_sends_those_away_who_wait() {
    let lab = lab().await;
    let body = json!({ "waitSeconds": 30 });
    let waiting = lab.post("/api/v1/workflows/deploy/lease", &body);
    let (sent_away, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        lab.server.drain();
    });
    assert_eq!((sent_away.status, sent_away.code()), (503, "DRAINING"));
    let refused = start(&lab, START, "k", &json!({})).await;
    assert_eq!((refused.status, refused.code()), (503, "DRAINING"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(lab.get("/readyz").await.status, 503);
    assert_eq!(lab.get("/healthz").await.status, 200);
    assert_eq!(lab.get("/api/v1/executions").await.status, 200, "looking is still possible");
    lab.stop().await;
}

#[tokio::test]
async fn whoever_has_gone_away_is_given_nothing() {
    let lab = lab().await;
    for number in 0..10 {
        let body = json!({ "waitSeconds": 30 });
        let request = lab.request(Method::POST, "/api/v1/workflows/deploy/lease").json(&body);
        let gone = request.timeout(std::time::Duration::from_millis(20 + number)).send().await;
        assert!(gone.unwrap_err().is_timeout());
    }
    let started = start(&lab, START, "k", &json!({})).await;
    let taken = lab.post("/api/v1/workflows/deploy/lease", &json!({ "waitSeconds": 10 })).await;
    assert_eq!(taken.body["execution"]["id"], started.body["executionId"], "{}", taken.body);
    lab.stop().await;
}
