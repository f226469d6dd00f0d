//! Restarts and flushes of the server: which data is lost, and that tokens still rise.

use leasehold::model::{LockName, Outcome};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testing::TestClient;
use uuid::Uuid;

use super::server::Server;
use super::support::{open, options, prefix};

/// Returns a client that uses the server's clock.
async fn client(server: &Server, number: u128) -> TestClient {
    let store = RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap();
    let mut client = TestClient::new(std::sync::Arc::new(store), number, LockName::new("lock").unwrap());
    client.request.lease_id = leasehold::model::LeaseId::from_uuid(Uuid::now_v7());
    client
}

#[tokio::test]
async fn a_restart_between_acquire_and_renew_loses_nothing_with_aof() {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut server = Server::start(&settings).await;
    let (one, two) = (client(&server, 1).await, client(&server, 2).await);
    let lease = one.acquire().await;
    two.expect_queued().await;
    server.kill();
    server.restart().await;
    let outcome = one.renew(&lease).await;
    assert!(matches!(outcome, Outcome::Renewed(_)), "{outcome:?}");
    one.release(&lease).await;
    assert!(two.holds().await);
    assert!(two.acquire().await.token > lease.token);
}

#[tokio::test]
async fn a_restart_without_aof_frees_the_lock_and_tokens_still_rise() {
    let mut server = Server::start(&["appendonly no"]).await;
    let (one, two) = (client(&server, 1).await, client(&server, 2).await);
    let mut newest = one.acquire().await;
    for _ in 0..50 {
        one.release(&newest).await;
        newest = one.acquire().await;
    }
    server.kill();
    server.restart().await;
    let outcome = one.renew(&newest).await;
    let Outcome::NotHeld(not_held) = outcome else { panic!("{outcome:?}") };
    assert!(not_held.holders.is_empty());
    assert!(two.acquire().await.token > newest.token);
}

#[tokio::test]
async fn a_flush_frees_the_lock_and_tokens_still_rise() {
    let server = Server::start(&[]).await;
    let (one, two) = (client(&server, 1).await, client(&server, 2).await);
    let lease = one.acquire().await;
    server.command::<String>(&["FLUSHALL"]).await.unwrap();
    assert!(matches!(one.renew(&lease).await, Outcome::NotHeld(_)));
    let next = two.acquire().await;
    assert!(next.token > lease.token);
    assert_eq!(two.record().await.version, 1);
}

/// A sweep examines a limited number of locks: one without a record must not be among them each time.
#[tokio::test]
async fn a_sweep_finds_a_lost_lock_once() {
    let (server, clock) = (Server::start(&[]).await, crate::engines::support::clock());
    let store = open(&server.url(), "leasehold", &clock).await;
    TestClient::new(store.clone(), 1, LockName::new("lock").unwrap()).acquire().await;
    let record: Vec<String> = server.command(&["KEYS", "*:lock:lock"]).await.unwrap();
    server.command::<u64>(&["DEL", &record[0]]).await.unwrap();
    clock.advance(std::time::Duration::from_secs(11));
    store.locks().sweep(10).await.unwrap();
    let due: Vec<String> = server.command(&["KEYS", "*:due"]).await.unwrap();
    assert!(due.is_empty(), "{due:?}");
}

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let server = Server::start(&[]).await;
    let one = client(&server, 1).await;
    let lease = one.acquire().await;
    server.command::<String>(&["SCRIPT", "FLUSH"]).await.unwrap();
    assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
    assert_eq!((server.calls("eval").await, server.calls("evalsha").await), (2, 2));
}

#[tokio::test]
async fn prefixes_are_isolated() {
    let server = Server::start(&[]).await;
    let one = client(&server, 1).await;
    one.acquire().await;
    let store = RedisStore::connect(options(&server.url(), &prefix())).await.unwrap();
    let other = TestClient::new(std::sync::Arc::new(store), 2, one.lock.clone());
    other.acquire().await;
}
