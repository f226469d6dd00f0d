//! The server restarts, the line is cut: nothing is lost, and nothing happens twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{EventKind, LeaseId, LockName, Outcome};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Cursor, EventRange, ListEvents, LockStore, StoreUrl};
use leasehold::testing::Player;

use super::private::Server;
use super::server::Schema;
use crate::engines::proxy::{Fault, Proxy};

fn player(store: &Arc<PostgresStore>, number: u128) -> Player {
    let mut player = Player::new(store.clone(), number, LockName::new("lock").unwrap());
    player.ask.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_restart_of_the_server() {
    let Some(mut server) = Server::start().await else { return };
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let mut one = player(&store, 1);
    one.ask.ttl = leasehold::model::Ttl::from_secs(60);
    let lease = one.takes().await;
    server.kill();
    // A process of the server may answer for a moment after the first of them has died.
    let error = loop {
        if let Err(error) = store.get(&one.lock).await {
            break error;
        }
    };
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    server.up().await;
    // The same store goes on: what it had open is gone, and it opens anew.
    let Outcome::Renewed(renewed) = one.renews(&lease).await else { panic!("not renewed") };
    assert_eq!((renewed.token, renewed.renewals), (lease.token, 1));
    player(&store, 2).is_refused().await;
    assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
}

/// Releases do not wait for the disk, grants do: of what was answered, a crash may lose the last releases and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_may_lose_a_release_but_no_grant() {
    let Some(mut server) = Server::start().await else { return };
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let mut leases = Vec::new();
    for number in 0..20 {
        let one = player(&store, number);
        let lease = one.takes().await;
        assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
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
    assert_eq!(record.token, last.token, "the last grant is there");
    // The release is, or it is not: then the lease ends by its time.
    assert!(record.holders.iter().all(|holder| holder.ask.lease_id == last.ask.lease_id), "{record:?}");
    let told = kinds(&store).await;
    assert_eq!(told.iter().filter(|kind| **kind == EventKind::Acquired).count(), leases.len(), "{told:?}");
    let released = told.iter().filter(|kind| **kind == EventKind::Released).count();
    assert_eq!(released, leases.len() - record.holders.len(), "the history agrees with the lock: {told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_no_hand_over() {
    let Some(mut server) = Server::start().await else { return };
    let options = PostgresOptions::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
    let store = Arc::new(PostgresStore::connect(options).await.unwrap());
    let players: Vec<_> = (0..20).map(|number| player(&store, number)).collect();
    let lease = players[0].takes().await;
    for player in &players[1..] {
        player.queues().await;
    }
    assert!(matches!(players[0].releases(&lease).await, Outcome::Released(_)));
    server.kill();
    server.up().await;
    let record = loop {
        if let Ok(record) = store.get(&players[0].lock).await {
            break record.unwrap();
        }
    };
    // Whoever was told of it counts on it.
    assert_eq!(record.holders[0].ask.lease_id, players[1].id(), "{record:?}");
    assert!(record.token > lease.token);
    assert_eq!(record.waiters.len(), 18, "tickets before it are as lasting as it is");
}

/// The test server, with a line that can be cut.
pub(super) async fn over_a_line(schema: &Schema, settings: &str) -> (Proxy, Arc<PostgresStore>) {
    let url = schema.url_with(settings);
    let (before, place) = url.split_once('@').unwrap();
    let (address, after) = place.split_once('/').unwrap();
    let proxy = Proxy::before(address.parse::<SocketAddr>().unwrap());
    let url = format!("{before}@{}/{after}", proxy.address());
    let options = PostgresOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    (proxy, Arc::new(PostgresStore::connect(options).await.unwrap()))
}

async fn takes_and_releases(player: &Player) {
    let lease = player.takes().await;
    player.releases(&lease).await;
}

async fn kinds(store: &PostgresStore) -> Vec<EventKind> {
    let ask = ListEvents { span: EventRange::After(Cursor::start()), limit: 100, lock: None };
    store.history(&ask).await.unwrap().items.into_iter().map(|event| event.kind).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_reply_was_lost_is_the_same_grant_when_asked_again() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=1").await;
    let direct = schema.store().await;
    // Opens the line and prepares what it takes.
    for number in [8, 9] {
        takes_and_releases(&player(&store, number)).await;
    }
    let one = player(&store, 1);
    proxy.set(Fault::DropReplies(1));
    // The write was made, its answer never came. It is asked again over a new line, with the same id.
    let lease = one.takes().await;
    proxy.set(Fault::None);
    let record = direct.get(&one.lock).await.unwrap().unwrap();
    assert_eq!((record.token, record.holders.len()), (lease.token, 1));
    let told = kinds(&direct).await;
    assert_eq!(told.iter().filter(|kind| **kind == EventKind::Acquired).count(), 3, "granted once: {told:?}");
    assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_is_not_known() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=1").await;
    let one = player(&store, 1);
    let lease = one.takes().await;
    one.releases(&lease).await;
    let lease = one.takes().await;
    proxy.set(Fault::DropReplies(1));
    let release = leasehold::model::Release { lease_id: one.id(), token: lease.token, at_least: None };
    let error = store.apply(&one.lock, &leasehold::model::LockOp::Release(release)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    proxy.set(Fault::None);
    // Whoever asks again learns that it is over.
    assert!(matches!(one.releases(&lease).await, Outcome::NotHeld(_)));
    assert!(one.record().await.holders.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_queue_a_lost_reply_costs_no_turn_and_gives_none_away() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=1").await;
    let [one, two, three] = [1, 2, 3].map(|number| player(&store, number));
    // Opens the line and prepares what it takes.
    let lease = one.takes().await;
    two.queues().await;
    one.releases(&lease).await;
    let lease = two.takes().await;
    one.queues().await;
    // The ticket was drawn, the answer never came. It is asked for again over a new line, with the same id.
    proxy.set(Fault::DropReplies(1));
    three.queues().await;
    proxy.set(Fault::None);
    let waiters: Vec<_> = three.record().await.waiters.iter().map(|ticket| ticket.ask.lease_id).collect();
    assert_eq!(waiters, [one.id(), three.id()]);
    // The lock was handed over, and whoever gave it does not know.
    proxy.set(Fault::DropReplies(1));
    let release = leasehold::model::Release { lease_id: two.id(), token: lease.token, at_least: None };
    let error = store.apply(&two.lock, &leasehold::model::LockOp::Release(release)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    proxy.set(Fault::None);
    assert!(matches!(two.releases(&lease).await, Outcome::NotHeld(_)));
    let record = one.record().await;
    assert_eq!((record.holders.len(), record.holders[0].ask.lease_id), (1, one.id()));
    assert_eq!(record.waiters.len(), 1);
    assert_eq!(one.takes().await.token, record.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_are_cut_between_calls_are_opened_again() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "").await;
    let one = player(&store, 1);
    for _ in 0..3 {
        let lease = one.takes().await;
        proxy.cut_all();
        assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
        assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_swallows_everything_is_given_up_on_within_seconds() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "pool=1").await;
    let one = player(&store, 1);
    let lease = one.takes().await;
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
    assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_) | Outcome::NotHeld(_)));
}

/// The client asks a store that fails again: all of that together ends as soon as one call of the store does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_over_a_line_that_swallows_everything_ends_within_seconds() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "").await;
    let leasehold = leasehold::Leasehold::with_store(store).unwrap();
    leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    proxy.set(Fault::BlackHole);
    for (ask, limit) in [
        (leasehold.lock("lock"), Duration::from_secs(5)),
        (leasehold.lock("lock").wait(Duration::from_secs(2)), Duration::from_secs(2)),
    ] {
        let started = std::time::Instant::now();
        assert_eq!(ask.acquire().await.unwrap_err().code(), "STORE_UNAVAILABLE");
        assert!(started.elapsed() < limit + Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_a_success() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "").await;
    let leasehold = leasehold::Leasehold::with_store(store).unwrap();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    proxy.set(Fault::DropReplies(1));
    assert_eq!(guard.run(async |_| 42).await.unwrap(), 42);
    assert!(!leasehold.status(&LockName::new("lock").unwrap()).await.unwrap().is_locked);
}

/// A caller that goes away: what it sent is done before what comes next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_dropped_is_taken_back_by_leaving() {
    let Some(schema) = Schema::new() else { return };
    let (proxy, store) = over_a_line(&schema, "").await;
    takes_and_releases(&player(&store, 9)).await;
    for millis in 0..20_u64 {
        let one = player(&store, 1);
        proxy.set(Fault::Delay(Duration::from_millis(5)));
        let _ = tokio::time::timeout(Duration::from_millis(millis), one.asks()).await;
        assert!(matches!(one.leaves().await, Outcome::Left));
        proxy.set(Fault::None);
        assert!(one.record().await.holders.is_empty(), "dropped after {millis} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_an_administrator_ends_are_opened_again() {
    let Some(schema) = Schema::new() else { return };
    let settings = format!("application_name={}", schema.name);
    let store = Arc::new(PostgresStore::connect(schema.options(&settings)).await.unwrap());
    let one = player(&store, 1);
    let client = schema.client().await;
    for _ in 0..3 {
        let lease = one.takes().await;
        let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1";
        client.query(end, &[&schema.name]).await.unwrap();
        assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
        assert!(matches!(one.releases(&lease).await, Outcome::Released(_)));
    }
}
