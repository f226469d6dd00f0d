//! Deliveries that come again: what the sender signs decides whether they are the same event.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold::model::Timestamp;
use leasehold::store::Clock;
use leasehold::store::memory::MemoryStore;
use leasehold_server::config::Settings;
use leasehold_server::{Access, Server};
use serde_json::json;

use super::senders::{SETTINGS, configured, executions, github, lab, payment, push};
use crate::lab::{Lab, Reply};

fn assert_same(replayed: &Reply, first: &Reply) {
    assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
    assert_eq!(replayed.body["started"], false);
    assert_eq!(replayed.body["executionId"], first.body["executionId"]);
}

/// GitHub signs the body alone.
#[tokio::test]
async fn a_signed_body_under_another_delivery_id_starts_nothing() {
    let lab = lab().await;
    let body = r#"{"ref":"refs/heads/main","after":"1"}"#;
    let first = push(&lab, "github", "guid-1", body).await;
    assert_eq!(first.body["started"], true, "{}", first.body);
    for delivery in ["guid-2", "guid-3", "guid-1"] {
        assert_same(&push(&lab, "github", delivery, body).await, &first);
    }
    let keyed = [("x-github-delivery", "guid-4"), ("idempotency-key", "another")];
    assert_same(&github(&lab, "github", &keyed, body).await, &first);
    assert_eq!(executions(&lab).await, 1);
    // Another trigger has a memory of its own, and another body is another event.
    assert_eq!(push(&lab, "github", "guid-5", r#"{"after":"2"}"#).await.body["duplicate"], false);
    lab.stop().await;
}

#[tokio::test]
async fn a_delivery_of_github_without_an_id_is_refused() {
    let lab = lab().await;
    for headers in [&[][..], &[("idempotency-key", "mine")], &[("webhook-id", "mine")]] {
        let reply = github(&lab, "github", headers, "{}").await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{headers:?}");
        assert!(reply.body["detail"].as_str().unwrap().contains("x-github-delivery"), "{}", reply.body);
    }
    assert_eq!(executions(&lab).await, 0);
    lab.stop().await;
}

/// All copies at once: the store decides which of them is the first.
#[tokio::test]
async fn copies_that_come_at_once_start_one_execution() {
    let lab = lab().await;
    let ids: Vec<String> = (0..20).map(|number| format!("guid-{number}")).collect();
    let sent = ids.iter().map(|id| push(&lab, "github", id, r#"{"after":"1"}"#));
    let replies = futures_util::future::join_all(sent).await;
    let started = replies.iter().filter(|reply| reply.body["started"] == true).count();
    assert_eq!((started, executions(&lab).await), (1, 1));
    let first = replies.iter().find(|reply| reply.body["started"] == true).unwrap();
    assert!(replies.iter().all(|reply| reply.body["executionId"] == first.body["executionId"]));
    lab.stop().await;
}

/// An event that found the workflow locked has started nothing, and a copy of it is still the same event.
#[tokio::test]
async fn a_refused_event_is_started_by_its_redelivery_alone() {
    let lab = lab().await;
    let first = push(&lab, "push", "guid-1", r#"{"after":"1"}"#).await;
    let id = first.body["executionId"].as_str().unwrap();
    let body = r#"{"after":"2"}"#;
    assert_eq!(push(&lab, "push", "guid-2", body).await.code(), "WORKFLOW_LOCKED");
    let taken = lab.post("/api/v1/workflows/deploy/lease", &json!({})).await;
    let done = json!({ "token": taken.body["execution"]["token"], "state": "succeeded" });
    lab.post(&format!("/api/v1/executions/{id}/complete"), &done).await;
    let copied = push(&lab, "push", "guid-9", body).await;
    assert_eq!(copied.body["started"], true, "{}", copied.body);
    assert_same(&push(&lab, "push", "guid-2", body).await, &copied);
    assert_eq!(executions(&lab).await, 2);
    lab.stop().await;
}

/// Over a store whose time the test moves, with the time that bodies are remembered.
async fn with_memory(memory: &str) -> (Lab, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::with_clock(clock.clone());
    let leasehold = Leasehold::with_store(Arc::new(store)).unwrap();
    let settings = format!("{SETTINGS}[triggers.kept]\nworkflow = \"deploy\"\nscheme = \"github\"\n");
    let settings = format!("{settings}secrets = [\"hush\"]\n{memory}\n");
    let Settings { workflows, triggers, .. } =
        Settings::parse(Path::new("leasehold.toml"), &settings).unwrap();
    let server =
        Server::builder(leasehold.clone()).access(Access::Open).workflows(workflows).triggers(triggers);
    // The time is the test's, and so is what a sweep would do as it passes.
    (Lab::serve(server.without_upkeep().build(), leasehold).await, clock)
}

#[tokio::test]
async fn a_signed_body_is_remembered_for_its_time() {
    for (memory, seconds) in [("", 24 * 3600), ("replay_memory = \"10m\"", 600)] {
        let (lab, clock) = with_memory(memory).await;
        let first = push(&lab, "kept", "guid-1", r#"{"after":"1"}"#).await;
        clock.advance(Duration::from_secs(seconds - 1));
        assert_same(&push(&lab, "kept", "guid-2", r#"{"after":"1"}"#).await, &first);
        clock.advance(Duration::from_secs(2));
        let later = push(&lab, "kept", "guid-3", r#"{"after":"1"}"#).await;
        assert_eq!(later.body["duplicate"], false, "{}", later.body);
        // The id itself is remembered for longer.
        assert_eq!(push(&lab, "kept", "guid-1", r#"{"after":"1"}"#).await.body["duplicate"], true);
        lab.stop().await;
    }
}

/// Small bodies may be the same twice and mean two events.
#[tokio::test]
async fn the_memory_of_bodies_can_be_turned_off() {
    let (lab, _) = with_memory("replay_memory = \"0s\"").await;
    let body = r#"{"action":"requested"}"#;
    assert_eq!(push(&lab, "kept", "guid-1", body).await.body["duplicate"], false);
    assert_eq!(push(&lab, "kept", "guid-2", body).await.body["duplicate"], false);
    assert_eq!(push(&lab, "kept", "guid-2", body).await.body["duplicate"], true);
    lab.stop().await;
}

/// Where the key is in the signed body, a copy has the same key, and nothing else needs to be remembered.
#[tokio::test]
async fn a_key_in_the_signed_body_is_the_key() {
    let settings = "[workflows.deploy]\nrunner = \"external\"\n[triggers.commits]\nworkflow = \"deploy\"\n\
                    scheme = \"github\"\nsecrets = [\"hush\"]\nkey = \"/after\"\n";
    let lab = configured(settings).await;
    let first = push(&lab, "commits", "guid-1", r#"{"after":"1"}"#).await;
    assert_same(&push(&lab, "commits", "guid-2", r#"{"after":"1"}"#).await, &first);
    let shown = lab.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await;
    assert_eq!(shown.body["key"], "commits:1");
    lab.stop().await;
}

/// An event of Stripe has an id in its body. An event without an id is identified by its body.
#[tokio::test]
async fn a_signed_body_without_an_id_starts_once() {
    let lab = lab().await;
    let first = payment(&lab, r#"{"amount":1}"#, None, 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for key in [None, Some("another")] {
        assert_same(&payment(&lab, r#"{"amount":1}"#, key, -1).await, &first);
    }
    lab.stop().await;
}
