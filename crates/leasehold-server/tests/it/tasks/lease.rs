//! Leasing tasks and waiting for them.

use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use serde_json::{Value, json};

use crate::test_server::TestServer;

const LEASE: &str = "/api/v1/queues/mail/lease";
const ADD: &str = "/api/v1/queues/mail/tasks";
const WORKER: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const OTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

fn worker() -> Value {
    json!({ "id": WORKER, "host": "far", "pid": 7, "version": "9", "queues": ["mail"], "slots": 3 })
}

/// Waits until the worker is listed: from then on its lease request waits for tasks.
async fn wait_for_worker(server: &TestServer, id: &str) {
    loop {
        let listed = server.get("/api/v1/workers").await;
        if listed.body["workers"].as_array().unwrap().iter().any(|worker| worker["id"] == id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_external_worker_leases_tasks_and_is_listed() {
    for server in TestServer::each().await {
        server.post(ADD, &json!([{ "payload": 1 }, { "payload": 2 }, { "payload": 3 }])).await;
        let reply = server.post(LEASE, &json!({ "worker": worker(), "max": 2, "ttlSeconds": 10 })).await;
        assert_eq!((reply.status, &reply.body["worker"]), (200, &json!(WORKER)), "{}", reply.body);
        let tasks = reply.body["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 2);
        assert_eq!((&tasks[0]["state"], &tasks[0]["payload"]), (&json!("running"), &json!(1)));
        assert_eq!(tasks[0]["worker"], WORKER);
        assert!(tasks[0]["token"].as_u64().unwrap() > 0);
        let listed = server.get("/api/v1/workers").await;
        let seen = &listed.body["workers"][0];
        assert_eq!(
            (&seen["host"], &seen["slots"], &seen["state"]),
            (&json!("far"), &json!(3), &json!("alive"))
        );
        assert_eq!(
            server.get(&format!("/api/v1/tasks?worker={WORKER}")).await.body["tasks"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        let reply = server
            .request(reqwest::Method::DELETE, &format!("/api/v1/workers/{WORKER}"))
            .send()
            .await
            .unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(server.get("/api/v1/workers").await.body["workers"], json!([]));
        let bare = server.request(reqwest::Method::POST, LEASE).send().await.unwrap();
        let bare: Value = bare.json().await.unwrap();
        assert_eq!(bare["tasks"][0]["payload"], 3, "{bare}");
        assert_eq!(server.get("/api/v1/workers").await.body["workers"], json!([]));
        server.stop().await;
    }
}

/// With an API token the server leases under another id than that of the request.
#[tokio::test]
async fn a_worker_finds_its_tasks_after_a_lost_response() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    server.use_token(&TokenStore::new(leasehold).create("worker", Role::Worker, None).await.unwrap().text);
    server.post(ADD, &json!([{ "payload": 1 }, { "payload": 2 }])).await;
    let lost = server.post(LEASE, &json!({ "worker": worker() })).await;
    let registered = server.post("/api/v1/tasks/heartbeat", &json!({ "worker": worker() })).await;
    let id = registered.body["worker"].as_str().unwrap_or_else(|| panic!("{}", registered.body));
    let running = server.get(&format!("/api/v1/tasks?queue=mail&state=running&worker={id}")).await;
    assert_eq!(running.body["tasks"], lost.body["tasks"]);
    server.stop().await;
}

#[tokio::test]
async fn a_worker_waits_on_one_server_for_what_is_added_on_another() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let connect = async || Leasehold::connect(&url).await.unwrap();
    let here = TestServer::over(connect().await, Access::Open).await;
    let there = TestServer::over(connect().await, Access::Open).await;
    for (queue, id) in [("new", WORKER), ("known", OTHER)] {
        let lease = format!("/api/v1/queues/{queue}/lease");
        let request = json!({ "worker": { "id": id }, "waitSeconds": 30 });
        let waiting = here.post(&lease, &request);
        let adding = async {
            wait_for_worker(&there, id).await;
            there.post(&format!("/api/v1/queues/{queue}/tasks"), &json!({ "payload": queue })).await;
            Instant::now()
        };
        let (reply, added) = tokio::join!(waiting, adding);
        assert_eq!(reply.body["tasks"][0]["payload"], queue, "{}", reply.body);
        assert!(added.elapsed() < Duration::from_secs(5), "{:?}", added.elapsed());
    }
    here.stop().await;
    there.stop().await;
}

#[tokio::test]
async fn waiting_ends_when_its_time_is_over_and_when_a_scheduled_task_is_due() {
    let server = TestServer::open().await;
    let began = Instant::now();
    let reply = server.post(LEASE, &json!({ "waitSeconds": 0.3 })).await;
    assert_eq!((reply.status, &reply.body["tasks"]), (200, &json!([])));
    assert!(began.elapsed() >= Duration::from_millis(300));
    server.post(ADD, &json!({ "delaySeconds": 0.3 })).await;
    let reply = server.post(LEASE, &json!({ "waitSeconds": 30 })).await;
    assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_disconnected_client_leases_no_task() {
    for server in TestServer::each().await {
        for _ in 0..20 {
            let request = json!({ "waitSeconds": 30 });
            let gone = tokio::time::timeout(Duration::from_millis(20), server.post(LEASE, &request)).await;
            assert!(gone.is_err());
        }
        server.post(ADD, &json!({ "payload": "mine", "maxAttempts": 1 })).await;
        let reply = server.post(LEASE, &json!({ "waitSeconds": 30 })).await;
        assert_eq!(reply.body["tasks"][0]["payload"], "mine", "{}", reply.body);
        assert_eq!(reply.body["tasks"][0]["attempt"], 1);
        server.stop().await;
    }
}

#[tokio::test]
async fn each_task_wakes_one_waiting_worker() {
    let server = TestServer::open().await;
    let wait = async |n: usize| {
        let request = json!({ "waitSeconds": 30 });
        let reply = server.post(LEASE, &request).await;
        assert_eq!(reply.body["tasks"].as_array().unwrap().len(), 1, "waiter {n}: {}", reply.body);
        reply.body["tasks"][0]["payload"].as_u64().unwrap()
    };
    let add = async {
        for n in 0..4 {
            server.post(ADD, &json!({ "payload": n })).await;
        }
    };
    let (a, b, c, d, ()) = tokio::join!(wait(0), wait(1), wait(2), wait(3), add);
    let mut got = [a, b, c, d];
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3]);
}

#[tokio::test]
async fn waiting_workers_are_rejected_when_the_server_stops() {
    let server = TestServer::open().await;
    let request = json!({ "worker": worker(), "waitSeconds": 60 });
    let request = server.request(reqwest::Method::POST, LEASE).json(&request);
    let waiting = tokio::spawn(crate::test_server::Reply::of(request));
    wait_for_worker(&server, WORKER).await;
    let began = Instant::now();
    server.stop().await;
    let reply = waiting.await.unwrap();
    assert_eq!((reply.status, reply.code()), (503, "DRAINING"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_lease_that_runs_out_is_recovered_by_the_server_itself() {
    for server in TestServer::each().await {
        server.post(ADD, &json!({ "payload": 1 })).await;
        let first = server.post(LEASE, &json!({ "ttlSeconds": 0.2 })).await;
        let old = first.body["tasks"][0].clone();
        let second = server.post(LEASE, &json!({ "waitSeconds": 30 })).await;
        let new = &second.body["tasks"][0];
        assert_eq!((&new["id"], &new["attempt"]), (&old["id"], &json!(2)), "{}", second.body);
        let path = format!("/api/v1/tasks/{}/complete", old["id"].as_str().unwrap());
        let late = server.post(&path, &json!({ "token": old["token"], "result": "late" })).await;
        assert_eq!((late.status, late.code()), (409, "LEASE_LOST"));
        assert_eq!(server.post(&path, &json!({ "token": new["token"] })).await.body["state"], "succeeded");
        server.stop().await;
    }
}

/// The task has neither a worker nor a lease expiry any more; the last worker is in another field.
#[tokio::test]
async fn a_recovered_task_has_no_worker_and_names_the_last_one() {
    for server in TestServer::each().await {
        server.post(ADD, &json!({ "payload": 1 })).await;
        let worker = json!({ "id": "01890a5d-ac96-774b-bcce-b302099a8057" });
        let leased = server.post(LEASE, &json!({ "worker": worker, "ttlSeconds": 0.2 })).await.body["tasks"]
            [0]
        .clone();
        assert_eq!((&leased["worker"], leased.get("lastWorker")), (&worker["id"], None), "{leased}");
        let path = format!("/api/v1/tasks/{}", leased["id"].as_str().unwrap());
        let began = Instant::now();
        let task = loop {
            let task = server.get(&path).await.body;
            if task["state"] == "pending" {
                break task;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{task}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!((task.get("worker"), task.get("leaseExpiresAt")), (None, None), "{task}");
        assert_eq!(task["lastWorker"], worker["id"]);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_heartbeat_that_names_no_worker_lists_none() {
    for server in TestServer::each().await {
        server.post(ADD, &json!({ "payload": 1 })).await;
        let leased = server.post(LEASE, &json!({})).await.body["tasks"][0].clone();
        let path = format!("/api/v1/tasks/{}/heartbeat", leased["id"].as_str().unwrap());
        let reply = server.post(&path, &json!({ "token": leased["token"] })).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(server.get("/api/v1/workers").await.body["workers"], json!([]));
        server.stop().await;
    }
}
