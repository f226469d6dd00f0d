//! Workflows and executions over HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{
    ExecutionId, ExecutionInput, ExecutionSpec, NewTask, Payload, TaskId, TaskKey, TaskState, Timestamp,
    WorkflowName,
};
use leasehold::store::Clock;
use leasehold::store::memory::MemoryStore;
use leasehold_server::access::TokenStore;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Limits, Role, Server, ServerBuilder};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::raw_connection::RawConnection;
use crate::test_server::{Reply, TestServer};

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
ttl = "20s"
max_runtime = "10m"
"#;

const START: &str = "/api/v1/workflows/deploy/executions";

async fn server() -> TestServer {
    TestServer::configured(Leasehold::connect("memory:").await.unwrap(), Access::Open, SETTINGS).await
}

/// Returns a builder of an open server with these workflows.
fn builder(leasehold: &Leasehold) -> ServerBuilder {
    let settings = Settings::parse(Path::new("leasehold.toml"), SETTINGS).unwrap();
    Server::builder(leasehold.clone()).access(Access::Open).workflows(settings.workflows)
}

/// Starts a server without maintenance, whose clock the test controls.
async fn with_clock() -> (TestServer, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap();
    let server = builder(&leasehold).without_maintenance().build();
    (TestServer::serve(server, leasehold).await, clock)
}

async fn start(server: &TestServer, path: &str, key: &str, body: &Value) -> Reply {
    Reply::of(server.request(Method::POST, path).header("idempotency-key", key).json(body)).await
}

async fn lease(server: &TestServer, workflow: &str) -> Value {
    let reply =
        server.post(&format!("/api/v1/workflows/{workflow}/lease"), &json!({ "ttlSeconds": 10 })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["execution"].clone()
}

async fn complete(server: &TestServer, execution: &Value, status: &str) -> Reply {
    let path = format!("/api/v1/executions/{}/complete", execution["id"].as_str().unwrap());
    server.post(&path, &json!({ "token": execution["token"], "state": status })).await
}

#[tokio::test]
async fn a_key_starts_one_execution() {
    let server = server().await;
    let first = start(&server, START, "k", &json!({ "input": { "a": 1 } })).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let place = first.headers["location"].to_str().unwrap();
    let execution = server.get(place).await;
    assert_eq!(execution.body["input"], json!({ "a": 1 }));
    assert_eq!((&execution.body["state"], &execution.body["key"]), (&json!("pending"), &json!("k")));
    let again = start(&server, START, "\"k\"", &json!({ "input": { "a": 1 } })).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    let other = start(&server, START, "k", &json!({ "input": { "a": 2 } })).await;
    assert_eq!((other.status, other.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(other.body["existingExecutionId"], first.body["executionId"]);
    let locked = start(&server, START, "l", &json!({})).await;
    assert_eq!((locked.status, locked.code()), (409, "WORKFLOW_LOCKED"));
    let skipped = start(&server, START, "l", &json!({ "onLocked": "skip" })).await;
    assert_eq!((skipped.status, &skipped.body["state"]), (200, &json!("skipped")));
    let queued = start(&server, START, "l", &json!({ "onLocked": "queue" })).await;
    assert_eq!((queued.status, &queued.body["state"]), (202, &json!("blocked")));
    server.stop().await;
}

#[tokio::test]
async fn the_queue_limit_is_enforced() {
    let server = server().await;
    let path = "/api/v1/workflows/a%2Fb/executions";
    let statuses = [start(&server, path, "1", &json!({})).await, start(&server, path, "2", &json!({})).await];
    assert_eq!(statuses.map(|reply| reply.status), [201, 202]);
    let full = start(&server, path, "3", &json!({})).await;
    assert_eq!((full.status, full.code()), (409, "WORKFLOW_LOCKED"));
    let lock = server.get("/api/v1/workflows/a%2Fb/lock").await;
    assert_eq!((&lock.body["isLocked"], &lock.body["queued"]), (&json!(true), &json!(1)));
    server.stop().await;
}

#[tokio::test]
async fn an_external_process_runs_an_execution() {
    let server = server().await;
    assert_eq!(lease(&server, "deploy").await, Value::Null);
    start(&server, START, "k", &json!({ "input": 5 })).await;
    let execution = lease(&server, "deploy").await;
    assert_eq!((&execution["state"], &execution["input"]), (&json!("running"), &json!(5)));
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    let beat = json!({ "token": execution["token"], "progress": { "done": 1, "of": 2 } });
    let heard = server.post(&format!("{path}/heartbeat"), &beat).await;
    assert_eq!(heard.body, json!({ "success": true, "stopRequested": false }));
    assert_eq!(server.get(&path).await.body["progress"]["done"], 1);
    let lock = server.get("/api/v1/workflows/deploy/lock").await.body;
    assert_eq!((&lock["isLocked"], &lock["executionId"]), (&json!(true), &execution["id"]));
    let stale = server.post(&format!("{path}/heartbeat"), &json!({ "token": 1 })).await;
    assert_eq!((stale.status, stale.code()), (409, "STALE_TOKEN"));
    let zombie =
        server.post(&format!("{path}/complete"), &json!({ "token": 1, "status": "succeeded" })).await;
    assert_eq!((zombie.status, zombie.code()), (409, "STALE_TOKEN"));
    let done = json!({ "token": execution["token"], "status": "succeeded", "result": { "ok": true } });
    let done = server.post(&format!("{path}/complete"), &done).await;
    assert_eq!(done.body["result"], json!({ "ok": true }), "{}", done.body);
    assert_eq!(server.get("/api/v1/workflows/deploy/lock").await.body["isLocked"], false);
    assert_eq!(server.post(&format!("{path}/abort"), &json!({})).await.code(), "EXECUTION_FINISHED");
    server.stop().await;
}

#[tokio::test]
async fn a_failed_execution_is_retried_with_the_same_key() {
    let server = server().await;
    let first = start(&server, START, "k", &json!({})).await;
    let failed = complete(&server, &lease(&server, "deploy").await, "failed").await;
    assert_eq!((failed.status, &failed.body["state"]), (200, &json!("failed")));
    let second = start(&server, START, "k", &json!({})).await;
    assert_eq!((second.status, &second.body["attempt"]), (201, &json!(2)));
    assert_eq!(second.body["retryOf"], first.body["executionId"]);
    let both = server.get("/api/v1/executions?key=k").await.body;
    let all = both["executions"].as_array().unwrap();
    let ids: Vec<_> = all.iter().map(|execution| &execution["id"]).collect();
    assert_eq!(ids, [&second.body["executionId"], &first.body["executionId"]], "the key leads to both");
    let shown =
        server.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await;
    assert_eq!(shown.body["key"], "k", "the failed one keeps it");
    server.stop().await;
}

/// A worker can add an execution that names any other, or itself, as the one whose key it has taken over.
#[tokio::test]
async fn executions_with_a_key_are_read_once_and_up_to_a_size() {
    let server = server().await;
    let (store, workflow) = (server.leasehold.store(), WorkflowName::new("deploy").unwrap());
    let id = |number: u128| TaskId::from_uuid(Uuid::from_u128(number));
    let add = async |number: u128, earlier: u128, key: Option<&str>, input: ExecutionInput| {
        let mut spec = ExecutionSpec::new(input);
        spec.retry_of = Some(id(earlier).into());
        let mut new = NewTask::new(id(number), workflow.queue(), Payload::of(&spec).unwrap());
        new.lock = Some(workflow.lock());
        new.key = key.map(|key| TaskKey::new(key).unwrap());
        store.tasks().unwrap().enqueue(&[new]).await.unwrap();
    };
    let inputs = async |key: &str| {
        let reply = server.get(&format!("/api/v1/executions?workflow=deploy&key={key}")).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let all = reply.body["executions"].as_array().unwrap();
        all.iter().map(|execution| execution["input"].clone()).collect::<Vec<_>>()
    };
    add(1, 1, Some("self"), ExecutionInput::raw(b" {\"a\": 1} ").unwrap()).await;
    assert_eq!(inputs("self").await, [json!({ "a": 1 })]);
    add(2, 3, Some("circle"), ExecutionInput::raw(b"say \"hello\"").unwrap()).await;
    add(3, 2, None, ExecutionInput::raw(b"[3, 0.5]").unwrap()).await;
    let mut circle = inputs("circle").await;
    circle.sort_by_key(Value::is_string);
    assert_eq!(circle, [json!([3, 0.5]), json!("say \"hello\"")]);
    let large = ExecutionInput::of(&"x".repeat(1_000_000)).unwrap();
    for number in 11..=20 {
        add(number, number - 1, (number == 20).then_some("large"), large.clone()).await;
    }
    assert_eq!(inputs("large").await.len(), 9, "of 10 executions with 1 MB");
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_client_gets_the_next_execution() {
    let server = server().await;
    let body = json!({ "waitSeconds": 30 });
    let waiting = server.post("/api/v1/workflows/deploy/lease", &body);
    let (taken, started) = tokio::join!(waiting, async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        start(&server, START, "k", &json!({})).await
    });
    assert_eq!(taken.body["execution"]["id"], started.body["executionId"]);
    server.stop().await;
}

#[tokio::test]
async fn a_runner_finds_its_execution_after_a_lost_response() {
    const RUNNER: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    const ANOTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8058";
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let token_store = TokenStore::new(leasehold);
    let mut tokens = Vec::new();
    for name in ["runner", "other"] {
        tokens.push(token_store.create(name, Role::Worker, None).await.unwrap().text);
    }
    let find = async |server: &TestServer, query: &str| {
        let page = server.get(&format!("/api/v1/executions?{query}")).await;
        assert_eq!(page.status, 200, "{}", page.body);
        page.body["executions"].clone()
    };
    server.use_token(&tokens[0]);
    start(&server, START, "k", &json!({})).await;
    let lost = server.post("/api/v1/workflows/deploy/lease", &json!({ "worker": RUNNER })).await;
    assert_eq!(lost.status, 200, "{}", lost.body);
    for query in ["workflow=deploy&state=running", "key=k"] {
        let found = find(&server, &format!("{query}&worker={RUNNER}")).await;
        for field in ["id", "token"] {
            assert_eq!(found[0][field], lost.body["execution"][field], "{query}: {found}");
        }
        assert_eq!(find(&server, &format!("{query}&worker={ANOTHER}")).await, json!([]), "{query}");
    }
    server.use_token(&tokens[1]);
    assert_eq!(find(&server, &format!("worker={RUNNER}")).await, json!([]), "another token's runner");
    server.use_token(&tokens[0]);
    let found = find(&server, &format!("worker={RUNNER}")).await;
    assert_eq!(complete(&server, &found[0], "succeeded").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn an_aborted_execution_learns_it_with_its_heartbeat() {
    let server = server().await;
    start(&server, START, "k", &json!({})).await;
    let execution = lease(&server, "deploy").await;
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    let asked = server.post(&format!("{path}/abort"), &json!({ "reason": "no more" })).await;
    assert_eq!((asked.status, &asked.body["state"]), (202, &json!("running")));
    let heard = server.post(&format!("{path}/heartbeat"), &json!({ "token": execution["token"] })).await;
    assert_eq!(heard.body["stopRequested"], true);
    assert_eq!(server.get("/api/v1/workflows/deploy/lock").await.body["isLocked"], true, "until it is dead");
    assert_eq!(complete(&server, &execution, "aborted").await.body["state"], "aborted");
    server.stop().await;
}

/// Starts an execution of the workflow with a maximum run time, and lets it run for longer. Returns it with
/// its path.
async fn run_for_too_long(server: &TestServer, clock: &Clock) -> (Value, String) {
    start(server, "/api/v1/workflows/short/executions", "k", &json!({})).await;
    let execution = lease(server, "short").await;
    let path = format!("/api/v1/executions/{}", execution["id"].as_str().unwrap());
    // The runner sends heartbeats: at 10 min, the lease is valid.
    let beat = json!({ "token": execution["token"], "ttlSeconds": 700 });
    let heard = server.post(&format!("{path}/heartbeat"), &beat).await;
    assert_eq!(heard.body, json!({ "success": true, "stopRequested": false }));
    clock.advance(Duration::from_mins(10));
    (execution, path)
}

#[tokio::test]
async fn an_execution_that_exceeds_its_run_time_is_asked_to_stop() {
    let (server, clock) = with_clock().await;
    let (execution, path) = run_for_too_long(&server, &clock).await;
    let token = json!({ "token": execution["token"] });
    for _ in 0..2 {
        let late = server.post(&format!("{path}/heartbeat"), &token).await;
        let expected = json!({ "success": true, "stopRequested": true, "requestedBy": "max_runtime" });
        assert_eq!(late.body, expected);
        clock.advance(Duration::from_secs(5));
    }
    let stale = server.post(&format!("{path}/heartbeat"), &json!({ "token": 1 })).await;
    assert_eq!((stale.status, stale.code()), (409, "STALE_TOKEN"));
    let lock = server.get("/api/v1/workflows/short/lock").await.body;
    assert_eq!((&lock["isLocked"], &lock["executionId"]), (&json!(true), &execution["id"]), "{lock}");
    let ended = complete(&server, &execution, "aborted").await.body;
    assert_eq!(ended["state"], "aborted", "{ended}");
    assert!(ended["reason"].as_str().unwrap().starts_with("timeout: it ran for 10m"), "{ended}");
    assert_eq!(server.get("/api/v1/workflows/short/lock").await.body["isLocked"], false);
    server.stop().await;
}

#[tokio::test]
async fn an_execution_that_does_not_stop_after_its_run_time_is_aborted() {
    let (server, clock) = with_clock().await;
    let (execution, path) = run_for_too_long(&server, &clock).await;
    let token = json!({ "token": execution["token"] });
    clock.advance(Duration::from_mins(1));
    // The first heartbeat after the run time is a request, however late it is.
    let asked = server.post(&format!("{path}/heartbeat"), &token).await;
    assert_eq!(asked.body["stopRequested"], true, "{}", asked.body);
    clock.advance(Duration::from_secs(19));
    assert_eq!(server.post(&format!("{path}/heartbeat"), &token).await.body["stopRequested"], true);
    clock.advance(Duration::from_secs(1));
    let late = server.post(&format!("{path}/heartbeat"), &token).await;
    assert_eq!((late.status, late.code()), (409, "EXECUTION_FINISHED"), "{}", late.body);
    let ended = server.get(&path).await.body;
    assert_eq!(ended["state"], "aborted");
    assert!(ended["reason"].as_str().unwrap().starts_with("timeout"), "{ended}");
    assert_eq!(server.get("/api/v1/workflows/short/lock").await.body["isLocked"], false);
    server.stop().await;
}

#[tokio::test]
async fn only_an_admin_can_unlock_a_workflow() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let token_store = TokenStore::new(leasehold);
    let [reader, worker, operator, admin] = [Role::Reader, Role::Worker, Role::Operator, Role::Admin];
    let mut tokens = Vec::new();
    for role in [reader, worker, operator, admin] {
        tokens.push(token_store.create(&role.to_string(), role, None).await.unwrap().text);
    }
    server.use_token(&tokens[0]);
    assert_eq!(start(&server, START, "k", &json!({})).await.code(), "FORBIDDEN");
    assert_eq!(server.get("/api/v1/workflows").await.status, 200);
    server.use_token(&tokens[1]);
    let started = start(&server, START, "k", &json!({})).await;
    let path = format!("/api/v1/executions/{}/abort", started.body["executionId"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({})).await.code(), "FORBIDDEN");
    let unlock = async |server: &TestServer, body: &Value| {
        Reply::of(server.request(Method::DELETE, "/api/v1/workflows/deploy/lock").json(body)).await
    };
    server.use_token(&tokens[2]);
    assert_eq!(unlock(&server, &json!({ "reason": "stuck" })).await.code(), "FORBIDDEN");
    server.use_token(&tokens[3]);
    assert_eq!(unlock(&server, &json!({})).await.code(), "INVALID");
    let unlocked = unlock(&server, &json!({ "reason": "stuck" })).await;
    assert_eq!((unlocked.status, &unlocked.body["isLocked"]), (200, &json!(false)), "{}", unlocked.body);
    server.stop().await;
}

#[tokio::test]
async fn workflows_and_executions_are_listed() {
    let server = server().await;
    start(&server, START, "k", &json!({})).await;
    let workflows = server.get("/api/v1/workflows").await.body;
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
        let page = server.get(&format!("/api/v1/executions{query}")).await.body;
        assert_eq!(page["executions"].as_array().unwrap().len(), 1, "{query}");
    }
    for query in ["?status=failed", "?state=queued", "?key=l", "?key=k&state=failed", "?key=k&workflow=other"]
    {
        let none = server.get(&format!("/api/v1/executions{query}")).await.body;
        assert_eq!(none["executions"], json!([]), "{query}");
    }
    for query in ["?status=lost", "?state=lost", "?colour=red", "?limit=many"] {
        assert_eq!(server.get(&format!("/api/v1/executions{query}")).await.code(), "INVALID", "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn invalid_workflow_requests_are_rejected() {
    let server = server().await;
    let unknown = start(&server, "/api/v1/workflows/other/executions", "k", &json!({})).await;
    assert_eq!((unknown.status, unknown.code()), (404, "UNKNOWN_WORKFLOW"));
    for body in [json!({ "onLocked": "explode" }), json!({ "inputs": 1 }), json!([])] {
        assert_eq!(start(&server, START, "k", &body).await.code(), "INVALID", "{body}");
    }
    for key in ["\"", "\"a\"b", &"x".repeat(300)] {
        assert_eq!(start(&server, START, key, &json!({})).await.code(), "INVALID", "{key}");
    }
    for body in [json!({ "ttlSeconds": -1 }), json!({ "ttlSeconds": 1e300 }), json!({ "waitSeconds": "x" })] {
        let reply = server.post("/api/v1/workflows/deploy/lease", &body).await;
        assert_eq!(reply.code(), "INVALID", "{body}");
    }
    let own = server.post("/api/v1/workflows/own/lease", &json!({})).await;
    assert_eq!((own.status, own.code()), (400, "INVALID"));
    assert_eq!(server.get("/api/v1/executions/exec_1").await.code(), "INVALID");
    let gone = server.get("/api/v1/executions/exec_01890a5d-ac96-774b-bcce-b302099a8057").await;
    assert_eq!((gone.status, gone.code()), (404, "UNKNOWN_EXECUTION"));
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_server_starts_nothing_and_rejects_waiters() {
    let server = server().await;
    let body = json!({ "waitSeconds": 30 });
    let waiting = server.post("/api/v1/workflows/deploy/lease", &body);
    let (sent_away, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        server.server.drain();
    });
    assert_eq!((sent_away.status, sent_away.code()), (503, "DRAINING"));
    let refused = start(&server, START, "k", &json!({})).await;
    assert_eq!((refused.status, refused.code()), (503, "DRAINING"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/readyz").await.status, 503);
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/api/v1/executions").await.status, 200, "looking is still possible");
    server.stop().await;
}

#[tokio::test]
async fn a_disconnected_client_gets_no_execution() {
    let server = server().await;
    for number in 0..10 {
        let body = json!({ "waitSeconds": 30 });
        let request = server.request(Method::POST, "/api/v1/workflows/deploy/lease").json(&body);
        let gone = request.timeout(std::time::Duration::from_millis(20 + number)).send().await;
        assert!(gone.unwrap_err().is_timeout());
    }
    let started = start(&server, START, "k", &json!({})).await;
    let taken = server.post("/api/v1/workflows/deploy/lease", &json!({ "waitSeconds": 10 })).await;
    assert_eq!(taken.body["execution"]["id"], started.body["executionId"], "{}", taken.body);
    server.stop().await;
}

/// The execution is leased while the request waits for its lock, which another holder has.
#[tokio::test]
async fn a_stopping_server_returns_the_execution_that_a_request_waits_for() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut limits = Limits::default();
    limits.grace = Duration::from_mins(1);
    let server = TestServer::serve(builder(&leasehold).limits(limits).build(), leasehold.clone()).await;
    let _guard = leasehold.lock("workflow/deploy").holder("backup").acquire().await.unwrap();
    let started = start(&server, START, "k", &json!({ "onLocked": "queue" })).await;
    assert_eq!(started.body["state"], "pending", "{}", started.body);
    let id: ExecutionId = started.body["executionId"].as_str().unwrap().parse().unwrap();
    let body = json!({ "ttlSeconds": 12, "waitSeconds": 30 });
    let path = "/api/v1/workflows/deploy/lease";
    let connection = RawConnection::send(&server, "POST", path, Some(&body)).await;
    server.wait_for_waiters("workflow%2Fdeploy", 1).await;
    let workflows = leasehold.workflows().unwrap();
    assert_eq!(workflows.get(id).await.unwrap().state, TaskState::Running);
    server.stop().await;
    let answer = connection.read_to_end().await;
    assert!(answer.contains("\"code\":\"DRAINING\""), "{answer}");
    let execution = workflows.get(id).await.unwrap();
    assert_eq!(execution.state, TaskState::Pending, "{execution:?}");
    assert!(leasehold.locks().status("workflow/deploy").await.unwrap().waiters.is_empty());
}
