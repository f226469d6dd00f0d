//! The Terraform backend, with the requests of its client.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{EventKind, LockName, Timestamp, Ttl};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListEvents};
use leasehold::testing::{Fault, FaultyStore};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server, TerraformOptions};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

pub(crate) const ADA: &str = "6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1a001";
pub(crate) const BOB: &str = "6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1a002";

/// Returns the `LockInfo` that the client sends.
pub(crate) fn info(id: &str) -> Value {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": format!("{}@laptop", &id[33..]),
        "Version": "1.11.4", "Created": "2026-01-02T03:04:05.678Z", "Path": ""
    })
}

pub(crate) fn state(serial: u64) -> Value {
    json!({ "version": 4, "terraform_version": "1.11.4", "serial": serial, "lineage": "l", "outputs": {}, "resources": [] })
}

impl TestServer {
    pub(crate) async fn tf(&self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let request = self.request(Method::from_bytes(method.as_bytes()).unwrap(), path);
        Reply::of(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    pub(crate) async fn lock(&self, id: &str) -> Reply {
        self.tf("LOCK", "/tf/prod", Some(&info(id))).await
    }

    pub(crate) async fn unlock(&self, id: &str) -> Reply {
        self.tf("UNLOCK", "/tf/prod", Some(&info(id))).await
    }

    pub(crate) async fn put(&self, id: &str, serial: u64) -> Reply {
        self.tf("POST", &format!("/tf/prod?ID={id}"), Some(&state(serial))).await
    }
}

/// Waits until the store has this number of chunks of states.
pub(crate) async fn wait_for_chunks(leasehold: &Leasehold, wanted: usize) {
    let store = leasehold.store();
    let docs = store.documents().unwrap();
    let mut found = 0;
    for _ in 0..2_000 {
        found = docs.list("\u{1}server/tf-chunk/", None, 100).await.unwrap().items.len();
        if found == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store has {found} chunks, not {wanted}");
}

async fn with_clock() -> (TestServer, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let leasehold = Leasehold::with_store(store).unwrap();
    // Without maintenance, because the test controls the clock.
    let server = Server::builder(leasehold.clone()).access(Access::Open).without_maintenance().build();
    (TestServer::serve(server, leasehold).await, clock)
}

#[tokio::test]
async fn a_state_is_locked_read_written_and_unlocked() {
    let server = TestServer::open().await;
    assert_eq!(server.get("/tf/prod").await.status, 404);
    assert_eq!(server.lock(ADA).await.status, 200);
    assert_eq!(server.put(ADA, 1).await.status, 200);
    let reply = server.get("/tf/prod").await;
    assert_eq!((reply.status, &reply.body), (200, &state(1)));
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(server.unlock(ADA).await.status, 200);
    assert_eq!(server.tf("DELETE", "/tf/prod", None).await.status, 200);
    assert_eq!(server.get("/tf/prod").await.code(), "UNKNOWN_STATE");
    // Deleting a missing state succeeds, because the client may repeat the request.
    assert_eq!(server.tf("DELETE", "/tf/prod", None).await.status, 200);
}

#[tokio::test]
async fn a_locked_state_returns_the_lock_info_of_its_holder() {
    let server = TestServer::open().await;
    server.lock(ADA).await;
    let reply = server.lock(BOB).await;
    assert_eq!((reply.status, &reply.body), (423, &info(ADA)));
    let reply = server.unlock(BOB).await;
    assert_eq!((reply.status, &reply.body), (409, &info(ADA)));
}

#[tokio::test]
async fn the_lock_is_an_ordinary_lock() {
    let server = TestServer::open().await;
    server.lock(ADA).await;
    let name = LockName::new("tf/prod").unwrap();
    let status = server.leasehold.locks().status(&name).await.unwrap();
    let holder = &status.holders[0];
    assert_eq!(holder.holder.as_str(), "001@laptop");
    assert_eq!(holder.lease_id.to_string(), ADA);
    assert!((holder.ttl_seconds - 86_400.0).abs() < 1.0);
    assert_eq!(holder.metadata.get("terraform.operation"), Some("OperationTypeApply"));
    assert!(holder.metadata.get("heartbeat").unwrap().starts_with("none"));

    // A lock of another holder keeps the client out and has an ID for it to display.
    let guard =
        server.leasehold.lock("tf/other").holder("deployer").reason("release").acquire().await.unwrap();
    let reply = server.tf("LOCK", "/tf/other", Some(&info(ADA))).await;
    assert_eq!(reply.status, 423);
    assert_eq!((&reply.body["Who"], &reply.body["Info"]), (&json!("deployer"), &json!("release")));
    assert!(!reply.body["ID"].as_str().unwrap().is_empty());
    drop(guard);
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_the_same_answer() {
    let server = TestServer::open().await;
    for _ in 0..3 {
        assert_eq!(server.lock(ADA).await.status, 200);
    }
    for _ in 0..3 {
        assert_eq!(server.put(ADA, 1).await.status, 200);
    }
    assert_eq!(server.get("/tf/prod/history").await.body["versions"].as_array().unwrap().len(), 1);
    assert_eq!(server.unlock(ADA).await.status, 200);
    assert_eq!(server.unlock(ADA).await.status, 200);
    server.lock(BOB).await;
    assert_eq!(
        server.unlock(ADA).await.status,
        200,
        "it had been unlocked; that another has it is no matter"
    );
    assert_eq!(server.lock(ADA).await.status, 423);
}

/// The store has granted the lock, and the client receives an error: it does not know that it holds the lock.
#[tokio::test]
async fn a_lock_whose_answer_was_lost_is_withdrawn() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()));
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).without_maintenance().build();
    let server = TestServer::serve(server, leasehold).await;
    // The first withdrawal is lost, too.
    store.plan([Fault::LoseAnswer, Fault::LoseRequest]);
    let reply = server.lock(ADA).await;
    assert_eq!((reply.status, reply.code()), (503, "STORE_UNAVAILABLE"));
    assert_eq!(server.lock(BOB).await.status, 200, "nobody holds the lock for a day");
}

#[tokio::test]
async fn one_of_twenty_concurrent_locks_succeeds() {
    let server = Arc::new(TestServer::open().await);
    let ids: Vec<_> = (0..20).map(|n| format!("6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1b{n:03}")).collect();
    let tries = ids.iter().map(|id| {
        let (server, id) = (server.clone(), id.clone());
        tokio::spawn(async move { (id.clone(), server.lock(&id).await) })
    });
    let mut replies = Vec::new();
    for task in tries.collect::<Vec<_>>() {
        replies.push(task.await.unwrap());
    }
    let won: Vec<_> = replies.iter().filter(|(_, reply)| reply.status == 200).collect();
    assert_eq!(won.len(), 1);
    for (_, reply) in replies.iter().filter(|(_, reply)| reply.status != 200) {
        assert_eq!((reply.status, &reply.body["ID"]), (423, &json!(won[0].0)));
    }
}

#[tokio::test]
async fn only_the_id_that_holds_the_lock_can_write() {
    let server = TestServer::open().await;
    assert_eq!(server.tf("POST", "/tf/prod", Some(&state(1))).await.status, 200, "the state is not locked");
    let reply = server.put(BOB, 2).await;
    assert_eq!((reply.status, reply.code()), (409, "LEASE_LOST"));
    server.lock(ADA).await;
    assert_eq!(server.put(BOB, 2).await.code(), "LEASE_LOST");
    let reply = server.tf("POST", "/tf/prod", Some(&state(2))).await;
    assert_eq!((reply.status, reply.code()), (409, "LOCK_CONFLICT"));
    assert_eq!(server.tf("DELETE", "/tf/prod", None).await.status, 409);
    assert_eq!(server.tf("DELETE", &format!("/tf/prod?ID={BOB}"), None).await.status, 409);
    assert_eq!(server.get("/tf/prod").await.body, state(1));
    server.unlock(ADA).await;
    assert_eq!(server.put(ADA, 2).await.code(), "LEASE_LOST");
}

#[tokio::test]
async fn each_write_renews_the_lock_until_it_expires() {
    let (server, clock) = with_clock().await;
    let path = "/tf/prod/lock?ttl=1h";
    assert_eq!(server.tf("POST", path, Some(&info(ADA))).await.status, 200);
    clock.advance(Duration::from_secs(3500));
    assert_eq!(server.put(ADA, 1).await.status, 200);
    clock.advance(Duration::from_secs(3500));
    assert_eq!(server.put(ADA, 2).await.status, 200, "the write before has renewed it");
    clock.advance(Duration::from_secs(3601));
    assert_eq!(server.put(ADA, 3).await.status, 409);
    assert_eq!(server.lock(BOB).await.status, 200);
    assert_eq!(server.put(ADA, 3).await.status, 409);
    assert_eq!(server.put(BOB, 3).await.status, 200);
    assert_eq!(server.unlock(ADA).await.status, 200, "its lock is gone, as it wants");
    assert_eq!(server.lock(ADA).await.status, 423);
}

#[tokio::test]
async fn a_state_whose_lock_was_forgotten_can_be_written_without_a_lock() {
    let (server, clock) = with_clock().await;
    server.lock(ADA).await;
    assert_eq!(server.put(ADA, 1).await.status, 200);
    assert_eq!(server.unlock(ADA).await.status, 200);
    clock.advance(Duration::from_hours(25));
    assert_ne!(server.leasehold.locks().forget_idle(Ttl::from_secs(24 * 3600), 10).await.unwrap(), 0);
    let reply = server.tf("POST", "/tf/prod", Some(&state(2))).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(server.get("/tf/prod").await.body, state(2));
    assert_eq!(server.lock(BOB).await.status, 200);
    assert_eq!(server.tf("POST", "/tf/prod", Some(&state(3))).await.code(), "LOCK_CONFLICT");
    assert_eq!(server.put(BOB, 3).await.status, 200);
    assert_eq!(server.unlock(BOB).await.status, 200);
    clock.advance(Duration::from_hours(25));
    assert_ne!(server.leasehold.locks().forget_idle(Ttl::from_secs(24 * 3600), 10).await.unwrap(), 0);
    assert_eq!(server.tf("DELETE", "/tf/prod", None).await.status, 200);
    assert_eq!(server.get("/tf/prod").await.status, 404);
}

#[tokio::test]
async fn an_admin_can_unlock_by_force_and_it_is_recorded() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token_store = TokenStore::new(leasehold.clone());
    let worker = token_store.create("ci", Role::Worker, None).await.unwrap();
    let admin = token_store.create("root", Role::Admin, None).await.unwrap();
    server.use_token(&worker.text);
    server.lock(ADA).await;
    let only_id = json!({ "ID": ADA, "Operation": "", "Info": "", "Who": "", "Version": "", "Created": "0001-01-01T00:00:00Z", "Path": "" });
    for body in [None, Some(&only_id)] {
        let reply = server.tf("UNLOCK", "/tf/prod", body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"));
    }
    server.use_token(&admin.text);
    let wrong = json!({ "ID": BOB, "Who": "" });
    let reply = server.tf("UNLOCK", "/tf/prod", Some(&wrong)).await;
    assert_eq!((reply.status, &reply.body["ID"]), (409, &json!(ADA)));
    assert_eq!(server.tf("UNLOCK", "/tf/prod", None).await.status, 200);
    assert_eq!(server.put(ADA, 1).await.status, 409, "the former holder must not write");
    let query = ListEvents::default().lock(LockName::new("tf/prod").unwrap());
    let forced = leasehold.locks().history(&query).await.unwrap().items.remove(0);
    assert_eq!(forced.kind, EventKind::Forced);
    assert_eq!(forced.by.unwrap().as_str(), "root");
    assert_eq!(forced.reason.unwrap().as_str(), "terraform force-unlock");
    assert_eq!(server.tf("DELETE", "/tf/prod/lock", None).await.status, 200, "there is nothing left to take");
    assert_eq!(server.unlock(BOB).await.code(), "LOCK_NOT_HELD");
    server.lock(ADA).await;
    assert_eq!(server.tf("UNLOCK", "/tf/prod", Some(&only_id)).await.status, 200);
    assert_eq!(server.lock(BOB).await.status, 200);
}

#[tokio::test]
async fn earlier_versions_are_kept_and_can_be_read() {
    let store = Leasehold::connect("memory:").await.unwrap();
    let mut options = TerraformOptions::default();
    options.versions = 3;
    let server = Server::builder(store.clone()).access(Access::Open).terraform(options).build();
    let server = TestServer::serve(server, store.clone()).await;
    assert_eq!(server.get("/tf/prod/history").await.code(), "UNKNOWN_STATE");
    server.lock(ADA).await;
    for serial in 1..=6 {
        assert_eq!(server.put(ADA, serial).await.status, 200);
    }
    let versions = server.get("/tf/prod/history").await.body["versions"].as_array().unwrap().clone();
    let serials: Vec<_> = versions.iter().map(|version| version["serial"].as_u64().unwrap()).collect();
    assert_eq!(serials, [6, 5, 4, 3]);
    assert_eq!((&versions[0]["current"], &versions[1]["current"]), (&json!(true), &json!(false)));
    assert_eq!(versions[0]["writtenBy"], "anybody");
    assert_eq!(server.get("/tf/prod/history/4").await.body, state(4));
    let by_id = format!("/tf/prod/history/{}", versions[2]["id"].as_str().unwrap());
    assert_eq!(server.get(&by_id).await.body, state(4));
    assert_eq!(server.get("/tf/prod/history/2").await.code(), "UNKNOWN_STATE");
    // Chunks of pruned versions are deleted.
    wait_for_chunks(&store, 4).await;
    server.tf("DELETE", &format!("/tf/prod?ID={ADA}"), None).await;
    assert_eq!(server.get("/tf/prod").await.status, 404);
    assert_eq!(server.get("/tf/prod/history/6").await.body, state(6));
}

#[tokio::test]
async fn a_large_state_comes_back_as_it_was_and_one_that_is_too_large_is_refused() {
    let store = Leasehold::connect("memory:").await.unwrap();
    let mut options = TerraformOptions::default();
    options.state_bytes = 3 * 1024 * 1024;
    let server = Server::builder(store.clone()).access(Access::Open).terraform(options).build();
    let server = TestServer::serve(server, store).await;
    server.lock(ADA).await;
    let mut large = state(1);
    large["outputs"] = json!({ "x": "ä€".repeat(500_000) });
    let reply = server.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(server.get("/tf/prod").await.body, large);
    large["outputs"] = json!({ "x": "ä€".repeat(700_000) });
    let reply = server.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE"));
}

#[tokio::test]
async fn invalid_terraform_requests_are_rejected() {
    let server = TestServer::open().await;
    let post = |method: &str, path: &str, body: &'static str| {
        let request = server.request(Method::from_bytes(method.as_bytes()).unwrap(), path);
        Reply::of(request.header("content-type", "application/json").body(body))
    };
    for (method, path, body) in [
        ("LOCK", "/tf/prod", "nonsense"),
        ("LOCK", "/tf/prod", "{}"),
        ("LOCK", "/tf/prod", r#"{"ID":""}"#),
        ("LOCK", "/tf/prod?ttl=soon", r#"{"ID":"a"}"#),
        ("LOCK", "/tf/prod?ttl=0s", r#"{"ID":"a"}"#),
        ("LOCK", "/tf/prod?tll=1h", r#"{"ID":"a"}"#),
        ("LOCK", "/tf/a%0Ab", r#"{"ID":"a"}"#),
        ("UNLOCK", "/tf/prod", r#"{"ID":"","Who":"x"}"#),
        ("POST", "/tf/prod", "not a state"),
        ("POST", "/tf/prod", "[1]"),
        ("POST", "/tf/prod", r#"{"serial":"one"}"#),
    ] {
        let reply = post(method, path, body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{method} {path} {body}");
    }
    // A page of another site can send this without a preflight request.
    let plain = server.request(Method::POST, "/tf/prod").header("content-type", "text/plain").body("{}");
    assert_eq!(Reply::of(plain).await.code(), "NOT_JSON");
    assert_eq!(server.tf("PUT", "/tf/prod", None).await.code(), "METHOD_NOT_ALLOWED");
    assert_eq!(server.tf("GET", "/tf/prod/lock", None).await.code(), "METHOD_NOT_ALLOWED");
    assert_eq!(server.get("/tf/a/b").await.code(), "UNKNOWN_PATH");
}

#[tokio::test]
async fn the_password_is_a_token_and_is_required() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token_store = TokenStore::new(leasehold);
    let reply = server.lock(ADA).await;
    assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"));
    assert!(reply.headers["www-authenticate"].to_str().unwrap().starts_with("Basic"));
    let worker = token_store.create("ci", Role::Worker, None).await.unwrap().text;
    let reader = token_store.create("eye", Role::Reader, None).await.unwrap().text;
    let lock = |password: String| {
        let request = server.request(Method::from_bytes(b"LOCK").unwrap(), "/tf/a%2Fb");
        Reply::of(request.basic_auth("terraform", Some(password)).json(&info(ADA)))
    };
    assert_eq!(lock(worker).await.status, 200);
    assert_eq!(lock(reader.clone()).await.status, 403);
    // A state may contain secrets.
    let read = server.request(Method::GET, "/tf/a%2Fb").basic_auth("x", Some(reader));
    assert_eq!(Reply::of(read).await.status, 403);
    let status = server.leasehold.locks().status(&LockName::new("tf/a/b").unwrap()).await.unwrap();
    assert_eq!(status.holders[0].metadata.get("user"), Some("ci"));
}
