//! Repeated deliveries: the signed parts decide whether they are the same event.

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

use super::senders::{SETTINGS, configured, executions, github, payment, push, server};
use crate::test_server::{Reply, TestServer};

fn assert_same(replayed: &Reply, first: &Reply) {
    assert_eq!((replayed.status, &replayed.body["duplicate"]), (200, &json!(true)), "{}", replayed.body);
    assert_eq!(replayed.body["started"], false);
    assert_eq!(replayed.body["executionId"], first.body["executionId"]);
}

/// GitHub signs only the body.
#[tokio::test]
async fn a_signed_body_under_another_delivery_id_starts_nothing() {
    let server = server().await;
    let body = r#"{"ref":"refs/heads/main","after":"1"}"#;
    let first = push(&server, "github", "guid-1", body).await;
    assert_eq!(first.body["started"], true, "{}", first.body);
    for delivery in ["guid-2", "guid-3", "guid-1"] {
        assert_same(&push(&server, "github", delivery, body).await, &first);
    }
    let keyed = [("x-github-delivery", "guid-4"), ("idempotency-key", "another")];
    assert_same(&github(&server, "github", &keyed, body).await, &first);
    assert_eq!(executions(&server).await, 1);
    // Another body is another event.
    assert_eq!(push(&server, "github", "guid-5", r#"{"after":"2"}"#).await.body["duplicate"], false);
    server.stop().await;
}

#[tokio::test]
async fn a_github_delivery_without_an_id_is_rejected() {
    let server = server().await;
    for headers in [&[][..], &[("idempotency-key", "mine")], &[("webhook-id", "mine")]] {
        let reply = github(&server, "github", headers, "{}").await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{headers:?}");
        assert!(reply.body["detail"].as_str().unwrap().contains("x-github-delivery"), "{}", reply.body);
    }
    assert_eq!(executions(&server).await, 0);
    server.stop().await;
}

/// All copies at once: the store decides which one is the first.
#[tokio::test]
async fn concurrent_copies_start_one_execution() {
    let server = server().await;
    let ids: Vec<String> = (0..20).map(|number| format!("guid-{number}")).collect();
    let sent = ids.iter().map(|id| push(&server, "github", id, r#"{"after":"1"}"#));
    let replies = futures_util::future::join_all(sent).await;
    let started = replies.iter().filter(|reply| reply.body["started"] == true).count();
    assert_eq!((started, executions(&server).await), (1, 1));
    let first = replies.iter().find(|reply| reply.body["started"] == true).unwrap();
    assert!(replies.iter().all(|reply| reply.body["executionId"] == first.body["executionId"]));
    server.stop().await;
}

/// An event that found the workflow locked has started nothing, and a copy of it is still the same
/// event.
#[tokio::test]
async fn a_refused_event_is_started_by_its_redelivery_alone() {
    let server = server().await;
    let first = push(&server, "push", "guid-1", r#"{"after":"1"}"#).await;
    let id = first.body["executionId"].as_str().unwrap();
    let body = r#"{"after":"2"}"#;
    assert_eq!(push(&server, "push", "guid-2", body).await.code(), "WORKFLOW_LOCKED");
    let taken = server.post("/api/v1/workflows/deploy/lease", &json!({})).await;
    let done = json!({ "token": taken.body["execution"]["token"], "state": "succeeded" });
    server.post(&format!("/api/v1/executions/{id}/complete"), &done).await;
    let copied = push(&server, "push", "guid-9", body).await;
    assert_eq!(copied.body["started"], true, "{}", copied.body);
    assert_same(&push(&server, "push", "guid-2", body).await, &copied);
    assert_eq!(executions(&server).await, 2);
    server.stop().await;
}

/// Starts a server over a store with a manual clock and this `replay_memory` setting.
async fn with_memory(memory: &str) -> (TestServer, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::with_clock(clock.clone());
    let leasehold = Leasehold::with_store(Arc::new(store)).unwrap();
    let settings = format!("{SETTINGS}[triggers.kept]\nworkflow = \"deploy\"\nscheme = \"github\"\n");
    let settings = format!("{settings}secrets = [\"hush\"]\n{memory}\n");
    let Settings { workflows, triggers, .. } =
        Settings::parse(Path::new("leasehold.toml"), &settings).unwrap();
    let server =
        Server::builder(leasehold.clone()).access(Access::Open).workflows(workflows).triggers(triggers);
    // Without maintenance, because the test controls the clock.
    (TestServer::serve(server.without_maintenance().build(), leasehold).await, clock)
}

#[tokio::test]
async fn a_signed_body_is_remembered_for_its_time() {
    for (memory, seconds) in [("", 24 * 3600), ("replay_memory = \"10m\"", 600)] {
        let (server, clock) = with_memory(memory).await;
        let first = push(&server, "kept", "guid-1", r#"{"after":"1"}"#).await;
        clock.advance(Duration::from_secs(seconds - 1));
        assert_same(&push(&server, "kept", "guid-2", r#"{"after":"1"}"#).await, &first);
        clock.advance(Duration::from_secs(2));
        let later = push(&server, "kept", "guid-3", r#"{"after":"1"}"#).await;
        assert_eq!(later.body["duplicate"], false, "{}", later.body);
        // The id itself is remembered for longer.
        assert_eq!(push(&server, "kept", "guid-1", r#"{"after":"1"}"#).await.body["duplicate"], true);
        server.stop().await;
    }
}

/// Small bodies may be equal and mean two events.
#[tokio::test]
async fn the_memory_of_bodies_can_be_turned_off() {
    let (server, _) = with_memory("replay_memory = \"0s\"").await;
    let body = r#"{"action":"requested"}"#;
    assert_eq!(push(&server, "kept", "guid-1", body).await.body["duplicate"], false);
    assert_eq!(push(&server, "kept", "guid-2", body).await.body["duplicate"], false);
    assert_eq!(push(&server, "kept", "guid-2", body).await.body["duplicate"], true);
    server.stop().await;
}

/// If the key is in the signed body, a copy has the same key, and nothing else needs to be remembered.
#[tokio::test]
async fn a_key_in_the_signed_body_is_the_key() {
    let settings = "[workflows.deploy]\nrunner = \"external\"\n[triggers.commits]\nworkflow = \"deploy\"\n\
                    scheme = \"github\"\nsecrets = [\"hush\"]\nkey = \"/after\"\n";
    let server = configured(settings).await;
    let first = push(&server, "commits", "guid-1", r#"{"after":"1"}"#).await;
    assert_same(&push(&server, "commits", "guid-2", r#"{"after":"1"}"#).await, &first);
    let shown =
        server.get(&format!("/api/v1/executions/{}", first.body["executionId"].as_str().unwrap())).await;
    assert_eq!(shown.body["key"], "commits:1");
    server.stop().await;
}

/// A Stripe event has an id in its body. An event without an id is identified by its body.
#[tokio::test]
async fn a_signed_body_without_an_id_starts_once() {
    let server = server().await;
    let first = payment(&server, r#"{"amount":1}"#, None, 0).await;
    assert_eq!(first.body["duplicate"], false, "{}", first.body);
    for key in [None, Some("another")] {
        assert_same(&payment(&server, r#"{"amount":1}"#, key, -1).await, &first);
    }
    server.stop().await;
}
