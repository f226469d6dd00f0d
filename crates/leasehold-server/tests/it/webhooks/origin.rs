//! The origin of an execution is stored with it, and only a trigger may claim that a webhook
//! started it.

use leasehold::model::{
    ExecutionInput, ExecutionSpec, NewTask, Payload, TaskId, TaskOp, TaskUpdate, WebhookEvent, WorkflowName,
};
use leasehold::store::{NewDocument, StoreUrl, connect};
use leasehold::{Error, Leasehold};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::senders::{SETTINGS, github, server};
use crate::test_server::{Reply, TestServer};

const HEADERS: [(&str, &str); 2] = [("x-github-event", "pull_request"), ("x-github-delivery", "guid-1")];
const BODY: &str = r#"{"action":"opened"}"#;

/// Returns the webhook that started the execution with this id, as stored in its task.
async fn started_by(leasehold: &Leasehold, id: &str) -> Option<WebhookEvent> {
    let id = id.strip_prefix("exec_").unwrap().parse().unwrap();
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    WebhookEvent::of(&ExecutionSpec::of(&task).metadata)
}

#[tokio::test]
async fn an_execution_knows_the_webhook_that_started_it() {
    let server = server().await;
    let first = github(&server, "github", &HEADERS, BODY).await;
    let event = started_by(&server.leasehold, first.body["executionId"].as_str().unwrap()).await.unwrap();
    assert_eq!(event.trigger.as_str(), "github");
    assert_eq!(event.event.unwrap().as_str(), "pull_request.opened");
    assert_eq!(event.delivery.unwrap().as_str(), "guid-1");
    let shown =
        server.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await.body;
    assert_eq!(shown["startedBy"], "trigger github");
    let metadata = json!({
        "webhookTrigger": "github", "webhookEvent": "pull_request.opened", "webhookDelivery": "guid-1"
    });
    assert_eq!(shown["metadata"], metadata);
    let started =
        server.post("/api/v1/workflows/invoice/executions", &json!({ "input": { "metadata": 1 } })).await;
    assert_eq!(started_by(&server.leasehold, started.body["executionId"].as_str().unwrap()).await, None);
    server.stop().await;
}

/// Payload of an execution that claims to be started by a webhook.
fn claim() -> Value {
    json!({ "input": { "json": { "action": "opened" } }, "metadata": { "webhookTrigger": "push", "webhookEvent": "push" } })
}

fn assert_refused(reply: &Reply) {
    assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{}", reply.body);
    assert!(reply.body["detail"].as_str().unwrap().contains("only a trigger"), "{}", reply.body);
}

#[tokio::test]
async fn a_caller_of_the_api_cannot_claim_a_webhook() {
    let server = server().await;
    let tasks = "/api/v1/queues/workflow%2Fdeploy/tasks";
    assert_refused(&server.post(tasks, &json!({ "payload": claim() })).await);
    assert_refused(&server.post(tasks, &json!([{ "payload": 1 }, { "payload": claim() }])).await);
    let schedule = json!({ "cron": "@daily", "queue": "workflow/deploy", "payload": claim() });
    let request = server.request(Method::PUT, "/api/v1/schedules/nightly").json(&schedule);
    assert_refused(&Reply::of(request).await);
    let started = server.post("/api/v1/workflows/deploy/executions", &claim()).await;
    assert_eq!((started.status, started.code()), (400, "INVALID"), "a start has no metadata");
    let inside = server.post("/api/v1/workflows/deploy/executions", &json!({ "input": claim() })).await;
    assert_eq!(started_by(&server.leasehold, inside.body["executionId"].as_str().unwrap()).await, None);
    // In the queue of tasks the claim has no meaning.
    assert_eq!(server.post("/api/v1/queues/mail/tasks", &json!({ "payload": claim() })).await.status, 201);
    server.stop().await;
}

#[tokio::test]
async fn a_change_cannot_claim_a_webhook_but_may_keep_it() {
    let server = server().await;
    let change = async |id: &str, payload: &Value| {
        let path = format!("/api/v1/tasks/{}", id.strip_prefix("exec_").unwrap_or(id));
        let version = server.get(&path).await.headers["etag"].clone();
        let request = server.request(Method::PATCH, &path).header("if-match", version);
        Reply::of(request.json(&json!({ "payload": payload }))).await
    };
    let by_hand = server.post("/api/v1/workflows/invoice/executions", &json!({})).await;
    assert_refused(&change(by_hand.body["executionId"].as_str().unwrap(), &claim()).await);
    let by_webhook = github(&server, "github", &HEADERS, BODY).await;
    let id = by_webhook.body["executionId"].as_str().unwrap();
    assert_refused(&change(id, &claim()).await);
    let mut own = server.get(&format!("/api/v1/tasks/{}", &id[5..])).await.body["payload"].clone();
    own["input"] = json!({ "json": "mended" });
    let kept = change(id, &own).await;
    assert_eq!(kept.status, 200, "{}", kept.body);
    assert_eq!(started_by(&server.leasehold, id).await.unwrap().trigger.as_str(), "github");
    server.stop().await;
}

/// The store protocol writes whole tasks.
#[tokio::test]
async fn a_client_of_the_store_protocol_cannot_claim_a_webhook() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let tokens = Access::Tokens(Vec::new());
    let server = TestServer::configured(leasehold.clone(), tokens, SETTINGS).await;
    let token = TokenStore::new(leasehold).create("ops", Role::Operator, None).await.unwrap().text;
    let url = server.base.replace("http://", &format!("http://{token}@"));
    let store = connect(&StoreUrl::parse(&url).unwrap()).await.unwrap();
    let tasks = store.tasks().unwrap();
    let queue = WorkflowName::new("deploy").unwrap().queue();
    let refused = |error: Error| assert!(error.to_string().contains("only a trigger"), "{error}");
    let task = |payload| NewTask::new(TaskId::from_uuid(Uuid::now_v7()), queue.clone(), payload);
    let claim = Payload::of(&claim()).unwrap();
    refused(tasks.enqueue(&[task(claim.clone())]).await.unwrap_err());
    let plain = task(Payload::of(&ExecutionSpec::new(ExecutionInput::of(&1).unwrap())).unwrap());
    tasks.enqueue(std::slice::from_ref(&plain)).await.unwrap();
    let change = TaskUpdate { expected: 1, payload: Some(claim), ..TaskUpdate::default() };
    refused(tasks.change(plain.id, &TaskOp::Update(change)).await.unwrap_err());
    let schedule = json!({
        "name": "nightly", "cron": "@daily", "zone": "UTC", "queue": queue, "payload": self::claim(), "since": 0
    });
    let body = schedule.to_string();
    let draft = NewDocument::new(body);
    refused(store.documents().unwrap().put_if("schedule/nightly", None, draft).await.unwrap_err());
    server.stop().await;
}
