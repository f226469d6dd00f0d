//! What started an execution is stored with it, and only a trigger may say that a webhook did.

use leasehold::model::{
    Change, ExecutionSpec, Input, NewTask, Payload, TaskId, TaskOp, WebhookEvent, WorkflowName,
};
use leasehold::store::{NewDocument, StoreUrl, connect};
use leasehold::{Error, Leasehold};
use leasehold_server::access::TokenDesk;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::senders::{SETTINGS, github, lab};
use crate::lab::{Lab, Reply};

const HEADERS: [(&str, &str); 2] = [("x-github-event", "pull_request"), ("x-github-delivery", "guid-1")];
const BODY: &str = r#"{"action":"opened"}"#;

/// The webhook that an execution of this id was started by, as every process that runs it reads it.
async fn started_by(leasehold: &Leasehold, id: &str) -> Option<WebhookEvent> {
    let id = id.strip_prefix("exec_").unwrap().parse().unwrap();
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    WebhookEvent::of(&ExecutionSpec::of(&task).facts)
}

#[tokio::test]
async fn an_execution_knows_the_webhook_that_started_it() {
    let lab = lab().await;
    let first = github(&lab, "github", &HEADERS, BODY).await;
    let event = started_by(&lab.leasehold, first.body["executionId"].as_str().unwrap()).await.unwrap();
    assert_eq!(event.trigger.as_str(), "github");
    assert_eq!(event.event.unwrap().as_str(), "pull_request.opened");
    assert_eq!(event.delivery.unwrap().as_str(), "guid-1");
    let shown =
        lab.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await.body;
    assert_eq!(shown["startedBy"], "trigger github");
    let facts = json!({
        "webhookTrigger": "github", "webhookEvent": "pull_request.opened", "webhookDelivery": "guid-1"
    });
    assert_eq!(shown["facts"], facts);
    let started = lab.post("/api/v1/workflows/invoice/executions", &json!({ "input": { "facts": 1 } })).await;
    assert_eq!(started_by(&lab.leasehold, started.body["executionId"].as_str().unwrap()).await, None);
    lab.stop().await;
}

/// The payload of an execution that claims to be started by a webhook.
fn claim() -> Value {
    json!({ "input": { "json": { "action": "opened" } }, "facts": { "webhookTrigger": "push", "webhookEvent": "push" } })
}

fn assert_refused(reply: &Reply) {
    assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{}", reply.body);
    assert!(reply.body["detail"].as_str().unwrap().contains("only a trigger"), "{}", reply.body);
}

#[tokio::test]
async fn a_caller_of_the_api_cannot_claim_a_webhook() {
    let lab = lab().await;
    let tasks = "/api/v1/queues/workflow%2Fdeploy/tasks";
    assert_refused(&lab.post(tasks, &json!({ "payload": claim() })).await);
    assert_refused(&lab.post(tasks, &json!([{ "payload": 1 }, { "payload": claim() }])).await);
    let schedule = json!({ "cron": "@daily", "queue": "workflow/deploy", "payload": claim() });
    let request = lab.request(Method::PUT, "/api/v1/schedules/nightly").json(&schedule);
    assert_refused(&Reply::of(request).await);
    let started = lab.post("/api/v1/workflows/deploy/executions", &claim()).await;
    assert_eq!((started.status, started.code()), (400, "INVALID"), "a start has no facts");
    let inside = lab.post("/api/v1/workflows/deploy/executions", &json!({ "input": claim() })).await;
    assert_eq!(started_by(&lab.leasehold, inside.body["executionId"].as_str().unwrap()).await, None);
    // To a queue of tasks it means nothing.
    assert_eq!(lab.post("/api/v1/queues/mail/tasks", &json!({ "payload": claim() })).await.status, 201);
    lab.stop().await;
}

#[tokio::test]
async fn a_change_cannot_claim_a_webhook_but_may_keep_it() {
    let lab = lab().await;
    let change = async |id: &str, payload: &Value| {
        let path = format!("/api/v1/tasks/{}", id.strip_prefix("exec_").unwrap_or(id));
        let version = lab.get(&path).await.headers["etag"].clone();
        let request = lab.request(Method::PATCH, &path).header("if-match", version);
        Reply::of(request.json(&json!({ "payload": payload }))).await
    };
    let by_hand = lab.post("/api/v1/workflows/invoice/executions", &json!({})).await;
    assert_refused(&change(by_hand.body["executionId"].as_str().unwrap(), &claim()).await);
    let by_webhook = github(&lab, "github", &HEADERS, BODY).await;
    let id = by_webhook.body["executionId"].as_str().unwrap();
    assert_refused(&change(id, &claim()).await);
    let mut own = lab.get(&format!("/api/v1/tasks/{}", &id[5..])).await.body["payload"].clone();
    own["input"] = json!({ "json": "mended" });
    let kept = change(id, &own).await;
    assert_eq!(kept.status, 200, "{}", kept.body);
    assert_eq!(started_by(&lab.leasehold, id).await.unwrap().trigger.as_str(), "github");
    lab.stop().await;
}

/// The protocol by which leasehold itself speaks to a server writes whole tasks.
#[tokio::test]
async fn a_client_of_the_store_protocol_cannot_claim_a_webhook() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let tokens = Access::Tokens(Vec::new());
    let lab = Lab::configured(leasehold.clone(), tokens, SETTINGS).await;
    let token = TokenDesk::new(leasehold).create("ops", Role::Operator, None).await.unwrap().text;
    let url = lab.base.replace("http://", &format!("http://{token}@"));
    let store = connect(&StoreUrl::parse(&url).unwrap()).await.unwrap();
    let tasks = store.tasks().unwrap();
    let queue = WorkflowName::new("deploy").unwrap().queue();
    let refused = |error: Error| assert!(error.to_string().contains("only a trigger"), "{error}");
    let task = |payload| NewTask::new(TaskId::from_uuid(Uuid::now_v7()), queue.clone(), payload);
    let claim = Payload::of(&claim()).unwrap();
    refused(tasks.enqueue(&[task(claim.clone())]).await.unwrap_err());
    let plain = task(Payload::of(&ExecutionSpec::new(Input::of(&1).unwrap())).unwrap());
    tasks.enqueue(std::slice::from_ref(&plain)).await.unwrap();
    let change = Change { expected: 1, payload: Some(claim), ..Change::default() };
    refused(tasks.change(plain.id, &TaskOp::Update(change)).await.unwrap_err());
    let schedule = json!({
        "name": "nightly", "cron": "@daily", "zone": "UTC", "queue": queue, "payload": self::claim(), "since": 0
    });
    let body = schedule.to_string();
    let draft = NewDocument { body, facts: Vec::new(), keep: None };
    refused(store.docs().unwrap().put_if("schedule/nightly", None, draft).await.unwrap_err());
    lab.stop().await;
}
