//! Explanations of locks, and deadlocks of clients over HTTP.

use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn a_lock_is_explained() {
    let server = TestServer::open().await;
    let codes = |why: &Value| -> Vec<String> {
        why["reasons"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reason| reason["code"].as_str().unwrap().into())
            .collect()
    };
    let free = server.get("/api/v1/locks/db%2Fmain/why").await;
    assert_eq!((free.status, &free.body["name"]), (200, &json!("db/main")), "{}", free.body);
    assert_eq!(codes(&free.body), ["not_held", "never_held", "no_waiter"]);
    let held = server.post("/api/v1/locks/db%2Fmain/acquire", &json!({ "holder": "ada" })).await;
    let token = &held.body["lock"]["token"];
    let waiter = server
        .request(Method::POST, "/api/v1/locks/db%2Fmain/acquire")
        .json(&json!({ "holder": "bob", "waitSeconds": 30 }));
    let waits = tokio::spawn(Reply::of(waiter));
    server.wait_for_waiters("db%2Fmain", 1).await;
    let why = server.get("/api/v1/locks/db%2Fmain/why").await.body;
    assert_eq!(codes(&why), ["held", "not_renewed", "waits", "freed_by"], "{why:#}");
    assert_eq!((&why["reasons"][0]["holder"], &why["reasons"][0]["token"]), (&json!("ada"), token));
    assert_eq!((&why["reasons"][2]["position"], &why["reasons"][2]["behind"]), (&json!(1), &json!("ada")));
    assert_eq!(why["explanation"].as_array().unwrap().len(), 4);
    assert_eq!(why["status"]["holder"], "ada");
    assert_eq!(why["commands"][0]["command"], "leasehold locks wait db/main --for free");
    let lease = json!({ "leaseId": held.body["lock"]["leaseId"], "token": token });
    assert_eq!(server.post("/api/v1/locks/db%2Fmain/release", &lease).await.status, 200);
    assert_eq!(waits.await.unwrap().status, 200);
    server.stop().await;
}

#[tokio::test]
async fn clients_that_wait_for_each_other_are_found() {
    let server = TestServer::open().await;
    let mut references = Vec::new();
    for lock in ["a", "b"] {
        let held = server.post(&format!("/api/v1/locks/{lock}/acquire"), &json!({ "holder": lock })).await;
        assert_eq!(held.status, 200, "{}", held.body);
        references.push(server.get_lock(lock).await["holders"][0]["leaseRef"].clone());
    }
    let none = server.get("/api/v1/deadlocks").await;
    assert_eq!((none.status, &none.body["deadlocks"]), (200, &json!([])), "{}", none.body);
    let within = |lock: &str, reference: &Value, check: bool| {
        server.request(Method::POST, &format!("/api/v1/locks/{lock}/acquire")).json(&json!({
            "holder": format!("waits for {lock}"),
            "waitSeconds": 30,
            "checkDeadlock": check,
            "metadata": { "within": reference },
        }))
    };
    let waits = tokio::spawn(Reply::of(within("b", &references[0], true)));
    server.wait_for_waiters("b", 1).await;
    // The request that closes the ring fails if it checks that, and waits if it does not.
    let refused = Reply::of(within("a", &references[1], true)).await;
    assert_eq!((refused.status, refused.code()), (409, "DEADLOCK"), "{}", refused.body);
    assert!(refused.body["detail"].as_str().unwrap().contains("deadlock of 'a' and 'b'"), "{}", refused.body);
    let closes = tokio::spawn(Reply::of(within("a", &references[1], false)));
    server.wait_for_waiters("a", 1).await;
    let found = server.get("/api/v1/deadlocks").await.body;
    assert_eq!(found["deadlocks"][0]["locks"], json!(["a", "b"]), "{found:#}");
    assert_eq!(found["deadlocks"][0]["waits"][0]["holds"]["leaseRef"], references[1], "{found:#}");
    assert_eq!(found["complete"], true);
    waits.abort();
    closes.abort();
    server.stop().await;
}
