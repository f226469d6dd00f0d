//! Errors: passwords, permissions, certificates, foreign keys, replicas, full servers.

use std::error::Error as _;
use std::sync::Arc;

use leasehold::model::LockName;
use leasehold::store::redis::RedisStore;
use leasehold::store::{ListEvents, ListLocks, Store, StoreUrl, connect};
use leasehold::testing::TestClient;
use leasehold::{Error, Leasehold};

use super::server::{Server, free_port};
use super::support::{options, prefix};
use crate::engines::support::engine_at;

/// Connects, and returns the code and all texts of the error.
async fn refused(url: &str) -> (String, String) {
    let error = connect(&StoreUrl::parse(url).unwrap()).await.err().expect("an error");
    (error.code().to_owned(), all(&error))
}

fn all(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {}", error.hint().unwrap_or_default());
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_leaking_it() {
    let server = Server::start(&["requirepass right-s3cr3t"]).await;
    let at = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://{at}"),
        format!("redis://:wrong-s3cr3t@{at}"),
        format!("redis://ada:wrong-s3cr3t@{at}"),
    ] {
        let (code, text) = refused(&url).await;
        assert_eq!(code, "STORE_NOT_PERMITTED", "{text}");
        assert!(!text.contains("s3cr3t"), "{text}");
    }
    let leasehold = Leasehold::connect(&format!("redis://:right-s3cr3t@{at}")).await.unwrap();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    assert!(!format!("{leasehold:?} {}", leasehold.url()).contains("s3cr3t"));
    guard.release().await.unwrap();
}

/// Line of docs/engines/redis.md.
const ACL: &str = "ACL SETUSER locks on >s3cr3t resetkeys ~leasehold:* resetchannels &leasehold:* -@all \
                   +get +set +append +getrange +setrange +mget +del +lindex +lrange +rpush +lpop +lset +lrem +zadd +zrem +zrangebylex +zrangebyscore \
                   +xadd +xrange +xrevrange +xtrim +time \
                   +evalsha +eval +publish +subscribe +unsubscribe +ping +info +client|info +client|kill +wait";

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let page = include_str!("../../../../../../docs/engines/redis.md").replace(" \\\n    ", " ");
    assert!(page.contains(ACL), "docs/engines/redis.md should have this line:\n{ACL}");
    let server = Server::start(&[]).await;
    let words: Vec<&str> = ACL.split_whitespace().collect();
    server.command::<String>(&words).await.unwrap();
    let url = format!("redis://locks:s3cr3t@127.0.0.1:{}", server.port());
    let store = Arc::new(RedisStore::connect(options(&url, "leasehold")).await.unwrap());
    let [one, two] =
        [1, 2].map(|number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap()));
    let lease = one.acquire().await;
    let _changes = two.subscribe();
    two.expect_queued().await;
    two.expect_queued().await;
    one.renew(&lease).await;
    one.request_release().await;
    one.release(&lease).await;
    two.withdraw().await;
    store.locks().sweep(10).await.unwrap();
    assert_eq!(store.locks().list(&ListLocks::default()).await.unwrap().items.len(), 1);
    assert_eq!(store.locks().history(&ListEvents::default()).await.unwrap().items.len(), 6);
    assert!(store.check_health().await.unwrap().iter().any(|check| check.name == "version"));
}

#[tokio::test]
async fn a_missing_permission_is_reported() {
    let server = Server::start(&[]).await;
    let acl = "ACL SETUSER nobody on >s3cr3t ~other:* +@all -info";
    server.command::<String>(&acl.split_whitespace().collect::<Vec<_>>()).await.unwrap();
    // Connecting needs no `INFO`: a managed server may hide its settings.
    let url = format!("redis://nobody:s3cr3t@127.0.0.1:{}", server.port());
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let error = leasehold.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{}", all(&error));
    assert!(error.hint().unwrap().contains("ACL"));
}

#[tokio::test]
async fn keys_of_another_program_are_left_alone() {
    let server = Server::start(&[]).await;
    let leasehold = Leasehold::connect(&server.url()).await.unwrap();
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    let keys: Vec<String> = server.command(&["KEYS", "*:lock:lock"]).await.unwrap();
    for (command, value) in [("RPUSH", "x"), ("SET", "hello"), ("SET", "\u{1}")] {
        server.command::<u64>(&["DEL", &keys[0]]).await.unwrap();
        server.command::<::redis::Value>(&[command, &keys[0], value]).await.unwrap();
        let error = leasehold.lock("lock").acquire().await.unwrap_err();
        assert_eq!(error.code(), "STORE_MISCONFIGURED", "{command} {value:?}: {}", all(&error));
        assert!(error.hint().unwrap().contains("prefix"));
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported_immediately() {
    engine_at("redis");
    let (code, text) = refused(&format!("redis://127.0.0.1:{}", free_port())).await;
    assert_eq!(code, "STORE_UNAVAILABLE", "{text}");
    let (code, text) = refused("redis://no-such-host.invalid").await;
    assert_eq!(code, "STORE_UNAVAILABLE", "{text}");
}

#[tokio::test]
async fn a_missing_database_is_reported() {
    let url = engine_at("redis");
    let (code, text) = refused(&format!("{url}/4711")).await;
    assert_eq!(code, "STORE_MISCONFIGURED", "{text}");
}

#[tokio::test]
async fn a_replica_accepts_no_locks() {
    let master = Server::start(&[]).await;
    let replica = Server::start(&[&format!("replicaof 127.0.0.1 {}", master.port())]).await;
    let store = RedisStore::connect(options(&replica.url(), "leasehold")).await.unwrap();
    let checks = store.check_health().await.unwrap();
    let codes: Vec<_> = checks.iter().filter_map(|check| check.issue.as_ref()).map(|c| c.code).collect();
    assert!(codes.contains(&"REDIS_REPLICA"), "{checks:?}");
    let leasehold = Leasehold::connect(&replica.url()).await.unwrap();
    let error = leasehold.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{}", all(&error));
    assert!(error.hint().unwrap().contains("master"));
}

#[tokio::test]
async fn a_full_server_is_reported() {
    let server = Server::start(&[]).await;
    let leasehold = Leasehold::connect(&server.url()).await.unwrap();
    let held = leasehold.lock("lock").acquire().await.unwrap();
    server.command::<String>(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    let error = leasehold.lock("other").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{}", all(&error));
    assert!(error.hint().unwrap().contains("maxmemory"), "{}", all(&error));
    server.command::<String>(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn tls_is_checked_against_the_right_ca() {
    let url = engine_at("redis-tls");
    let (ca, other) =
        (std::env::var("LEASEHOLD_TEST_CA").unwrap(), std::env::var("LEASEHOLD_TEST_OTHER_CA").unwrap());
    let prefix = prefix();
    let leasehold = Leasehold::connect(&format!("{url}?ca={ca}&prefix={prefix}")).await.unwrap();
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    for url in [format!("{url}?ca={other}"), url.clone(), format!("{url}?ca=/no/such/file")] {
        let (code, text) = refused(&url).await;
        assert_eq!(code, "STORE_MISCONFIGURED", "{text}");
    }
}

#[tokio::test]
async fn tls_to_a_server_without_tls_is_reported() {
    let url = engine_at("redis");
    // Redis takes the TLS greeting for the beginning of a long command, and waits for its end.
    let (code, text) = refused(&url.replace("redis://", "rediss://")).await;
    assert_eq!(code, "STORE_UNAVAILABLE", "{text}");
    assert!(text.contains("no TLS"), "{text}");
}

#[tokio::test]
async fn one_node_of_a_cluster_is_not_the_cluster() {
    let url = engine_at("redis-cluster");
    let node = url.replace("redis+cluster://", "redis://");
    let leasehold = Leasehold::connect(node.split('?').next().unwrap()).await.unwrap();
    let mut codes = Vec::new();
    for number in 0..8 {
        if let Err(error) = leasehold.lock(format!("lock-{number}")).acquire().await {
            assert!(error.hint().unwrap().contains("redis+cluster://"), "{}", all(&error));
            codes.push(error.code());
        }
    }
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == "STORE_MISCONFIGURED"), "{codes:?}");
}
