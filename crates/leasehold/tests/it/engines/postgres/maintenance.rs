//! The history is bounded and complete for a reader that continues, and a sweep finds expired leases.

use std::time::{Duration, Instant};

use leasehold::model::LockName;
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Cursor, EventRange, ListEvents, LockStore};
use leasehold::testing::TestClient;
use tokio_postgres::Client;

use super::schema::Schema;
use crate::engines::support::clock;

fn after(cursor: Cursor) -> ListEvents {
    ListEvents::default().span(EventRange::After(cursor)).limit(1000)
}

#[tokio::test]
async fn history_is_bounded() {
    let schema = Schema::new();
    let store = std::sync::Arc::new(PostgresStore::connect(options(&schema)).await.unwrap());
    let client = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap());
    for _ in 0..30 {
        let lease = client.acquire().await;
        client.release(&lease).await;
    }
    store.sweep(10).await.unwrap();
    let page = store.history(&ListEvents::default().limit(1000)).await.unwrap();
    assert_eq!(page.items.len(), 20);
    // A reader that starts at the beginning gets all events at once: pruned events are not waited for.
    assert_eq!(store.history(&after(Cursor::start())).await.unwrap().items.len(), 20);
}

/// Number of events that a test adds: several times as many as one statement deletes.
pub(super) const MANY: i64 = 25_000;

/// Returns the options of a store that keeps 20 events.
fn options(schema: &Schema) -> PostgresOptions {
    let mut options = schema.options("pool=1");
    options.max_events = 20;
    options
}

/// Acquires a lock, and adds [`MANY`] copies of the event.
pub(super) async fn add_many_events(schema: &Schema) {
    let store = schema.store().await;
    TestClient::new(store, 1, LockName::new("lock").unwrap()).acquire().await;
    let copy = format!(
        "INSERT INTO {0}.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
         SELECT lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals
         FROM {0}.events, generate_series(1, {MANY})",
        schema.name
    );
    schema.client().await.batch_execute(&copy).await.unwrap();
}

pub(super) async fn count_events(client: &Client, schema: &Schema) -> i64 {
    let sql = format!("SELECT count(*) FROM {}.events", schema.name);
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_sweep_prunes_all_superfluous_events() {
    let schema = Schema::new();
    let store = PostgresStore::connect(options(&schema)).await.unwrap();
    add_many_events(&schema).await;
    store.sweep(10).await.unwrap();
    assert_eq!(count_events(&schema.client().await, &schema).await, 20);
}

/// A process that ends after a few operations prunes, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_prunes_a_long_history() {
    let schema = Schema::new();
    add_many_events(&schema).await;
    let (client, started) = (schema.client().await, Instant::now());
    // Repeated, because the server may be too busy to answer a statement of the store in time.
    while count_events(&client, &schema).await > MANY / 2 {
        assert!(started.elapsed() < Duration::from_mins(1), "the history is not pruned");
        let _store = PostgresStore::connect(options(&schema)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn old_events_are_pruned_and_the_newest_stays() {
    let schema = Schema::new();
    let clock = clock();
    let store = schema.store_at(&clock, "").await;
    let client = TestClient::new(store.clone(), 1, LockName::new("lock").unwrap());
    for _ in 0..3 {
        client.acquire().await;
        clock.advance(Duration::from_hours(40 * 24));
    }
    store.sweep(10).await.unwrap();
    let page = store.history(&ListEvents::default()).await.unwrap();
    // Only the first event, a grant, is older than 90 days; its expiry was recorded 40 days later.
    assert_eq!(page.items.len(), 5, "{page:?}");
    clock.advance(Duration::from_hours(400 * 24));
    store.sweep(10).await.unwrap();
    assert_eq!(store.history(&ListEvents::default()).await.unwrap().items.len(), 1);
}

/// A transaction has numbered its event but has not committed yet. A reader that continues must not skip the event.
#[tokio::test]
async fn an_event_that_is_committed_late_is_not_missed() {
    let schema = Schema::new();
    let store = schema.store().await;
    let clients = [1, 2].map(|number| {
        TestClient::new(store.clone(), number, LockName::new(format!("lock-{number}")).unwrap())
    });
    clients[0].acquire().await;
    let page = store.history(&after(Cursor::start())).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let late = schema.client().await;
    let copy = format!(
        "BEGIN; INSERT INTO {0}.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
         SELECT 'late', at, kind, token, lease_id, holder, shared, slots, after_micros, renewals FROM {0}.events",
        schema.name
    );
    late.batch_execute(&copy).await.unwrap();
    clients[1].acquire().await;
    let held_back = store.history(&after(page.next.clone().unwrap())).await.unwrap();
    assert!(held_back.items.is_empty(), "{held_back:?}");
    late.batch_execute("COMMIT").await.unwrap();
    let page = store.history(&after(held_back.next.unwrap())).await.unwrap();
    let locks: Vec<_> = page.items.iter().map(|event| event.lock.as_str()).collect();
    assert_eq!(locks, ["late", "lock-2"]);
}

#[tokio::test]
async fn a_sweep_finds_only_expired_leases_among_many() {
    let schema = Schema::new();
    let clock = clock();
    let store = schema.store_at(&clock, "").await;
    let client = |number: u128| {
        TestClient::new(store.clone(), number, LockName::new(format!("lock-{number}")).unwrap())
    };
    for number in 0..20 {
        let lease = client(number).acquire().await;
        if number < 10 {
            client(number).release(&lease).await;
        }
    }
    clock.advance(Duration::from_secs(9));
    for number in 15..20 {
        let lease = client(number).acquire().await;
        client(number).renew(&lease).await;
    }
    clock.advance(Duration::from_secs(2));
    // Five leases have expired. Free and renewed locks do not use up the limit.
    assert_eq!(store.sweep(3).await.unwrap().leases, 3);
    assert_eq!(store.sweep(3).await.unwrap().leases, 2);
    assert_eq!(store.sweep(3).await.unwrap().leases, 0);
    for _ in 0..10 {
        store.sweep(3).await.unwrap();
    }
    let due = format!("SELECT count(*) FROM {}.locks WHERE wake_at IS NOT NULL", schema.name);
    let due: i64 = schema.client().await.query_one(&due, &[]).await.unwrap().get(0);
    assert_eq!(due, 5, "only held locks remain to be swept");
}
