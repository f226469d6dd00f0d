//! A token with scopes has access only to what they name, whatever its role.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::OutputStream;
use leasehold::model::{LockName, Payload, QueueName, TaskState, WorkflowName};
use leasehold::store::{ListLocks, ListTasks};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

const SETTINGS: &str = "[workflows.mine]\nrunner = \"external\"\n[workflows.other]\nrunner = \"external\"";

/// Server with a scoped token of an admin and a token of a reader for the metrics.
struct Scoped {
    server: TestServer,
    token: String,
    metrics: String,
    /// A task and an execution outside of the scopes.
    task: String,
    execution: String,
}

impl Scoped {
    async fn new() -> Self {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let token_store = TokenStore::new(leasehold.clone());
        let scopes = ["locks:mine/*", "queues:mine", "workflows:mine", "terraform:mine"];
        let scopes = scopes.map(|scope| scope.parse().unwrap()).to_vec();
        let token = token_store.create_scoped("ci", Role::Admin, None, scopes).await.unwrap().text;
        let only_metrics = vec!["metrics".parse().unwrap()];
        let metrics =
            token_store.create_scoped("prometheus", Role::Reader, None, only_metrics).await.unwrap().text;
        let other = QueueName::new("other").unwrap();
        let task = leasehold.enqueue_to(&other, Payload::default()).await.unwrap().id.to_string();
        let server = TestServer::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
        let admin = token_store.create("ada", Role::Admin, None).await.unwrap().text;
        let start = server.request(Method::POST, "/api/v1/workflows/other/executions").bearer_auth(&admin);
        let started = Reply::of(start.json(&json!({}))).await.body;
        let execution = started["executionId"].as_str().unwrap_or_else(|| panic!("{started}")).to_owned();
        Self { server, token, metrics, task, execution }
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: &Value) -> Reply {
        let request = self.server.request(method, path).bearer_auth(token).header("leasehold-protocol", "1");
        Reply::of(request.json(body)).await
    }
}

/// Paths whose handlers check the body or an id. A new path that is not listed here is outside of
/// every scope.
const INSIDE: [&str; 16] = [
    "/api/v1/tasks/heartbeat",
    "/api/v1/tasks/settle",
    "/api/v1/tasks/{id}/complete",
    "/api/v1/tasks/{id}/fail",
    "/api/v1/tasks/{id}/release",
    "/api/v1/tasks/{id}/abort",
    "/api/v1/tasks/{id}/heartbeat",
    "/api/v1/tasks/{id}",
    "/api/v1/executions/{id}/heartbeat",
    "/api/v1/executions/{id}/complete",
    "/api/v1/workers/{id}",
    "/api/v1/store/capabilities",
    "/api/v1/store/locks/{call}",
    "/api/v1/store/tasks/{call}",
    "/api/v1/store/docs/{call}",
    "/api/v1/store/notifications",
];
/// Public paths.
const PUBLIC: [&str; 3] = ["/healthz", "/readyz", "/api/webhooks/{triggerId}"];

#[tokio::test]
async fn no_path_leads_out_of_a_scope() {
    let scoped = Scoped::new().await;
    let description: Value = serde_json::from_str(&Server::openapi()).unwrap();
    let mut asked = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let named = if path.contains("executions/{id}") { &scoped.execution } else { &scoped.task };
            let place = path.replace("{id}", named).replace("{name}", "other").replace("{queue}", "other");
            let place = place.replace("{serial}", "1");
            let is_inside =
                INSIDE.contains(&path.as_str()) && !(path.ends_with("tasks/{id}") && method == "get");
            if PUBLIC.contains(&path.as_str()) || is_inside {
                continue;
            }
            asked += 1;
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let before = "?before=2020-01-01T00:00:00Z";
            let place =
                if method == Method::DELETE && path == "/api/v1/tasks" { place + before } else { place };
            let reply = scoped.send(&scoped.token, method.clone(), &place, &json!({})).await;
            assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{method} {place}: {}", reply.body);
            assert!(reply.body["detail"].as_str().unwrap().contains("scopes"), "{}", reply.body);
        }
    }
    assert!(asked > 40, "{asked}");
}

#[tokio::test]
async fn names_in_bodies_and_behind_ids_are_checked() {
    let scoped = Scoped::new().await;
    let Scoped { token, task, execution, .. } = &scoped;
    let admin = TokenStore::new(scoped.server.leasehold.clone())
        .create("eve", Role::Worker, None)
        .await
        .unwrap()
        .text;
    let lease = scoped.send(&admin, Method::POST, "/api/v1/queues/other/lease", &json!({})).await.body;
    let fence = json!({ "token": lease["tasks"][0]["token"] });
    let taken = scoped.send(&admin, Method::POST, "/api/v1/workflows/other/lease", &json!({})).await.body;
    let run = taken["execution"]["token"].clone();
    let held = json!({ "id": task, "token": fence["token"] });
    let done = json!({ "id": task, "token": fence["token"], "outcome": "complete" });
    let worker = json!({ "id": "01890a5d-ac96-774b-bcce-b302099a8057" });
    let cases: [(Method, String, Value); 17] = [
        (Method::POST, "/api/v1/locks/mine%2Fa/acquire".into(), json!({ "with": ["other"] })),
        (Method::POST, "/api/v1/queues/mine/tasks".into(), json!({ "payload": 1, "lock": "other" })),
        (Method::GET, "/api/v1/tasks?queue=other".into(), json!({})),
        (Method::GET, "/api/v1/executions?workflow=other".into(), json!({})),
        (Method::GET, "/api/v1/locks?prefix=other".into(), json!({})),
        (Method::GET, "/api/v1/events?queue=other".into(), json!({})),
        (Method::GET, "/api/v1/events?workflow=other".into(), json!({})),
        (Method::GET, "/api/v1/events?tasks=true".into(), json!({})),
        (Method::POST, format!("/api/v1/tasks/{task}/complete"), fence.clone()),
        (Method::POST, format!("/api/v1/tasks/{task}/fail"), fence.clone()),
        (Method::POST, format!("/api/v1/tasks/{task}/release"), fence.clone()),
        (Method::POST, format!("/api/v1/tasks/{task}/abort"), fence.clone()),
        (Method::POST, format!("/api/v1/tasks/{task}/heartbeat"), fence.clone()),
        (Method::POST, "/api/v1/tasks/heartbeat".into(), json!({ "worker": worker, "tasks": [held] })),
        (Method::POST, "/api/v1/tasks/settle".into(), json!({ "tasks": [done] })),
        (Method::POST, format!("/api/v1/executions/{execution}/heartbeat"), json!({ "token": run })),
        (
            Method::POST,
            format!("/api/v1/executions/{execution}/complete"),
            json!({ "token": run, "status": "succeeded" }),
        ),
    ];
    for (method, path, body) in cases {
        let reply = scoped.send(token, method, &path, &body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path}: {}", reply.body);
    }
    let patch = scoped.server.request(Method::PATCH, &format!("/api/v1/tasks/{task}")).bearer_auth(token);
    let reply = Reply::of(patch.header("if-match", "\"1\"").json(&json!({ "priority": 1 }))).await;
    assert_eq!(reply.status, 403, "{}", reply.body);
}

#[tokio::test]
async fn resources_in_scope_are_accessible() {
    let scoped = Scoped::new().await;
    let ok = async |method: Method, path: &str, body: &Value| {
        let reply = scoped.send(&scoped.token, method, path, body).await;
        assert!(reply.status < 300, "{path}: {}", reply.body);
        reply.body
    };
    ok(Method::POST, "/api/v1/locks/mine%2Fa/acquire", &json!({ "with": ["mine/b"] })).await;
    ok(Method::GET, "/api/v1/locks?prefix=mine%2F", &json!({})).await;
    ok(Method::POST, "/api/v1/queues/mine/tasks", &json!({ "payload": 1, "lock": "mine/c" })).await;
    ok(Method::GET, "/api/v1/tasks?queue=mine", &json!({})).await;
    let leased = ok(Method::POST, "/api/v1/queues/mine/lease", &json!({})).await;
    let (id, token) = (leased["tasks"][0]["id"].as_str().unwrap(), &leased["tasks"][0]["token"]);
    ok(Method::GET, &format!("/api/v1/tasks/{id}"), &json!({})).await;
    ok(Method::POST, "/api/v1/locks/mine%2Fc/acquire", &json!({ "holder": "deploy" })).await;
    let why = ok(Method::GET, &format!("/api/v1/tasks/{id}/why"), &json!({})).await;
    assert_eq!(
        (&why["reasons"][0]["code"], &why["reasons"][0]["lock"]),
        (&json!("behind_lock"), &json!("mine/c"))
    );
    assert_eq!(why["reasons"][0]["holder"], Value::Null, "a token with scopes sees no names of holders");
    ok(Method::POST, &format!("/api/v1/tasks/{id}/complete"), &json!({ "token": token })).await;
    let started = ok(Method::POST, "/api/v1/workflows/mine/executions", &json!({})).await;
    let execution = started["executionId"].as_str().unwrap();
    ok(Method::GET, &format!("/api/v1/executions/{execution}"), &json!({})).await;
    ok(Method::GET, "/api/v1/executions?workflow=mine", &json!({})).await;
    ok(Method::POST, &format!("/api/v1/executions/{execution}/abort"), &json!({})).await;
    ok(Method::POST, "/tf/mine/lock", &json!({ "ID": "1", "Who": "ada@laptop" })).await;
    let metrics = scoped.send(&scoped.metrics, Method::GET, "/metrics", &json!({})).await;
    assert_eq!(metrics.status, 200, "{}", metrics.body);
    assert_eq!(scoped.send(&scoped.metrics, Method::GET, "/api/v1/locks", &json!({})).await.status, 403);
    assert_eq!(scoped.send(&scoped.token, Method::GET, "/metrics", &json!({})).await.status, 403);
}

/// Over the store protocol: a lock, the whole life of a worker, and rejected calls.
#[tokio::test]
async fn the_store_protocol_has_the_same_scopes() {
    let scoped = Scoped::new().await;
    let url = scoped.server.base.replace("http://", &format!("http://{}@", scoped.token));
    let client = Leasehold::connect(&url).await.unwrap();
    let guard = client.lock("mine/a").acquire().await.unwrap();
    guard.release().await.unwrap();
    let mine = QueueName::new("mine").unwrap();
    let mut feed = client.tasks().unwrap().follow(&mine).await.unwrap();
    let id = client.enqueue_to(&mine, Payload::default()).await.unwrap().id;
    let worker = client
        .worker()
        .handle_queue(mine.clone(), Duration::from_secs(5), async |_| Ok::<_, leasehold::HandlerError>(()))
        .start()
        .unwrap();
    let tasks = client.tasks().unwrap();
    while tasks.get(id).await.unwrap().state != TaskState::Succeeded {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.stop(Duration::from_secs(5)).await;
    let refused = |error: leasehold::Error| assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    assert_eq!(feed.poll().await.unwrap().len(), 3, "added, started, succeeded");
    let other = QueueName::new("other").unwrap();
    refused(tasks.follow(&other).await.map(drop).unwrap_err());
    refused(tasks.follow_all().await.map(drop).unwrap_err());
    refused(client.lock("other").acquire().await.unwrap_err());
    refused(client.locks().status(&LockName::new("other").unwrap()).await.unwrap_err());
    refused(client.locks().list(&ListLocks::default()).await.unwrap_err());
    refused(client.enqueue_to(&other, Payload::default()).await.unwrap_err());
    refused(tasks.list(&ListTasks::default()).await.unwrap_err());
    refused(tasks.get(scoped.task.parse().unwrap()).await.unwrap_err());
    refused(tasks.workers().await.unwrap_err());
    let workflow = WorkflowName::new("other").unwrap();
    refused(client.workflows().unwrap().lock(&workflow).await.unwrap_err());
}

#[tokio::test]
async fn the_output_of_a_worker_is_kept_within_its_scopes() {
    let scoped = Scoped::new().await;
    let url = scoped.server.base.replace("http://", &format!("http://{}@", scoped.token));
    let client = Leasehold::connect(&url).await.unwrap();
    client.enqueue_to("mine", Payload::default()).await.unwrap();
    let lease = scoped.send(&scoped.token, Method::POST, "/api/v1/queues/mine/lease", &json!({})).await.body;
    let mine = lease["tasks"][0]["id"].as_str().unwrap_or_else(|| panic!("{lease}")).parse().unwrap();
    let tasks = client.tasks().unwrap();
    let task = tasks.get(mine).await.unwrap();
    // The token may not read the retention of the queues, which determines how long output is kept.
    assert!(tasks.retention(&task.queue).await.is_err_and(|error| error.is_not_permitted()));
    let recorder = tasks.record_output(&task, 1_000).unwrap();
    recorder.add(OutputStream::Stdout, b"done\n");
    recorder.finish().await;
    let kept = tasks.output(mine).await.unwrap();
    assert_eq!(kept[0].lines[0].text, "done");
    let path = format!("/api/v1/tasks/{mine}/output");
    let read = scoped.send(&scoped.token, Method::GET, &path, &Value::Null).await;
    assert_eq!(read.body["attempts"][0]["lines"][0]["text"], "done", "{}", read.body);
    let path = format!("/api/v1/tasks/{}/output", scoped.task);
    assert_eq!(scoped.send(&scoped.token, Method::GET, &path, &Value::Null).await.status, 403);
}
