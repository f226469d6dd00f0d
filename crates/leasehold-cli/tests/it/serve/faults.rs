//! Unreachable stores, and many concurrent requests.

use std::collections::BTreeSet;

use rusqlite::Connection;
use serde_json::json;

use crate::support::{Sandbox, eventually};

use super::support::Served;

const SETTINGS: &str =
    "[workflows.a]\ncommand = [\"sh\", \"-c\", \"cat >> runs; echo >> runs; sleep 0.3\"]\n";

/// Locks the file exclusively, so that no other process can use it.
fn occupy(sandbox: &Sandbox) -> Connection {
    let file = Connection::open(sandbox.path().join("store.db")).unwrap();
    file.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;").unwrap();
    file
}

fn with_store(sandbox: &Sandbox) -> Served {
    std::fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let store = format!("sqlite:{}?busy=100ms", sandbox.path().join("store.db").display());
    Served::with(sandbox, &["--config", "leasehold.toml", "--store", &store])
}

#[test]
fn an_unreachable_store_is_waited_for_at_the_start() {
    let sandbox = Sandbox::new();
    let occupied = occupy(&sandbox);
    let served = with_store(&sandbox);
    assert_eq!(served.get("/healthz").status, 200);
    for path in ["/readyz", "/api/v1/workflows"] {
        let reply = served.get(path);
        assert_eq!((reply.status, &reply.body["code"]), (503, &json!("STORE_UNAVAILABLE")), "{reply:?}");
        assert!(reply.head.contains("retry-after: "), "{reply:?}");
    }
    drop(occupied);
    eventually("ready", || served.get("/readyz").status == 200);
    let id = served.start_key("a", "k").id();
    served.until(&id, "succeeded");
}

#[test]
fn a_server_without_its_store_can_be_ended() {
    let sandbox = Sandbox::new();
    let _occupied = occupy(&sandbox);
    let served = with_store(&sandbox);
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
}

#[test]
fn a_store_outage_and_its_end_are_reported() {
    let sandbox = Sandbox::new();
    let served = with_store(&sandbox);
    eventually("ready", || served.get("/readyz").status == 200);
    let file = Connection::open(sandbox.path().join("store.db")).unwrap();
    file.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    file.execute_batch("BEGIN IMMEDIATE;").unwrap();
    let reply = served.start_key("a", "k");
    assert_eq!((reply.status, &reply.body["code"]), (503, &json!("STORE_UNAVAILABLE")), "{reply:?}");
    file.execute_batch("ROLLBACK;").unwrap();
    let mut id = None;
    eventually("back", || {
        let reply = served.start_key("a", "k");
        id = reply.body["executionId"].as_str().map(str::to_owned);
        id.is_some()
    });
    served.until(&id.unwrap(), "succeeded");
}

#[test]
fn a_hundred_posts_of_one_key_over_two_servers_start_one_execution() {
    let sandbox = Sandbox::new();
    let servers = [Served::ready(&sandbox, SETTINGS), Served::ready(&sandbox, SETTINGS)];
    let replies: Vec<_> = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..100)
            .map(|number| {
                scope.spawn({
                    let served = &servers[number % 2];
                    || served.start_key("a", "k")
                })
            })
            .collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    let ids: BTreeSet<_> = replies.iter().map(super::support::Reply::id).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let started = replies.iter().filter(|reply| reply.status == 201).count();
    assert_eq!((started, replies.iter().filter(|reply| reply.status == 200).count()), (1, 99));
    let id = ids.into_iter().next().unwrap();
    servers[0].until(&id, "succeeded");
    assert_eq!(std::fs::read_to_string(sandbox.path().join("runs")).unwrap(), "{\"a\":1}\n");
}
