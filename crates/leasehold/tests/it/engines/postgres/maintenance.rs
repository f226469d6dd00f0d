//! The history is bounded and complete for a reader that continues, and a sweep finds expired leases.

use std::time::Duration;

use leasehold::model::LockName;
use leasehold::store::{Cursor, EventRange, ListEvents, LockStore};
use leasehold::testing::TestClient;

use super::schema::Schema;
use crate::engines::support::clock;

fn after(cursor: Cursor) -> ListEvents {
    ListEvents::default().span(EventRange::After(cursor)).limit(1000)
}

#[tokio::test]
async fn history_is_bounded() {
    let schema = Schema::new();
    let mut options = schema.options("pool=1");
    options.max_events = 20;
    let store =
        std::sync::Arc::new(leasehold::store::postgres::PostgresStore::connect(options).await.unwrap());
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
