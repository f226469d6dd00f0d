//! Settings: default TTL, intervals, audit of renewals; details of a conflict; the starter of an
//! execution.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{ExecutionId, Ttl};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Audit, Maintenance, Role, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn a_conflict_names_the_lease_and_counts_down() {
    let server = TestServer::open().await;
    assert_eq!(server.post("/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 1800 })).await.status, 200);
    let refused = server.post("/api/v1/locks/a/acquire", &json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "LOCK_CONFLICT"));
    let held = &refused.body["holders"][0];
    let left = held["expiresInSeconds"].as_f64().unwrap();
    assert!((1700.0..=1800.0).contains(&left), "{}", refused.body);
    let look = server.get_lock("a").await;
    assert_eq!(held["leaseRef"], look["holders"][0]["leaseRef"]);
    assert!(held.get("leaseId").is_none() && held["leaseRef"] != look["holders"][0]["leaseId"]);
    assert!(refused.body["detail"].as_str().unwrap().contains("Z (in 29m"), "{}", refused.body);
    server.stop().await;
}

#[tokio::test]
async fn a_free_lock_shows_its_last_lease() {
    let server = TestServer::open().await;
    let held = server.post("/api/v1/locks/a/acquire", &json!({ "holder": "ada" })).await.body["lock"].clone();
    assert_eq!(server.get_lock("a").await.get("last"), None);
    let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
    assert_eq!(server.post("/api/v1/locks/a/release", &lease).await.status, 200);
    let look = server.get_lock("a").await;
    assert_eq!((&look["isLocked"], &look["last"]["status"]), (&json!(false), &json!("released")));
    assert_eq!((&look["last"]["holder"], &look["last"]["token"]), (&json!("ada"), &held["token"]));
    server.stop().await;
}

#[tokio::test]
async fn the_default_ttl_is_configurable() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open);
    let server = TestServer::serve(server.default_ttl(Some(Ttl::from_secs(1800))).build(), leasehold).await;
    let ttl = async |body: Value| {
        let name = body["holder"].as_str().unwrap_or("a").to_owned();
        server.post(&format!("/api/v1/locks/{name}/acquire"), &body).await.body["lock"]["ttlSeconds"].clone()
    };
    assert_eq!(ttl(json!({})).await, 1800.0);
    assert_eq!(ttl(json!({ "holder": "b", "ttlSeconds": 20 })).await, 20.0);
    server.post("/api/v1/queues/q/tasks", &json!({ "payload": 1 })).await;
    let leased = server.post("/api/v1/queues/q/lease", &json!({})).await;
    let until: leasehold::model::Timestamp =
        leased.body["tasks"][0]["leaseExpiresAt"].as_str().unwrap().parse().unwrap();
    let left = until.since(server.leasehold.now().await.unwrap());
    assert!(left > Duration::from_mins(25), "{left:?}");
    server.stop().await;
}

/// With an interval of half an hour nothing is recovered in the background; another server with a
/// short interval does it.
#[tokio::test]
async fn the_recovery_interval_is_configurable() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let often = |recover_every| {
        let mut maintenance = Maintenance::default();
        maintenance.recover_every = recover_every;
        Server::builder(leasehold.clone()).access(Access::Open).maintenance(maintenance).build()
    };
    let server = TestServer::serve(often(Duration::from_mins(30)), leasehold.clone()).await;
    server.post("/api/v1/queues/q/tasks", &json!({ "payload": 1 })).await;
    let leased = server.post("/api/v1/queues/q/lease", &json!({ "ttlSeconds": 0.1 })).await;
    let path = format!("/api/v1/tasks/{}", leased.body["tasks"][0]["id"].as_str().unwrap());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.get(&path).await.body["state"], "running", "no recovery has run");
    let other = TestServer::serve(often(Duration::from_millis(50)), leasehold.clone()).await;
    for _ in 0..200 {
        if other.get(&path).await.body["state"] == "pending" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(other.get(&path).await.body["state"], "pending");
    other.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn renewals_are_in_the_history_of_a_server_that_audits_them() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let plain = TestServer::over(leasehold.clone(), Access::Open).await;
    let mut audit = Audit::default();
    audit.renewals = true;
    let server = Server::builder(leasehold.clone()).access(Access::Open).audit(audit).build();
    let audited = TestServer::serve(server, leasehold).await;
    let renewed = async || {
        let history = plain.get("/api/v1/locks/a/history").await.body;
        let events = history["events"].as_array().unwrap_or_else(|| panic!("{history}")).clone();
        events.iter().filter(|event| event["kind"] == "renewed").count()
    };
    let held = plain.post("/api/v1/locks/a/acquire", &json!({})).await.body["lock"].clone();
    let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
    assert_eq!(plain.post("/api/v1/locks/a/renew", &lease).await.status, 200);
    assert_eq!(renewed().await, 0);
    assert_eq!(audited.post("/api/v1/locks/a/renew", &lease).await.status, 200);
    assert_eq!(renewed().await, 1);
    // Also for clients that use the server as their store.
    let client = Leasehold::connect(&audited.base).await.unwrap();
    let (id, token) = (held["leaseId"].as_str().unwrap(), held["token"].to_string());
    client.locks().renew("a", id.parse().unwrap(), token.parse().unwrap(), None).await.unwrap();
    assert_eq!(renewed().await, 2);
    audited.stop().await;
    plain.stop().await;
}

const SETTINGS: &str = "[workflows.deploy]\nrunner = \"external\"\n";

#[tokio::test]
async fn an_execution_records_the_token_that_started_it() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let token = async |name| token_store.create(name, Role::Worker, None).await.unwrap().text;
    let (ada, eve) = (token("ada").await, token("eve").await);
    let server = TestServer::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let post = async |token: &str, path: &str, body: Value| {
        Reply::of(server.request(Method::POST, path).bearer_auth(token).json(&body)).await
    };
    let started_by = async |id: &str| {
        let path = format!("/api/v1/executions/{id}");
        Reply::of(server.request(Method::GET, &path).bearer_auth(&ada)).await.body["startedBy"].clone()
    };
    let start = "/api/v1/workflows/deploy/executions";
    let first = post(&ada, start, json!({ "input": 1 })).await;
    assert_eq!(first.status, 201, "{}", first.body);
    assert_eq!(started_by(first.body["executionId"].as_str().unwrap()).await, "ada");
    assert_eq!(post(&eve, start, json!({ "startedBy": "ada" })).await.status, 400, "there is no such field");
    let refused = post(&eve, start, json!({})).await;
    assert_eq!((refused.status, &refused.body["workflowId"]), (409, &json!("deploy")), "{}", refused.body);
    // A task in the queue of the workflow whose payload names another starter.
    let brief = json!({ "input": { "json": 1 }, "metadata": { "startedBy": "ada" } });
    let added = post(&eve, "/api/v1/queues/workflow%2Fdeploy/tasks", json!({ "payload": brief })).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let id = format!("exec_{}", added.body["task"]["id"].as_str().unwrap());
    assert_eq!(started_by(&id).await, "ada via eve");
    // The same over the store protocol.
    let url = server.base.replace("http://", &format!("http://{eve}@"));
    let client = Leasehold::connect(&url).await.unwrap();
    let claim = leasehold::model::Holder::new("ada").unwrap();
    let start = client.workflow("other").started_by(&claim).start("v1").await.unwrap();
    let id: ExecutionId = start.execution().unwrap().id;
    assert_eq!(started_by(&id.to_string()).await, "ada via eve");
    server.stop().await;
}

#[tokio::test]
async fn a_schedule_over_http_has_jitter() {
    let server = TestServer::open().await;
    let set = async |jitter: f64| {
        let body = json!({ "cron": "@hourly", "queue": "q", "jitterSeconds": jitter });
        Reply::of(server.request(Method::PUT, "/api/v1/schedules/s").json(&body)).await
    };
    let reply = set(30.0).await;
    assert_eq!(
        (reply.status, &reply.body["schedule"]["jitterSeconds"]),
        (200, &json!(30.0)),
        "{}",
        reply.body
    );
    for wrong in [0.0, -1.0, 90_000.0] {
        assert_eq!(set(wrong).await.status, 400, "{wrong}");
    }
    server.stop().await;
}
