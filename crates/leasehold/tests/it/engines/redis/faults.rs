//! Cut off in the middle: whoever asks again gets the same lease, and nothing hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{Leave, LockName, LockOp, Outcome};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testing::Player;

use super::support::{options, prefix};
use crate::engines::proxy::{Fault, Proxy};
use crate::engines::support::engine_at;

/// A proxy before the server, a store behind the proxy, and one that goes straight to the server.
struct Lab {
    proxy: Proxy,
    through: Arc<RedisStore>,
    straight: Arc<RedisStore>,
}

async fn lab() -> Option<Lab> {
    let url = engine_at("redis")?;
    let address = url.strip_prefix("redis://").unwrap().parse().unwrap();
    let (proxy, prefix) = (Proxy::before(address), prefix());
    let through = options(&format!("redis://{}", proxy.address()), &prefix);
    let through = Arc::new(RedisStore::connect(through).await.unwrap());
    let straight = Arc::new(RedisStore::connect(options(&url, &prefix)).await.unwrap());
    Some(Lab { proxy, through, straight })
}

fn player(store: &Arc<RedisStore>, number: u128) -> Player {
    let mut player = Player::new(store.clone(), number, LockName::new("lock").unwrap());
    player.ask.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

#[tokio::test]
async fn an_answer_that_is_lost_costs_nothing() {
    let Some(lab) = lab().await else { return };
    let (one, two) = (player(&lab.through, 1), player(&lab.straight, 2));
    lab.proxy.set(Fault::DropReplies(1));
    // The write was made and its answer cut off; the second asking finds the same lease.
    let lease = one.takes().await;
    assert_eq!(two.record().await.holders, std::slice::from_ref(&lease));
    assert_eq!(two.record().await.version, 2);
    assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
    two.takes().await;
}

#[tokio::test]
async fn a_connection_that_was_cut_is_made_anew() {
    let Some(lab) = lab().await else { return };
    let one = player(&lab.through, 1);
    let lease = one.takes().await;
    for _ in 0..3 {
        lab.proxy.cut_all();
        assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_an_error_in_time() {
    let Some(lab) = lab().await else { return };
    let one = player(&lab.through, 1);
    let lease = one.takes().await;
    lab.proxy.set(Fault::BlackHole);
    let started = Instant::now();
    let op = LockOp::Leave(Leave { lease_id: one.id() });
    let error = lab.through.locks().apply(&one.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    lab.proxy.set(Fault::None);
    let outcome = one.renews(&lease).await;
    // Whether it left is not known; what is known is that the store answers again.
    assert!(matches!(outcome, Outcome::Renewed(_) | Outcome::NotHeld(_)), "{outcome:?}");
}

/// The store does not send it again by itself, because only the client knows that the first try may have been executed.
#[tokio::test]
async fn a_release_whose_answer_was_lost_is_a_success() {
    let Some(lab) = lab().await else { return };
    let leasehold = leasehold::Leasehold::with_store(lab.through).unwrap();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    lab.proxy.set(Fault::DropReplies(1));
    assert_eq!(guard.run(async |_| 42).await.unwrap(), 42);
    let name = LockName::new("lock").unwrap();
    let (_, lease) = leasehold.lock("lock").acquire().await.unwrap().detach().remove(0);
    lab.proxy.set(Fault::DropReplies(1));
    leasehold.release_lease(&name, lease.ask.lease_id, lease.token).await.unwrap();
    assert!(!leasehold.status(&name).await.unwrap().is_locked);
}

/// The client asks a store that fails again: all of that together takes 5 s, or as long as the caller wants to wait.
#[tokio::test]
async fn an_acquire_from_a_server_that_is_silent_ends_within_seconds() {
    let Some(lab) = lab().await else { return };
    let leasehold = leasehold::Leasehold::with_store(lab.through).unwrap();
    lab.proxy.set(Fault::BlackHole);
    for (ask, limit) in [
        (leasehold.lock("lock"), Duration::from_secs(5)),
        (leasehold.lock("lock").wait(Duration::from_secs(2)), Duration::from_secs(2)),
    ] {
        let started = Instant::now();
        assert_eq!(ask.acquire().await.unwrap_err().code(), "STORE_UNAVAILABLE");
        assert!(started.elapsed() < limit + Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

/// An acquire that got stuck on its way must not arrive after the leave that takes it back.
#[tokio::test]
async fn what_was_dropped_never_comes_after_what_follows() {
    let Some(lab) = lab().await else { return };
    let two = player(&lab.straight, 2);
    for round in 0..3 {
        let one = player(&lab.through, 1);
        lab.proxy.set(Fault::BlackHole);
        let stuck = tokio::time::timeout(Duration::from_millis(50), one.asks()).await;
        assert!(stuck.is_err(), "round {round}");
        lab.proxy.set(Fault::None);
        assert!(matches!(one.leaves().await, Outcome::Left));
        let lease = two.takes().await;
        two.releases(&lease).await;
    }
}

/// The same, when the connection had to be given up. The network here cannot hold back the old connection alone, so this
/// shows that nothing is left behind, not that the worst order was met.
#[tokio::test]
async fn a_request_on_a_broken_connection_leaves_nothing_behind() {
    let Some(lab) = lab().await else { return };
    let (one, two) = (player(&lab.through, 1), player(&lab.straight, 2));
    lab.proxy.set(Fault::BlackHole);
    let ask = leasehold::model::Acquire { ask: Arc::new(one.ask.clone()), queue: None, steal_after: None };
    let error = lab.through.locks().apply(&one.lock, &LockOp::Acquire(ask)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    lab.proxy.set(Fault::None);
    assert!(matches!(one.leaves().await, Outcome::Left));
    two.takes().await;
}

#[tokio::test]
async fn an_administrator_may_kill_our_connections() {
    let Some(server) = super::private::Server::start(&[]).await else { return };
    let store = Arc::new(RedisStore::connect(options(&server.url(), &prefix())).await.unwrap());
    let one = player(&store, 1);
    let lease = one.takes().await;
    server.says::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
}

/// Renewals have a thread of their own, and so has the connection that they take.
#[test]
fn a_runtime_that_is_gone_does_not_take_the_store_with_it() {
    let Some(url) = engine_at("redis") else { return };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let store = first.block_on(RedisStore::connect(options(&url, &prefix()))).unwrap();
    let one = player(&Arc::new(store), 1);
    let lease = first.block_on(one.takes());
    drop(first);
    // Not even one that could do I/O is needed.
    let second = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert!(matches!(second.block_on(one.renews(&lease)), Outcome::Renewed(_)));
    assert!(matches!(second.block_on(one.releases(&lease)), Outcome::Released(_)));
}

#[tokio::test]
async fn work_that_blocks_its_runtime_keeps_its_lease() {
    let Some(url) = engine_at("redis") else { return };
    let leasehold = leasehold::Leasehold::connect(&format!("{url}?prefix={}", prefix())).await.unwrap();
    let guard = leasehold.lock("lock").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    // Three times its ttl, and nothing else of this runtime gets a turn.
    std::thread::sleep(Duration::from_secs(3));
    guard.release().await.unwrap();
}

#[test]
fn of_two_processes_with_sixteen_clients_one_wins_each_time() {
    let Some(url) = engine_at("redis") else { return };
    crate::engines::race::one_winner_each(&format!("{url}?prefix={}", prefix()));
}

#[test]
fn on_a_cluster_too_one_wins_each_time() {
    let Some(url) = engine_at("redis-cluster") else { return };
    crate::engines::race::one_winner_each(&format!("{url}&prefix={}", prefix()));
}

#[test]
fn two_processes_with_sixteen_clients_have_the_lock_one_at_a_time() {
    let Some(url) = engine_at("redis") else { return };
    crate::engines::race::one_at_a_time(&format!("{url}?prefix={}", prefix()), 20);
}

#[test]
fn on_a_cluster_too_they_have_the_lock_one_at_a_time() {
    let Some(url) = engine_at("redis-cluster") else { return };
    crate::engines::race::one_at_a_time(&format!("{url}&prefix={}", prefix()), 20);
}
