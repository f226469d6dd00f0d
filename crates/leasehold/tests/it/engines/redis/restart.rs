//! Restarts and flushes of the server: which data is lost, and that tokens still rise.

use leasehold::model::{LockName, Outcome};
use leasehold::store::redis::RedisStore;
use leasehold::testing::Player;
use uuid::Uuid;

use super::server::Server;
use super::support::{options, prefix};

/// Returns a client that uses the server's clock.
async fn player(server: &Server, number: u128) -> Player {
    let store = RedisStore::connect(options(&server.url(), "leasehold")).await.unwrap();
    let mut player = Player::new(std::sync::Arc::new(store), number, LockName::new("lock").unwrap());
    player.ask.lease_id = leasehold::model::LeaseId::from_uuid(Uuid::now_v7());
    player
}

#[tokio::test]
async fn a_restart_between_acquire_and_renew_loses_nothing_with_aof() {
    let settings = ["appendonly yes", "appendfsync always"];
    let Some(mut server) = Server::start(&settings).await else { return };
    let (one, two) = (player(&server, 1).await, player(&server, 2).await);
    let lease = one.takes().await;
    two.queues().await;
    server.kill();
    server.restart().await;
    let outcome = one.renews(&lease).await;
    assert!(matches!(outcome, Outcome::Renewed(_)), "{outcome:?}");
    one.releases(&lease).await;
    assert!(two.holds().await);
    assert!(two.takes().await.token > lease.token);
}

#[tokio::test]
async fn a_restart_without_aof_frees_the_lock_and_tokens_still_rise() {
    let Some(mut server) = Server::start(&["appendonly no"]).await else { return };
    let (one, two) = (player(&server, 1).await, player(&server, 2).await);
    let mut newest = one.takes().await;
    for _ in 0..50 {
        one.releases(&newest).await;
        newest = one.takes().await;
    }
    server.kill();
    server.restart().await;
    let outcome = one.renews(&newest).await;
    let Outcome::NotHeld(not_held) = outcome else { panic!("{outcome:?}") };
    assert!(not_held.holders.is_empty());
    assert!(two.takes().await.token > newest.token);
}

#[tokio::test]
async fn a_flush_frees_the_lock_and_tokens_still_rise() {
    let Some(server) = Server::start(&[]).await else { return };
    let (one, two) = (player(&server, 1).await, player(&server, 2).await);
    let lease = one.takes().await;
    server.command::<String>(&["FLUSHALL"]).await.unwrap();
    assert!(matches!(one.renews(&lease).await, Outcome::NotHeld(_)));
    let next = two.takes().await;
    assert!(next.token > lease.token);
    assert_eq!(two.record().await.version, 1);
}

#[tokio::test]
async fn a_flushed_script_is_sent_again() {
    let Some(server) = Server::start(&[]).await else { return };
    let one = player(&server, 1).await;
    let lease = one.takes().await;
    server.command::<String>(&["SCRIPT", "FLUSH"]).await.unwrap();
    assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
    assert_eq!((server.calls("eval").await, server.calls("evalsha").await), (2, 2));
}

#[tokio::test]
async fn prefixes_are_isolated() {
    let Some(server) = Server::start(&[]).await else { return };
    let one = player(&server, 1).await;
    one.takes().await;
    let store = RedisStore::connect(options(&server.url(), &prefix())).await.unwrap();
    let other = Player::new(std::sync::Arc::new(store), 2, one.lock.clone());
    other.takes().await;
}
