//! The server restarts, or connections are cut: nothing is lost, and nothing happens twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{EventKind, LeaseId, LockName, Outcome};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Cursor, EventRange, ListEvents, LockStore, StoreUrl};
use leasehold::testing::TestClient;

use super::private_server::Server;
use super::schema::Schema;
use crate::engines::proxy::{Fault, Proxy};

fn player(store: &Arc<PostgresStore>, number: u128) -> TestClient {
    let mut player = TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
    player.request.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_restart_of_the_server() {
    let mut server = Server::start().await;
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let mut one = player(&store, 1);
    one.request.ttl = leasehold::model::Ttl::from_secs(60);
    let lease = one.acquire().await;
    server.kill();
    // A child process of the server may answer for a moment after the parent has died.
    let error = loop {
        if let Err(error) = store.get(&one.lock).await {
            break error;
        }
    };
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    server.up().await;
    // The same store continues: its connections are closed, and it opens new ones.
    let Outcome::Renewed(renewed) = one.renew(&lease).await else { panic!("not renewed") };
    assert_eq!((renewed.token, renewed.renewals), (lease.token, 1));
    player(&store, 2).expect_conflict().await;
    assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
}

/// Releases do not wait for the disk, grants do: a crash may lose the last releases that were answered, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_may_lose_a_release_but_no_grant() {
    let mut server = Server::start().await;
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let mut leases = Vec::new();
    for number in 0..20 {
        let one = player(&store, number);
        let lease = one.acquire().await;
        assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
        leases.push(lease);
    }
    server.kill();
    server.up().await;
    let last = leases.last().unwrap();
    let record = loop {
        if let Ok(record) = store.get(&player(&store, 1).lock).await {
            break record.unwrap();
        }
    };
    assert_eq!(record.token, last.token, "the last grant is not lost");
    // The release may be lost: then the lease expires by its TTL.
    assert!(
        record.holders.iter().all(|holder| holder.request.lease_id == last.request.lease_id),
        "{record:?}"
    );
    let events = kinds(&store).await;
    assert_eq!(
        events.iter().filter(|kind| **kind == EventKind::Acquired).count(),
        leases.len(),
        "{events:?}"
    );
    let released = events.iter().filter(|kind| **kind == EventKind::Released).count();
    assert_eq!(released, leases.len() - record.holders.len(), "the history agrees with the lock: {events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_no_hand_over() {
    let mut server = Server::start().await;
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let clients: Vec<_> = (0..20).map(|number| player(&store, number)).collect();
    let lease = clients[0].acquire().await;
    for player in &clients[1..] {
        player.expect_queued().await;
    }
    assert!(matches!(clients[0].release(&lease).await, Outcome::Released(_)));
    server.kill();
    server.up().await;
    let record = loop {
        if let Ok(record) = store.get(&clients[0].lock).await {
            break record.unwrap();
        }
    };
    // The new holder may already have been notified.
    assert_eq!(record.holders[0].request.lease_id, clients[1].id(), "{record:?}");
    assert!(record.token > lease.token);
    assert_eq!(record.waiters.len(), 18, "tickets that precede the hand-over are as durable as it is");
}

/// Connects a store through a proxy that can cut connections and drop answers.
pub(super) async fn through_proxy(schema: &Schema, settings: &str) -> (Proxy, Arc<PostgresStore>) {
    let (proxy, options) = proxy_before(schema, settings);
    (proxy, Arc::new(PostgresStore::connect(options).await.unwrap()))
}

/// Starts a proxy; returns it with the options of a store that uses it.
pub(super) fn proxy_before(schema: &Schema, settings: &str) -> (Proxy, PostgresOptions) {
    let url = schema.url_with(settings);
    let (before, rest) = url.split_once('@').unwrap();
    let (address, after) = rest.split_once('/').unwrap();
    let proxy = Proxy::before(address.parse::<SocketAddr>().unwrap());
    let url = format!("{before}@{}/{after}", proxy.address());
    let options = PostgresOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    (proxy, options)
}

async fn takes_and_releases(player: &TestClient) {
    let lease = player.acquire().await;
    player.release(&lease).await;
}

async fn kinds(store: &PostgresStore) -> Vec<EventKind> {
    let query = ListEvents::default().span(EventRange::After(Cursor::start())).limit(100);
    store.history(&query).await.unwrap().items.into_iter().map(|event| event.kind).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_answer_was_lost_is_returned_to_the_retry() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let direct = schema.store().await;
    // Opens the connection and prepares the statements.
    for number in [8, 9] {
        takes_and_releases(&player(&store, number)).await;
    }
    let one = player(&store, 1);
    proxy.set(Fault::DropReplies(1));
    // The write took effect, and its answer was lost. The store sends it again on a new connection, with the same id.
    let lease = one.acquire().await;
    proxy.set(Fault::None);
    let record = direct.get(&one.lock).await.unwrap().unwrap();
    assert_eq!((record.token, record.holders.len()), (lease.token, 1));
    let events = kinds(&direct).await;
    assert_eq!(
        events.iter().filter(|kind| **kind == EventKind::Acquired).count(),
        3,
        "granted once: {events:?}"
    );
    assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_in_doubt() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let one = player(&store, 1);
    let lease = one.acquire().await;
    one.release(&lease).await;
    let lease = one.acquire().await;
    proxy.set(Fault::DropReplies(1));
    let release = leasehold::model::Release { lease_id: one.id(), token: lease.token, at_least: None };
    let error = store.apply(&one.lock, &leasehold::model::LockOp::Release(release)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    proxy.set(Fault::None);
    // A second release learns that the lease has ended.
    assert!(matches!(one.release(&lease).await, Outcome::NotHeld(_)));
    assert!(one.record().await.holders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_queue_a_lost_answer_costs_no_position() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let [one, two, three] = [1, 2, 3].map(|number| player(&store, number));
    // Opens the connection and prepares the statements.
    let lease = one.acquire().await;
    two.expect_queued().await;
    one.release(&lease).await;
    let lease = two.acquire().await;
    one.expect_queued().await;
    // The ticket was created, and the answer was lost. The store sends the request again on a new connection, with the same id.
    proxy.set(Fault::DropReplies(1));
    three.expect_queued().await;
    proxy.set(Fault::None);
    let waiters: Vec<_> = three.record().await.waiters.iter().map(|ticket| ticket.request.lease_id).collect();
    assert_eq!(waiters, [one.id(), three.id()]);
    // The lock was handed over, and its previous holder does not know.
    proxy.set(Fault::DropReplies(1));
    let release = leasehold::model::Release { lease_id: two.id(), token: lease.token, at_least: None };
    let error = store.apply(&two.lock, &leasehold::model::LockOp::Release(release)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    proxy.set(Fault::None);
    assert!(matches!(two.release(&lease).await, Outcome::NotHeld(_)));
    let record = one.record().await;
    assert_eq!((record.holders.len(), record.holders[0].request.lease_id), (1, one.id()));
    assert_eq!(record.waiters.len(), 1);
    assert_eq!(one.acquire().await.token, record.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_between_calls_are_reopened() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "").await;
    let one = player(&store, 1);
    for _ in 0..3 {
        let lease = one.acquire().await;
        proxy.cut_all();
        assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
        assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_into_a_black_hole_fails_within_seconds() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "pool=1").await;
    let one = player(&store, 1);
    let lease = one.acquire().await;
    proxy.set(Fault::BlackHole);
    let started = std::time::Instant::now();
    let (read, write) = tokio::join!(store.get(&one.lock), async {
        let renew = leasehold::model::Renew { lease_id: one.id(), token: lease.token, ttl: None };
        store.apply(&one.lock, &leasehold::model::LockOp::Renew(renew)).await
    });
    assert_eq!(read.unwrap_err().code(), "STORE_UNAVAILABLE");
    assert_eq!(write.unwrap_err().code(), "STORE_UNAVAILABLE");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    proxy.set(Fault::None);
    proxy.cut_all();
    assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_) | Outcome::NotHeld(_)));
}

/// The client retries a store that fails: all attempts together end as soon as one call of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_into_a_black_hole_fails_within_seconds() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "").await;
    let leasehold = leasehold::Leasehold::with_store(store).unwrap();
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    proxy.set(Fault::BlackHole);
    for (builder, limit) in [
        (leasehold.lock("lock"), Duration::from_secs(5)),
        (leasehold.lock("lock").wait(Duration::from_secs(2)), Duration::from_secs(2)),
    ] {
        let started = std::time::Instant::now();
        assert_eq!(builder.acquire().await.unwrap_err().code(), "STORE_UNAVAILABLE");
        assert!(started.elapsed() < limit + Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_a_success() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "").await;
    let leasehold = leasehold::Leasehold::with_store(store).unwrap();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    proxy.set(Fault::DropReplies(1));
    assert_eq!(guard.run(async |_| 42).await.unwrap(), 42);
    assert!(!leasehold.locks().status(&LockName::new("lock").unwrap()).await.unwrap().is_locked);
}

/// A statement of a dropped call takes effect before the statements that follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_acquire_is_undone_by_a_withdrawal() {
    let schema = Schema::new();
    let (proxy, store) = through_proxy(&schema, "").await;
    takes_and_releases(&player(&store, 9)).await;
    for millis in 0..20_u64 {
        let one = player(&store, 1);
        proxy.set(Fault::Delay(Duration::from_millis(5)));
        let _ = tokio::time::timeout(Duration::from_millis(millis), one.try_acquire()).await;
        assert!(matches!(one.withdraw().await, Outcome::Withdrawn));
        proxy.set(Fault::None);
        assert!(one.record().await.holders.is_empty(), "dropped after {millis} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_an_administrator_terminates_are_reopened() {
    let schema = Schema::new();
    let settings = format!("application_name={}", schema.name);
    let store = Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap());
    let one = player(&store, 1);
    let client = schema.client().await;
    for _ in 0..3 {
        let lease = one.acquire().await;
        let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1";
        client.query(end, &[&schema.name]).await.unwrap();
        assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
        assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
    }
}
