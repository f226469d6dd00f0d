//! Signatures of deliveries, and that each event starts one execution.

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::json;

use super::senders::{SETTINGS, code, executions, payment, push, server};
use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn an_event_starts_one_execution_however_often_it_is_delivered() {
    let server = server().await;
    let first = push(&server, "push", "guid-1", r#"{"ref":"main"}"#).await;
    assert_eq!((first.status, &first.body["duplicate"]), (200, &json!(false)), "{}", first.body);
    assert_eq!((&first.body["success"], &first.body["state"]), (&json!(true), &json!("pending")));
    let again = push(&server, "push", "guid-1", r#"{"ref":"main"}"#).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    assert_eq!(again.body["executionId"], first.body["executionId"]);
    server.stop().await;
}

#[tokio::test]
async fn an_event_for_a_locked_workflow_does_not_consume_its_key() {
    let server = server().await;
    let first = push(&server, "push", "guid-1", "{}").await;
    let id = first.body["executionId"].as_str().unwrap();
    let locked = push(&server, "push", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((locked.status, locked.code()), (409, "WORKFLOW_LOCKED"));
    assert_eq!(locked.body["title"], "Workflow currently executing");
    assert_eq!(
        locked.body["detail"],
        format!("Only one execution can run at a time. Currently executing: {id}")
    );
    assert_eq!(locked.body["existingExecutionId"], id);
    assert!(locked.headers.contains_key("retry-after"));
    let taken = server.post("/api/v1/workflows/deploy/lease", &json!({})).await;
    let done = json!({ "token": taken.body["execution"]["token"], "state": "succeeded" });
    let done = server.post(&format!("/api/v1/executions/{id}/complete"), &done).await;
    assert_eq!((done.status, &done.body["state"]), (200, &json!("succeeded")), "{}", done.body);
    let retried = push(&server, "push", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((retried.status, &retried.body["duplicate"]), (200, &json!(false)));
    server.stop().await;
}

#[tokio::test]
async fn github_events_are_queued_because_github_does_not_redeliver() {
    let server = server().await;
    assert_eq!(push(&server, "github", "guid-1", "{}").await.status, 200);
    let second = push(&server, "github", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((second.status, &second.body["state"]), (202, &json!("blocked")), "{}", second.body);
    let again = push(&server, "github", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    server.stop().await;
}

#[tokio::test]
async fn a_delivery_with_an_invalid_signature_is_rejected() {
    let server = server().await;
    let post = |value: &str| {
        let request = server.request(Method::POST, "/api/webhooks/push").body("{}");
        Reply::of(request.header("x-hub-signature-256", value.to_owned()))
    };
    let wrong = format!("sha256={}", code("guess", "{}"));
    for value in [wrong.as_str(), "sha256=00", "x", &format!("sha1={}", code("hush", "{}"))] {
        let reply = post(value).await;
        assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"), "{value}");
    }
    let none = Reply::of(server.request(Method::POST, "/api/webhooks/push").body("{}")).await;
    assert_eq!((none.status, none.code()), (401, "BAD_SIGNATURE"));
    let unknown = push(&server, "no-such", "guid-1", "{}").await;
    assert_eq!((unknown.status, unknown.code()), (404, "UNKNOWN_TRIGGER"));
    assert_eq!(server.get("/api/v1/executions").await.body["executions"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn an_old_signature_is_rejected() {
    let server = server().await;
    for off in [-400, 400] {
        let reply = payment(&server, r#"{"id":"evt_1"}"#, None, off).await;
        assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"), "{off}");
    }
    assert_eq!(payment(&server, r#"{"id":"evt_1"}"#, None, -200).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_replayed_delivery_under_another_key_is_the_same_event() {
    let server = server().await;
    let body = r#"{"id":"evt_1"}"#;
    let first = payment(&server, body, Some("one"), 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for key in [Some("two"), None] {
        let replayed = payment(&server, body, key, 0).await;
        assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
        assert_eq!(replayed.body["executionId"], first.body["executionId"]);
    }
    server.stop().await;
}

/// Headers that the scheme does not sign do not identify the event: an intermediary could change them.
#[tokio::test]
async fn a_replayed_delivery_with_a_made_up_id_is_the_same_event() {
    let server = server().await;
    let body = r#"{"id":"evt_1"}"#;
    let first = payment(&server, body, None, 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for header in ["webhook-id", "x-github-delivery"] {
        let time = server.leasehold.now().await.unwrap().as_micros() / 1_000_000;
        let code = code("whsec_hush", &format!("{time}.{body}"));
        let request = server.request(Method::POST, "/api/webhooks/payments").body(body.to_owned());
        let request = request.header("stripe-signature", format!("t={time},v1={code}"));
        let replayed = Reply::of(request.header(header, "made-up").header("idempotency-key", header)).await;
        assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
        assert_eq!(replayed.body["executionId"], first.body["executionId"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let server = server().await;
    let first = payment(&server, r#"{"id":"evt_1"}"#, None, 0).await;
    let other = payment(&server, r#"{"id":"evt_1","amount":7}"#, None, 0).await;
    assert_eq!((other.status, other.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(other.body["existingExecutionId"], first.body["executionId"]);
    // An unsigned header does not identify the event: the other event finds the workflow locked.
    let another = payment(&server, r#"{"id":"evt_2"}"#, Some("\"evt_1\""), 0).await;
    assert_eq!((another.status, another.code()), (409, "WORKFLOW_LOCKED"), "{}", another.body);
    server.stop().await;
}

#[tokio::test]
async fn a_trigger_without_a_signature_requires_a_token() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let post = async |server: &TestServer, body: &str| {
        let request = server.request(Method::POST, "/api/webhooks/plain").body(body.to_owned());
        Reply::of(request.header("content-type", "application/json; charset=utf-8")).await
    };
    assert_eq!(post(&server, "{}").await.code(), "UNAUTHENTICATED");
    // A valid signature needs no token.
    assert_eq!(push(&server, "push", "guid-1", "{}").await.status, 200);
    let token_store = TokenStore::new(leasehold);
    server.use_token(&token_store.create("ada", Role::Reader, None).await.unwrap().text);
    assert_eq!(post(&server, "{}").await.code(), "FORBIDDEN");
    server.use_token(&token_store.create("ci", Role::Worker, None).await.unwrap().text);
    let first = post(&server, r#"{"order":42}"#).await;
    assert_eq!((first.status, &first.body["duplicate"]), (200, &json!(false)), "{}", first.body);
    let skipped = post(&server, r#"{"order":43}"#).await;
    assert_eq!((skipped.status, &skipped.body["state"]), (200, &json!("skipped")));
    assert_eq!(skipped.body["existingExecutionId"], first.body["executionId"]);
    server.stop().await;
}

/// A page of another site can make a browser send text or a form without a preflight request, but
/// not JSON.
#[tokio::test]
async fn a_trigger_without_a_signature_accepts_only_json() {
    let server = server().await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("text/json")] {
        let request = server.request(Method::POST, "/api/webhooks/plain").body(r#"{"order":1}"#);
        let request = kind.into_iter().fold(request, |request, kind| request.header("content-type", kind));
        let reply = Reply::of(request).await;
        assert_eq!((reply.status, reply.code()), (415, "NOT_JSON"), "{kind:?}");
    }
    assert_eq!(executions(&server).await, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_body_is_kept_byte_for_byte() {
    let server = server().await;
    for (number, body) in ["not json", "{\"a\":  1.10}\n", ""].into_iter().enumerate() {
        let reply = push(&server, "github", &format!("guid-{number}"), body).await;
        assert!([200, 202].contains(&reply.status), "{}", reply.body);
        let again = push(&server, "github", &format!("guid-{number}"), body).await;
        assert_eq!(again.body["duplicate"], true);
    }
    let binary = server.request(Method::POST, "/api/webhooks/plain").body(vec![0xff, 0xfe]);
    let reply = Reply::of(binary.header("content-type", "application/json")).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    server.stop().await;
}
