//! Which deliveries are believed, and that each event starts one execution.

use leasehold::Leasehold;
use leasehold_server::access::TokenDesk;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::json;

use super::senders::{SETTINGS, code, executions, lab, payment, push};
use crate::lab::{Lab, Reply};

#[tokio::test]
async fn an_event_starts_one_execution_however_often_it_is_delivered() {
    let lab = lab().await;
    let first = push(&lab, "push", "guid-1", r#"{"ref":"main"}"#).await;
    assert_eq!((first.status, &first.body["duplicate"]), (200, &json!(false)), "{}", first.body);
    assert_eq!((&first.body["success"], &first.body["state"]), (&json!(true), &json!("pending")));
    let again = push(&lab, "push", "guid-1", r#"{"ref":"main"}"#).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    assert_eq!(again.body["executionId"], first.body["executionId"]);
    lab.stop().await;
}

#[tokio::test]
async fn another_event_finds_the_workflow_locked_and_its_key_is_not_burnt() {
    let lab = lab().await;
    let first = push(&lab, "push", "guid-1", "{}").await;
    let id = first.body["executionId"].as_str().unwrap();
    let locked = push(&lab, "push", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((locked.status, locked.code()), (409, "WORKFLOW_LOCKED"));
    assert_eq!(locked.body["title"], "Workflow currently executing");
    assert_eq!(
        locked.body["detail"],
        format!("Only one execution can run at a time. Currently executing: {id}")
    );
    assert_eq!(locked.body["existingExecutionId"], id);
    assert!(locked.headers.contains_key("retry-after"));
    let taken = lab.post("/api/v1/workflows/deploy/lease", &json!({})).await;
    let done = json!({ "token": taken.body["execution"]["token"], "state": "succeeded" });
    let done = lab.post(&format!("/api/v1/executions/{id}/complete"), &done).await;
    assert_eq!((done.status, &done.body["state"]), (200, &json!("succeeded")), "{}", done.body);
    let retried = push(&lab, "push", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((retried.status, &retried.body["duplicate"]), (200, &json!(false)));
    lab.stop().await;
}

#[tokio::test]
async fn events_of_github_wait_as_it_does_not_deliver_again() {
    let lab = lab().await;
    assert_eq!(push(&lab, "github", "guid-1", "{}").await.status, 200);
    let second = push(&lab, "github", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((second.status, &second.body["state"]), (202, &json!("blocked")), "{}", second.body);
    let again = push(&lab, "github", "guid-2", r#"{"a":1}"#).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)));
    lab.stop().await;
}

#[tokio::test]
async fn who_does_not_sign_as_it_should_is_not_believed() {
    let lab = lab().await;
    let post = |value: &str| {
        let request = lab.request(Method::POST, "/api/webhooks/push").body("{}");
        Reply::of(request.header("x-hub-signature-256", value.to_owned()))
    };
    let wrong = format!("sha256={}", code("guess", "{}"));
    for value in [wrong.as_str(), "sha256=00", "x", &format!("sha1={}", code("hush", "{}"))] {
        let reply = post(value).await;
        assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"), "{value}");
    }
    let none = Reply::of(lab.request(Method::POST, "/api/webhooks/push").body("{}")).await;
    assert_eq!((none.status, none.code()), (401, "BAD_SIGNATURE"));
    let unknown = push(&lab, "no-such", "guid-1", "{}").await;
    assert_eq!((unknown.status, unknown.code()), (404, "UNKNOWN_TRIGGER"));
    assert_eq!(lab.get("/api/v1/executions").await.body["executions"], json!([]));
    lab.stop().await;
}

#[tokio::test]
async fn what_was_signed_too_long_ago_is_not_believed() {
    let lab = lab().await;
    for off in [-400, 400] {
        let reply = payment(&lab, r#"{"id":"evt_1"}"#, None, off).await;
        assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"), "{off}");
    }
    assert_eq!(payment(&lab, r#"{"id":"evt_1"}"#, None, -200).await.status, 200);
    lab.stop().await;
}

#[tokio::test]
async fn a_replayed_delivery_under_another_key_is_the_same_event() {
    let lab = lab().await;
    let body = r#"{"id":"evt_1"}"#;
    let first = payment(&lab, body, Some("one"), 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for key in [Some("two"), None] {
        let replayed = payment(&lab, body, key, 0).await;
        assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
        assert_eq!(replayed.body["executionId"], first.body["executionId"]);
    }
    lab.stop().await;
}

/// What a sender of this scheme does not sign says nothing about the event: an intermediary could change it.
#[tokio::test]
async fn a_replayed_delivery_with_a_made_up_id_is_the_same_event() {
    let lab = lab().await;
    let body = r#"{"id":"evt_1"}"#;
    let first = payment(&lab, body, None, 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for header in ["webhook-id", "x-github-delivery"] {
        let time = lab.leasehold.now().await.unwrap().as_micros() / 1_000_000;
        let code = code("whsec_hush", &format!("{time}.{body}"));
        let request = lab.request(Method::POST, "/api/webhooks/payments").body(body.to_owned());
        let request = request.header("stripe-signature", format!("t={time},v1={code}"));
        let replayed = Reply::of(request.header(header, "made-up").header("idempotency-key", header)).await;
        assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
        assert_eq!(replayed.body["executionId"], first.body["executionId"]);
    }
    lab.stop().await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let lab = lab().await;
    let first = payment(&lab, r#"{"id":"evt_1"}"#, None, 0).await;
    let other = payment(&lab, r#"{"id":"evt_1","amount":7}"#, None, 0).await;
    assert_eq!((other.status, other.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
    assert_eq!(other.body["existingExecutionId"], first.body["executionId"]);
    // A header that is not signed does not make another event the same: it only finds the workflow locked.
    let another = payment(&lab, r#"{"id":"evt_2"}"#, Some("\"evt_1\""), 0).await;
    assert_eq!((another.status, another.code()), (409, "WORKFLOW_LOCKED"), "{}", another.body);
    lab.stop().await;
}

#[tokio::test]
async fn a_trigger_without_a_signature_wants_a_token() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut lab = Lab::configured(leasehold.clone(), Access::Tokens(Vec::new()), SETTINGS).await;
    let post = async |lab: &Lab, body: &str| {
        let request = lab.request(Method::POST, "/api/webhooks/plain").body(body.to_owned());
        Reply::of(request.header("content-type", "application/json; charset=utf-8")).await
    };
    assert_eq!(post(&lab, "{}").await.code(), "UNAUTHENTICATED");
    // A signature is enough where there is one.
    assert_eq!(push(&lab, "push", "guid-1", "{}").await.status, 200);
    let desk = TokenDesk::new(leasehold);
    lab.use_token(&desk.create("ada", Role::Reader, None).await.unwrap().text);
    assert_eq!(post(&lab, "{}").await.code(), "FORBIDDEN");
    lab.use_token(&desk.create("ci", Role::Worker, None).await.unwrap().text);
    let first = post(&lab, r#"{"order":42}"#).await;
    assert_eq!((first.status, &first.body["duplicate"]), (200, &json!(false)), "{}", first.body);
    let skipped = post(&lab, r#"{"order":43}"#).await;
    assert_eq!((skipped.status, &skipped.body["state"]), (200, &json!("skipped")));
    assert_eq!(skipped.body["existingExecutionId"], first.body["executionId"]);
    lab.stop().await;
}

/// A page of another site can make a browser send a text or a form, but not JSON, without asking first.
#[tokio::test]
async fn a_trigger_without_a_signature_takes_json_alone() {
    let lab = lab().await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("text/json")] {
        let request = lab.request(Method::POST, "/api/webhooks/plain").body(r#"{"order":1}"#);
        let request = kind.into_iter().fold(request, |request, kind| request.header("content-type", kind));
        let reply = Reply::of(request).await;
        assert_eq!((reply.status, reply.code()), (415, "NOT_JSON"), "{kind:?}");
    }
    assert_eq!(executions(&lab).await, 0);
    lab.stop().await;
}

#[tokio::test]
async fn a_body_is_kept_byte_for_byte() {
    let lab = lab().await;
    for (number, body) in ["not json", "{\"a\":  1.10}\n", ""].into_iter().enumerate() {
        let reply = push(&lab, "github", &format!("guid-{number}"), body).await;
        assert!([200, 202].contains(&reply.status), "{}", reply.body);
        let again = push(&lab, "github", &format!("guid-{number}"), body).await;
        assert_eq!(again.body["duplicate"], true);
    }
    let binary = lab.request(Method::POST, "/api/webhooks/plain").body(vec![0xff, 0xfe]);
    let reply = Reply::of(binary.header("content-type", "application/json")).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    lab.stop().await;
}
