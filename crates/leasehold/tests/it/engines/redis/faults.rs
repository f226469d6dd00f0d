//! Lost answers and cut connections: a repeated request gets the same lease, and no call hangs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockName, LockOp, Outcome, Withdraw};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use leasehold::testing::TestClient;

use super::support::{options, prefix};
use crate::engines::proxy::{Fault, NextFault, Proxy};
use crate::engines::support::engine_at;

/// Proxy in front of the server, a store that uses the proxy, and a store that does not.
struct Setup {
    proxy: Proxy,
    proxied: Arc<RedisStore>,
    direct: Arc<RedisStore>,
}

async fn setup() -> Setup {
    let url = engine_at("redis");
    let address = url.strip_prefix("redis://").unwrap().parse().unwrap();
    let (proxy, prefix) = (Proxy::before(address), prefix());
    let proxied = options(&format!("redis://{}", proxy.address()), &prefix);
    let proxied = Arc::new(RedisStore::connect(proxied).await.unwrap());
    let direct = Arc::new(RedisStore::connect(options(&url, &prefix)).await.unwrap());
    Setup { proxy, proxied, direct }
}

fn client(store: &Arc<RedisStore>, number: u128) -> TestClient {
    let mut client = TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
    client.request.lease_id = leasehold::model::LeaseId::from_uuid(uuid::Uuid::now_v7());
    client
}

#[tokio::test]
async fn a_lost_answer_of_an_acquire_changes_nothing() {
    let setup = setup().await;
    let (one, two) = (client(&setup.proxied, 1), client(&setup.direct, 2));
    setup.proxy.set(Fault::DropReplies(1));
    // The server wrote the lease, and its answer was lost; the repeated request finds the same lease.
    let lease = one.acquire().await;
    assert_eq!(two.record().await.holders, std::slice::from_ref(&lease));
    assert_eq!(two.record().await.version, 2);
    assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
    two.acquire().await;
}

#[tokio::test]
async fn a_cut_connection_is_reopened() {
    let setup = setup().await;
    let one = client(&setup.proxied, 1);
    let lease = one.acquire().await;
    for _ in 0..3 {
        setup.proxy.cut_all();
        assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
    }
}

#[tokio::test]
async fn a_silent_server_is_an_error_in_time() {
    let setup = setup().await;
    let one = client(&setup.proxied, 1);
    let lease = one.acquire().await;
    setup.proxy.set(Fault::BlackHole);
    let started = Instant::now();
    let op = LockOp::Withdraw(Withdraw { lease_id: one.id() });
    let error = setup.proxied.locks().apply(&one.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.is_retryable());
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    setup.proxy.set(Fault::None);
    let outcome = one.renew(&lease).await;
    // Whether the lease was withdrawn is unknown, but the store answers again.
    assert!(matches!(outcome, Outcome::Renewed(_) | Outcome::NotHeld(_)), "{outcome:?}");
}

/// The store does not repeat a release by itself: only the client knows that the first attempt may
/// have been executed.
#[tokio::test]
async fn a_release_whose_answer_was_lost_is_a_success() {
    let setup = setup().await;
    let leasehold = leasehold::Leasehold::with_store(setup.proxied).unwrap();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    setup.proxy.set(Fault::DropReplies(1));
    assert_eq!(guard.run(async |_| 42).await.unwrap(), 42);
    let name = LockName::new("lock").unwrap();
    let (_, lease) = leasehold.lock("lock").acquire().await.unwrap().detach().remove(0);
    setup.proxy.set(Fault::DropReplies(1));
    leasehold.locks().release(&name, lease.request.lease_id, lease.token).await.unwrap();
    assert!(!leasehold.locks().status(&name).await.unwrap().is_locked);
}

/// The client retries a failing store for 5 s in total, or as long as the caller wants to wait.
#[tokio::test]
async fn an_acquire_from_a_silent_server_ends_within_seconds() {
    let setup = setup().await;
    let leasehold = leasehold::Leasehold::with_store(setup.proxied).unwrap();
    setup.proxy.set(Fault::BlackHole);
    for (builder, limit) in [
        (leasehold.lock("lock"), Duration::from_secs(5)),
        (leasehold.lock("lock").wait(Duration::from_secs(2)), Duration::from_secs(2)),
    ] {
        let started = Instant::now();
        assert_eq!(builder.acquire().await.unwrap_err().code(), "STORE_UNAVAILABLE");
        // The rest is for a busy machine.
        assert!(started.elapsed() < limit + Duration::from_secs(6), "{:?}", started.elapsed());
    }
}

/// A delayed acquire must not arrive after the leave that withdraws it.
#[tokio::test]
async fn a_dropped_acquire_never_arrives_after_its_leave() {
    let setup = setup().await;
    let two = client(&setup.direct, 2);
    for round in 0..3 {
        let one = client(&setup.proxied, 1);
        setup.proxy.set(Fault::BlackHole);
        let stuck = tokio::time::timeout(Duration::from_millis(50), one.try_acquire()).await;
        assert!(stuck.is_err(), "round {round}");
        setup.proxy.set(Fault::None);
        assert!(matches!(one.withdraw().await, Outcome::Withdrawn));
        let lease = two.acquire().await;
        two.release(&lease).await;
    }
}

/// The same, when the connection was discarded. The proxy cannot delay the old connection alone, so
/// this shows that nothing is left behind, not that the worst order occurred.
#[tokio::test]
async fn a_request_on_a_broken_connection_leaves_nothing_behind() {
    let setup = setup().await;
    let (one, two) = (client(&setup.proxied, 1), client(&setup.direct, 2));
    setup.proxy.set(Fault::BlackHole);
    let acquire =
        leasehold::model::Acquire { request: Arc::new(one.request.clone()), queue: None, steal_after: None };
    let error = setup.proxied.locks().apply(&one.lock, &LockOp::Acquire(acquire)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    setup.proxy.set(Fault::None);
    assert!(matches!(one.withdraw().await, Outcome::Withdrawn));
    two.acquire().await;
}

/// Without the identity of a connection, the store could not end it: a request on it could take effect after the
/// request was withdrawn.
#[tokio::test]
async fn no_request_is_sent_on_a_connection_whose_identity_is_not_known() {
    let server = super::server::Server::start(&[]).await;
    let proxy = Proxy::before(std::net::SocketAddr::from(([127, 0, 0, 1], server.port())));
    let store =
        RedisStore::connect(options(&format!("redis://{}", proxy.address()), &prefix())).await.unwrap();
    let store = Arc::new(store);
    let first = TestClient::new(store.clone(), 2, LockName::new("first").unwrap());
    first.acquire().await;
    let one = client(&store, 1);
    // On the next connection, the store first ends the previous one, and then queries the identity.
    proxy.set(Fault::AfterReply(NextFault::DelayRequest(Duration::from_secs(8))));
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    let acquire =
        leasehold::model::Acquire { request: Arc::new(one.request.clone()), queue: None, steal_after: None };
    let error = one.store.locks().apply(&one.lock, &LockOp::Acquire(acquire)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    assert_eq!(one.withdraw().await, Outcome::Withdrawn);
    let are_done = async {
        while !proxy.delayed_requests_are_done() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), are_done).await.expect("the delayed requests arrive");
    // The server has received them before this request.
    let clients = server.command::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).await.unwrap();
    assert!(clients.lines().count() <= 4, "{clients}");
    let record = one.store.locks().get(&one.lock).await.unwrap();
    let is_free = record.as_ref().is_none_or(|record| record.holders.is_empty());
    assert!(is_free, "a withdrawn request has acquired the lock: {record:?}");
}

#[tokio::test]
async fn a_killed_connection_is_replaced() {
    let server = super::server::Server::start(&[]).await;
    let store = Arc::new(RedisStore::connect(options(&server.url(), &prefix())).await.unwrap());
    let one = client(&store, 1);
    let lease = one.acquire().await;
    server.command::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
}

/// Renewals have a thread of their own, and so has the connection that they use.
#[test]
fn the_store_survives_the_end_of_its_runtime() {
    let url = engine_at("redis");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let store = first.block_on(RedisStore::connect(options(&url, &prefix()))).unwrap();
    let one = client(&Arc::new(store), 1);
    let lease = first.block_on(one.acquire());
    drop(first);
    // A runtime without I/O is enough.
    let second = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert!(matches!(second.block_on(one.renew(&lease)), Outcome::Renewed(_)));
    assert!(matches!(second.block_on(one.release(&lease)), Outcome::Released(_)));
}

#[tokio::test]
async fn work_that_blocks_its_runtime_keeps_its_lease() {
    let url = engine_at("redis");
    let leasehold = leasehold::Leasehold::connect(&format!("{url}?prefix={}", prefix())).await.unwrap();
    let guard = leasehold.lock("lock").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    // Three times the TTL, during which no other task of this runtime runs.
    std::thread::sleep(Duration::from_secs(6));
    guard.release().await.unwrap();
}

#[test]
fn one_of_sixteen_clients_in_two_processes_wins_each_time() {
    let url = engine_at("redis");
    crate::engines::race::one_winner_each(&format!("{url}?prefix={}", prefix()));
}

#[test]
fn one_client_of_a_cluster_wins_each_time() {
    let url = engine_at("redis-cluster");
    crate::engines::race::one_winner_each(&format!("{url}&prefix={}", prefix()));
}

#[test]
fn two_processes_with_sixteen_clients_hold_the_lock_one_at_a_time() {
    let url = engine_at("redis");
    crate::engines::race::one_at_a_time(&format!("{url}?prefix={}", prefix()), 20);
}

#[test]
fn clients_of_a_cluster_hold_the_lock_one_at_a_time() {
    let url = engine_at("redis-cluster");
    crate::engines::race::one_at_a_time(&format!("{url}&prefix={}", prefix()), 20);
}
