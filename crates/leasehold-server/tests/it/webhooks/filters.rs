//! Filters: which events of a sender start the workflow of a trigger.

use reqwest::Method;
use serde_json::{Value, json};

use super::senders::{configured, executions, github, payment};
use crate::test_server::{Reply, TestServer};

const SETTINGS: &str = r#"
[workflows.deploy]
runner = "external"
on_locked = "queue"
[triggers.push]
workflow = "deploy"
scheme = "github"
secrets = ["hush"]
events = ["push", "pull_request.opened"]
branches = ["main", "release/*"]
when = ["$[?$.deleted != true]", "$.repository"]
[triggers.every]
workflow = "deploy"
scheme = "github"
secrets = ["hush"]
[triggers.pings]
workflow = "deploy"
scheme = "github"
secrets = ["hush"]
events = ["ping"]
[triggers.payments]
workflow = "deploy"
scheme = "stripe"
secrets = ["whsec_hush"]
events = ["invoice.*"]
[triggers.plain]
workflow = "deploy"
scheme = "none"
events = ["order.*"]
"#;

/// Sends a GitHub event with a unique body and id.
async fn send(server: &TestServer, trigger: &str, event: &str, mut body: Value) -> Reply {
    let id = uuid::Uuid::now_v7().to_string();
    body["number"] = json!(id);
    let headers = [("x-github-event", event), ("x-github-delivery", id.as_str())];
    github(server, trigger, &headers, &body.to_string()).await
}

fn assert_filtered(reply: &Reply, reason: &str) {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let expected = json!({
        "success": true, "workflow": "deploy", "started": false, "duplicate": false, "state": "filtered", "reason": reason
    });
    assert_eq!(reply.body, expected);
}

fn assert_started(reply: &Reply) {
    assert!([200, 202].contains(&reply.status), "{}", reply.body);
    assert_eq!((&reply.body["started"], &reply.body["duplicate"]), (&json!(true), &json!(false)));
}

/// GitHub sends a ping when the webhook is created.
#[tokio::test]
async fn a_ping_starts_nothing_unless_it_is_listed() {
    let server = configured(SETTINGS).await;
    let ping = json!({ "zen": "Keep it logically awesome.", "hook_id": 1 });
    for trigger in ["every", "push"] {
        let reply = send(&server, trigger, "ping", ping.clone()).await;
        assert_filtered(&reply, "'ping' is a test event, and this trigger does not list it");
    }
    // A ping needs no id.
    let reply = github(&server, "every", &[("x-github-event", "ping")], "{}").await;
    assert_filtered(&reply, "'ping' is a test event, and this trigger does not list it");
    assert_eq!(executions(&server).await, 0);
    assert_started(&send(&server, "pings", "ping", ping).await);
    server.stop().await;
}

#[tokio::test]
async fn events_are_filtered_by_kind_branch_and_body() {
    let server = configured(SETTINGS).await;
    let pushed =
        |branch: &str| json!({ "ref": format!("refs/heads/{branch}"), "repository": {}, "deleted": false });
    assert_started(&send(&server, "push", "push", pushed("main")).await);
    assert_started(&send(&server, "push", "push", pushed("release/1.0")).await);
    let request = |action: &str, base: &str| json!({ "action": action, "pull_request": { "base": { "ref": base } }, "repository": {} });
    assert_started(&send(&server, "push", "pull_request", request("opened", "main")).await);
    assert_eq!(executions(&server).await, 3);
    let reply = send(&server, "push", "pull_request", request("closed", "main")).await;
    assert_filtered(&reply, "event 'pull_request.closed' is not one of this trigger's events");
    let reply = send(&server, "push", "issues", pushed("main")).await;
    assert_filtered(&reply, "event 'issues' is not one of this trigger's events");
    let reply = send(&server, "push", "pull_request", request("opened", "topic")).await;
    assert_filtered(&reply, "branch \"topic\" is not one of this trigger's branches");
    let tag = json!({ "ref": "refs/tags/main", "repository": {} });
    let reply = send(&server, "push", "push", tag).await;
    assert_filtered(&reply, "the event has no branch, and this trigger lists branches");
    let mut gone = pushed("main");
    gone["deleted"] = json!(true);
    let reply = send(&server, "push", "push", gone).await;
    assert_filtered(&reply, "the body does not match condition 1 of this trigger");
    let reply = send(&server, "push", "push", json!({ "ref": "refs/heads/main" })).await;
    assert_filtered(&reply, "the body does not match condition 2 of this trigger");
    let reply = github(&server, "push", &[("x-github-delivery", "guid")], "{}").await;
    assert_filtered(&reply, "the delivery does not name its event, and this trigger lists events");
    assert_eq!(executions(&server).await, 3);
    server.stop().await;
}

#[tokio::test]
async fn other_senders_name_the_event_in_the_body() {
    let server = configured(SETTINGS).await;
    assert_started(&payment(&server, r#"{"id":"evt_1","type":"invoice.paid"}"#, None, 0).await);
    let reply = payment(&server, r#"{"id":"evt_2","type":"charge.refunded"}"#, None, 0).await;
    assert_filtered(&reply, "event 'charge.refunded' is not one of this trigger's events");
    let reply = payment(&server, r#"{"id":"evt_3","type":"v2.core.event_destination.ping"}"#, None, 0).await;
    let reason = "'v2.core.event_destination.ping' is a test event, and this trigger does not list it";
    assert_filtered(&reply, reason);
    let post =
        async |body: Value| Reply::of(server.request(Method::POST, "/api/webhooks/plain").json(&body)).await;
    assert_started(&post(json!({ "type": "order.made" })).await);
    assert_filtered(
        &post(json!({ "type": "ping" })).await,
        "event 'ping' is not one of this trigger's events",
    );
    server.stop().await;
}

/// A filtered event is new if the filter accepts it later.
#[tokio::test]
async fn a_filtered_event_takes_no_key() {
    let server = configured(SETTINGS).await;
    let body = json!({ "ref": "refs/heads/main", "repository": {} }).to_string();
    let of = |event| [("x-github-event", event), ("x-github-delivery", "guid-1")];
    assert_eq!(github(&server, "push", &of("issues"), &body).await.body["state"], "filtered");
    assert_started(&github(&server, "push", &of("push"), &body).await);
    server.stop().await;
}

/// A filter does not bypass the signature.
#[tokio::test]
async fn a_signature_is_checked_before_the_filter() {
    let server = configured(SETTINGS).await;
    let request = server.request(Method::POST, "/api/webhooks/push").body("{}");
    let request = request.header("x-github-event", "ping").header("x-hub-signature-256", "sha256=00");
    let reply = Reply::of(request).await;
    assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"));
    server.stop().await;
}

#[tokio::test]
async fn an_invalid_event_name_is_rejected() {
    let server = configured(SETTINGS).await;
    for body in [r#"{"id":"evt_1","type":"invoice.\u0000"}"#, r#"{"id":"evt\n1","type":"invoice.paid"}"#] {
        let reply = payment(&server, body, None, 0).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    let long = "x".repeat(256);
    let headers = [("x-github-event", long.as_str()), ("x-github-delivery", "guid")];
    assert_eq!(github(&server, "every", &headers, "{}").await.code(), "INVALID");
    let headers = [("x-github-event", "push"), ("x-github-delivery", long.as_str())];
    assert_eq!(github(&server, "every", &headers, "{}").await.code(), "INVALID");
    server.stop().await;
}
