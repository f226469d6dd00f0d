//! Which events of a sender start the workflow of a trigger.

use reqwest::Method;
use serde_json::{Value, json};

use super::senders::{configured, executions, github, payment};
use crate::lab::{Lab, Reply};

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

/// An event of GitHub, each with a body and an id of its own.
async fn send(lab: &Lab, trigger: &str, event: &str, mut body: Value) -> Reply {
    let id = uuid::Uuid::now_v7().to_string();
    body["number"] = json!(id);
    let headers = [("x-github-event", event), ("x-github-delivery", id.as_str())];
    github(lab, trigger, &headers, &body.to_string()).await
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

/// GitHub sends it when the webhook is made.
#[tokio::test]
async fn a_ping_starts_nothing_unless_it_is_listed() {
    let lab = configured(SETTINGS).await;
    let ping = json!({ "zen": "Keep it logically awesome.", "hook_id": 1 });
    for trigger in ["every", "push"] {
        let reply = send(&lab, trigger, "ping", ping.clone()).await;
        assert_filtered(&reply, "'ping' is a test event, and this trigger does not list it");
    }
    // It need not even have an id.
    let reply = github(&lab, "every", &[("x-github-event", "ping")], "{}").await;
    assert_filtered(&reply, "'ping' is a test event, and this trigger does not list it");
    assert_eq!(executions(&lab).await, 0);
    assert_started(&send(&lab, "pings", "ping", ping).await);
    lab.stop().await;
}

#[tokio::test]
async fn events_are_filtered_by_kind_branch_and_body() {
    let lab = configured(SETTINGS).await;
    let pushed =
        |branch: &str| json!({ "ref": format!("refs/heads/{branch}"), "repository": {}, "deleted": false });
    assert_started(&send(&lab, "push", "push", pushed("main")).await);
    assert_started(&send(&lab, "push", "push", pushed("release/1.0")).await);
    let request = |action: &str, base: &str| json!({ "action": action, "pull_request": { "base": { "ref": base } }, "repository": {} });
    assert_started(&send(&lab, "push", "pull_request", request("opened", "main")).await);
    assert_eq!(executions(&lab).await, 3);
    let reply = send(&lab, "push", "pull_request", request("closed", "main")).await;
    assert_filtered(&reply, "event 'pull_request.closed' is not one of this trigger's events");
    let reply = send(&lab, "push", "issues", pushed("main")).await;
    assert_filtered(&reply, "event 'issues' is not one of this trigger's events");
    let reply = send(&lab, "push", "pull_request", request("opened", "topic")).await;
    assert_filtered(&reply, "branch \"topic\" is not one of this trigger's branches");
    let tag = json!({ "ref": "refs/tags/main", "repository": {} });
    let reply = send(&lab, "push", "push", tag).await;
    assert_filtered(&reply, "the event has no branch, and this trigger lists branches");
    let mut gone = pushed("main");
    gone["deleted"] = json!(true);
    let reply = send(&lab, "push", "push", gone).await;
    assert_filtered(&reply, "the body does not fulfil condition 1 of this trigger");
    let reply = send(&lab, "push", "push", json!({ "ref": "refs/heads/main" })).await;
    assert_filtered(&reply, "the body does not fulfil condition 2 of this trigger");
    let reply = github(&lab, "push", &[("x-github-delivery", "guid")], "{}").await;
    assert_filtered(&reply, "the delivery does not name its event, and this trigger lists events");
    assert_eq!(executions(&lab).await, 3);
    lab.stop().await;
}

#[tokio::test]
async fn other_senders_name_the_event_in_the_body() {
    let lab = configured(SETTINGS).await;
    assert_started(&payment(&lab, r#"{"id":"evt_1","type":"invoice.paid"}"#, None, 0).await);
    let reply = payment(&lab, r#"{"id":"evt_2","type":"charge.refunded"}"#, None, 0).await;
    assert_filtered(&reply, "event 'charge.refunded' is not one of this trigger's events");
    let reply = payment(&lab, r#"{"id":"evt_3","type":"v2.core.event_destination.ping"}"#, None, 0).await;
    let reason = "'v2.core.event_destination.ping' is a test event, and this trigger does not list it";
    assert_filtered(&reply, reason);
    let post =
        async |body: Value| Reply::of(lab.request(Method::POST, "/api/webhooks/plain").json(&body)).await;
    assert_started(&post(json!({ "type": "order.made" })).await);
    assert_filtered(
        &post(json!({ "type": "ping" })).await,
        "event 'ping' is not one of this trigger's events",
    );
    lab.stop().await;
}

/// A filter that lets an event pass later on must find it as new as if it had never come.
#[tokio::test]
async fn a_filtered_event_takes_no_key() {
    let lab = configured(SETTINGS).await;
    let body = json!({ "ref": "refs/heads/main", "repository": {} }).to_string();
    let of = |event| [("x-github-event", event), ("x-github-delivery", "guid-1")];
    assert_eq!(github(&lab, "push", &of("issues"), &body).await.body["state"], "filtered");
    assert_started(&github(&lab, "push", &of("push"), &body).await);
    lab.stop().await;
}

/// A filter is no way around the signature.
#[tokio::test]
async fn a_signature_is_checked_before_the_filter() {
    let lab = configured(SETTINGS).await;
    let request = lab.request(Method::POST, "/api/webhooks/push").body("{}");
    let request = request.header("x-github-event", "ping").header("x-hub-signature-256", "sha256=00");
    let reply = Reply::of(request).await;
    assert_eq!((reply.status, reply.code()), (401, "BAD_SIGNATURE"));
    lab.stop().await;
}

#[tokio::test]
async fn an_event_name_that_no_command_could_get_is_refused() {
    let lab = configured(SETTINGS).await;
    for body in [r#"{"id":"evt_1","type":"invoice.\u0000"}"#, r#"{"id":"evt\n1","type":"invoice.paid"}"#] {
        let reply = payment(&lab, body, None, 0).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{body}");
    }
    let long = "x".repeat(256);
    let headers = [("x-github-event", long.as_str()), ("x-github-delivery", "guid")];
    assert_eq!(github(&lab, "every", &headers, "{}").await.code(), "INVALID");
    let headers = [("x-github-event", "push"), ("x-github-delivery", long.as_str())];
    assert_eq!(github(&lab, "every", &headers, "{}").await.code(), "INVALID");
    lab.stop().await;
}
