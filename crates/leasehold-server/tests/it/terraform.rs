//! The Terraform backend, as its client speaks to it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::{EventKind, LockName, Timestamp};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListEvents};
use leasehold_server::access::TokenDesk;
use leasehold_server::{Access, Role, Server, TerraformOptions};
use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

pub(crate) const ADA: &str = "6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1a001";
pub(crate) const BOB: &str = "6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1a002";

/// What the client sends to lock.
pub(crate) fn info(id: &str) -> Value {
    json!({
        "ID": id, "Operation": "OperationTypeApply", "Info": "", "Who": format!("{}@laptop", &id[33..]),
        "Version": "1.11.4", "Created": "2026-01-02T03:04:05.678Z", "Path": ""
    })
}

pub(crate) fn state(serial: u64) -> Value {
    json!({ "version": 4, "terraform_version": "1.11.4", "serial": serial, "lineage": "l", "outputs": {}, "resources": [] })
}

impl Lab {
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

async fn with_clock() -> (Lab, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let leasehold = Leasehold::with_store(store).unwrap();
    // The time is the test's, and so is what a sweep would do as it passes.
    let server = Server::builder(leasehold.clone()).access(Access::Open).without_upkeep().build();
    (Lab::serve(server, leasehold).await, clock)
}

#[tokio::test]
async fn a_state_is_locked_read_written_and_unlocked() {
    let lab = Lab::open().await;
    assert_eq!(lab.get("/tf/prod").await.status, 404);
    assert_eq!(lab.lock(ADA).await.status, 200);
    assert_eq!(lab.put(ADA, 1).await.status, 200);
    let reply = lab.get("/tf/prod").await;
    assert_eq!((reply.status, &reply.body), (200, &state(1)));
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(lab.unlock(ADA).await.status, 200);
    assert_eq!(lab.tf("DELETE", "/tf/prod", None).await.status, 200);
    assert_eq!(lab.get("/tf/prod").await.code(), "UNKNOWN_STATE");
    // Removing what is not there is no error: the client may send it twice.
    assert_eq!(lab.tf("DELETE", "/tf/prod", None).await.status, 200);
}

#[tokio::test]
async fn a_state_that_is_locked_says_by_whom_in_the_clients_own_words() {
    let lab = Lab::open().await;
    lab.lock(ADA).await;
    let reply = lab.lock(BOB).await;
    assert_eq!((reply.status, &reply.body), (423, &info(ADA)));
    let reply = lab.unlock(BOB).await;
    assert_eq!((reply.status, &reply.body), (409, &info(ADA)));
}

#[tokio::test]
async fn the_lock_is_an_ordinary_lock() {
    let lab = Lab::open().await;
    lab.lock(ADA).await;
    let name = LockName::new("tf/prod").unwrap();
    let status = lab.leasehold.status(&name).await.unwrap();
    let holder = &status.holders[0];
    assert_eq!(holder.holder.as_str(), "001@laptop");
    assert_eq!(holder.lease_id.to_string(), ADA);
    assert!((holder.ttl_seconds - 86_400.0).abs() < 1.0);
    assert_eq!(holder.metadata.get("terraform.operation"), Some("OperationTypeApply"));
    assert!(holder.metadata.get("heartbeat").unwrap().starts_with("none"));

    // And one that somebody else took keeps the client out, and has an ID for it to show.
    let guard = lab.leasehold.lock("tf/other").holder("deployer").reason("release").acquire().await.unwrap();
    let reply = lab.tf("LOCK", "/tf/other", Some(&info(ADA))).await;
    assert_eq!(reply.status, 423);
    assert_eq!((&reply.body["Who"], &reply.body["Info"]), (&json!("deployer"), &json!("release")));
    assert!(!reply.body["ID"].as_str().unwrap().is_empty());
    drop(guard);
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_the_same_answer() {
    let lab = Lab::open().await;
    for _ in 0..3 {
        assert_eq!(lab.lock(ADA).await.status, 200);
    }
    for _ in 0..3 {
        assert_eq!(lab.put(ADA, 1).await.status, 200);
    }
    assert_eq!(lab.get("/tf/prod/history").await.body["versions"].as_array().unwrap().len(), 1);
    assert_eq!(lab.unlock(ADA).await.status, 200);
    assert_eq!(lab.unlock(ADA).await.status, 200);
    lab.lock(BOB).await;
    assert_eq!(lab.unlock(ADA).await.status, 200, "it had been unlocked; that another has it is no matter");
    assert_eq!(lab.lock(ADA).await.status, 423);
}

#[tokio::test]
async fn of_twenty_who_lock_at_once_one_has_it() {
    let lab = Arc::new(Lab::open().await);
    let ids: Vec<_> = (0..20).map(|n| format!("6a0c5bd6-9e56-4a07-8a3a-0f8ad1f1b{n:03}")).collect();
    let tries = ids.iter().map(|id| {
        let (lab, id) = (lab.clone(), id.clone());
        tokio::spawn(async move { (id.clone(), lab.lock(&id).await) })
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
    let lab = Lab::open().await;
    assert_eq!(lab.tf("POST", "/tf/prod", Some(&state(1))).await.status, 200, "nobody has locked it");
    let reply = lab.put(BOB, 2).await;
    assert_eq!((reply.status, reply.code()), (409, "LEASE_LOST"));
    lab.lock(ADA).await;
    assert_eq!(lab.put(BOB, 2).await.code(), "LEASE_LOST");
    let reply = lab.tf("POST", "/tf/prod", Some(&state(2))).await;
    assert_eq!((reply.status, reply.code()), (409, "LOCK_CONFLICT"));
    assert_eq!(lab.tf("DELETE", "/tf/prod", None).await.status, 409);
    assert_eq!(lab.tf("DELETE", &format!("/tf/prod?ID={BOB}"), None).await.status, 409);
    assert_eq!(lab.get("/tf/prod").await.body, state(1));
    lab.unlock(ADA).await;
    assert_eq!(lab.put(ADA, 2).await.code(), "LEASE_LOST");
}

#[tokio::test]
async fn a_lock_lasts_from_each_write_and_then_its_id_writes_no_more() {
    let (lab, clock) = with_clock().await;
    let path = "/tf/prod/lock?ttl=1h";
    assert_eq!(lab.tf("POST", path, Some(&info(ADA))).await.status, 200);
    clock.advance(Duration::from_secs(3500));
    assert_eq!(lab.put(ADA, 1).await.status, 200);
    clock.advance(Duration::from_secs(3500));
    assert_eq!(lab.put(ADA, 2).await.status, 200, "the write before has renewed it");
    clock.advance(Duration::from_secs(3601));
    assert_eq!(lab.put(ADA, 3).await.status, 409);
    assert_eq!(lab.lock(BOB).await.status, 200);
    assert_eq!(lab.put(ADA, 3).await.status, 409);
    assert_eq!(lab.put(BOB, 3).await.status, 200);
    assert_eq!(lab.unlock(ADA).await.status, 200, "its lock is gone, as it wants");
    assert_eq!(lab.lock(ADA).await.status, 423);
}

#[tokio::test]
async fn a_lock_can_be_taken_by_force_by_an_admin_and_that_is_kept() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut lab = Lab::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let desk = TokenDesk::new(leasehold.clone());
    let worker = desk.create("ci", Role::Worker, None).await.unwrap();
    let admin = desk.create("root", Role::Admin, None).await.unwrap();
    lab.use_token(&worker.text);
    lab.lock(ADA).await;
    let only_id = json!({ "ID": ADA, "Operation": "", "Info": "", "Who": "", "Version": "", "Created": "0001-01-01T00:00:00Z", "Path": "" });
    for body in [None, Some(&only_id)] {
        let reply = lab.tf("UNLOCK", "/tf/prod", body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"));
    }
    lab.use_token(&admin.text);
    let wrong = json!({ "ID": BOB, "Who": "" });
    let reply = lab.tf("UNLOCK", "/tf/prod", Some(&wrong)).await;
    assert_eq!((reply.status, &reply.body["ID"]), (409, &json!(ADA)));
    assert_eq!(lab.tf("UNLOCK", "/tf/prod", None).await.status, 200);
    assert_eq!(lab.put(ADA, 1).await.status, 409, "whoever held it writes no more");
    let ask = ListEvents { lock: Some(LockName::new("tf/prod").unwrap()), ..ListEvents::default() };
    let forced = leasehold.history(&ask).await.unwrap().items.remove(0);
    assert_eq!(forced.kind, EventKind::Forced);
    assert_eq!(forced.by.unwrap().as_str(), "root");
    assert_eq!(forced.reason.unwrap().as_str(), "terraform force-unlock");
    assert_eq!(lab.tf("DELETE", "/tf/prod/lock", None).await.status, 200, "there is nothing left to take");
    assert_eq!(lab.unlock(BOB).await.code(), "LOCK_NOT_HELD");
    lab.lock(ADA).await;
    assert_eq!(lab.tf("UNLOCK", "/tf/prod", Some(&only_id)).await.status, 200);
    assert_eq!(lab.lock(BOB).await.status, 200);
}

#[tokio::test]
async fn earlier_versions_are_kept_and_can_be_read() {
    let store = Leasehold::connect("memory:").await.unwrap();
    let options = TerraformOptions { versions: 3, ..TerraformOptions::default() };
    let server = Server::builder(store.clone()).access(Access::Open).terraform(options).build();
    let lab = Lab::serve(server, store.clone()).await;
    assert_eq!(lab.get("/tf/prod/history").await.code(), "UNKNOWN_STATE");
    lab.lock(ADA).await;
    for serial in 1..=6 {
        assert_eq!(lab.put(ADA, serial).await.status, 200);
    }
    let versions = lab.get("/tf/prod/history").await.body["versions"].as_array().unwrap().clone();
    let serials: Vec<_> = versions.iter().map(|version| version["serial"].as_u64().unwrap()).collect();
    assert_eq!(serials, [6, 5, 4, 3]);
    assert_eq!((&versions[0]["current"], &versions[1]["current"]), (&json!(true), &json!(false)));
    assert_eq!(versions[0]["writtenBy"], "anybody");
    assert_eq!(lab.get("/tf/prod/history/4").await.body, state(4));
    let by_id = format!("/tf/prod/history/{}", versions[2]["id"].as_str().unwrap());
    assert_eq!(lab.get(&by_id).await.body, state(4));
    assert_eq!(lab.get("/tf/prod/history/2").await.code(), "UNKNOWN_STATE");
    // What is not kept any more takes up no room.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let engine = store.store();
    let pieces = engine.docs().unwrap().list("\u{1}server/tf-piece/", None, 100).await.unwrap();
    assert_eq!(pieces.items.len(), 4);
    lab.tf("DELETE", &format!("/tf/prod?ID={ADA}"), None).await;
    assert_eq!(lab.get("/tf/prod").await.status, 404);
    assert_eq!(lab.get("/tf/prod/history/6").await.body, state(6));
}

#[tokio::test]
async fn a_large_state_comes_back_as_it_was_and_one_that_is_too_large_is_refused() {
    let store = Leasehold::connect("memory:").await.unwrap();
    let options = TerraformOptions { state_bytes: 3 * 1024 * 1024, ..TerraformOptions::default() };
    let server = Server::builder(store.clone()).access(Access::Open).terraform(options).build();
    let lab = Lab::serve(server, store).await;
    lab.lock(ADA).await;
    let mut large = state(1);
    large["outputs"] = json!({ "x": "ä€".repeat(500_000) });
    let reply = lab.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(lab.get("/tf/prod").await.body, large);
    large["outputs"] = json!({ "x": "ä€".repeat(700_000) });
    let reply = lab.tf("POST", &format!("/tf/prod?ID={ADA}"), Some(&large)).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let lab = Lab::open().await;
    let post = |method: &str, path: &str, body: &'static str| {
        let request = lab.request(Method::from_bytes(method.as_bytes()).unwrap(), path);
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
    // A page of a stranger can send this without asking first.
    let plain = lab.request(Method::POST, "/tf/prod").header("content-type", "text/plain").body("{}");
    assert_eq!(Reply::of(plain).await.code(), "NOT_JSON");
    assert_eq!(lab.tf("PUT", "/tf/prod", None).await.code(), "METHOD_NOT_ALLOWED");
    assert_eq!(lab.tf("GET", "/tf/prod/lock", None).await.code(), "METHOD_NOT_ALLOWED");
    assert_eq!(lab.get("/tf/a/b").await.code(), "UNKNOWN_PATH");
}

#[tokio::test]
async fn the_password_is_a_token_and_a_client_without_one_is_asked_for_it() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let lab = Lab::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let desk = TokenDesk::new(leasehold);
    let reply = lab.lock(ADA).await;
    assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"));
    assert!(reply.headers["www-authenticate"].to_str().unwrap().starts_with("Basic"));
    let worker = desk.create("ci", Role::Worker, None).await.unwrap().text;
    let reader = desk.create("eye", Role::Reader, None).await.unwrap().text;
    let lock = |password: String| {
        let request = lab.request(Method::from_bytes(b"LOCK").unwrap(), "/tf/a%2Fb");
        Reply::of(request.basic_auth("terraform", Some(password)).json(&info(ADA)))
    };
    assert_eq!(lock(worker).await.status, 200);
    assert_eq!(lock(reader.clone()).await.status, 403);
    // A state may have secrets in it.
    let read = lab.request(Method::GET, "/tf/a%2Fb").basic_auth("x", Some(reader));
    assert_eq!(Reply::of(read).await.status, 403);
    let status = lab.leasehold.status(&LockName::new("tf/a/b").unwrap()).await.unwrap();
    assert_eq!(status.holders[0].metadata.get("user"), Some("ci"));
}
