//! Connection on the caller's own runtime: whatever happens to that runtime, leases are kept, and calls that were dropped
//! take effect before those that follow, or never.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::model::{LeaseId, LockName, Outcome};
use leasehold::store::postgres::PostgresStore;
use leasehold::store::{ListLocks, LockStore};
use leasehold::testing::TestClient;
use tokio::runtime::Runtime;

use super::schema::Schema;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn player(store: &Arc<PostgresStore>, number: u128) -> TestClient {
    let mut player = TestClient::new(store.clone(), number, LockName::new("lock").unwrap());
    player.request.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

async fn takes_and_releases(player: &TestClient) {
    let lease = player.acquire().await;
    assert!(matches!(player.release(&lease).await, Outcome::Released(_)));
}

/// Connects a store on this runtime, with its inline connection open.
async fn store_with_inline_connection(schema: &Schema) -> Arc<PostgresStore> {
    let (store, client) = (schema.store().await, schema.client().await);
    let used = format!("% {}.locks %", schema.name);
    let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> pg_backend_pid()";
    // The batching connection, and the inline connection.
    while client.query_one(count, &[&used]).await.unwrap().get::<_, i64>(0) < 2 {
        takes_and_releases(&player(&store, 9)).await;
    }
    store
}

#[test]
fn the_store_survives_the_end_of_its_runtime() {
    let schema = Schema::new();
    let first = runtime();
    let store = first.block_on(store_with_inline_connection(&schema));
    let one = player(&store, 1);
    let lease = first.block_on(one.acquire());
    drop(first);
    // A runtime without I/O suffices.
    let second = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert!(matches!(second.block_on(one.renew(&lease)), Outcome::Renewed(_)));
    assert!(matches!(second.block_on(one.release(&lease)), Outcome::Released(_)));
}

#[tokio::test]
async fn a_blocked_runtime_keeps_its_lease() {
    let schema = Schema::new();
    let leasehold = leasehold::Leasehold::connect(&schema.url_with("")).await.unwrap();
    for _ in 0..50 {
        leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    }
    let guard = leasehold.lock("lock").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    // Twice the TTL, during which nothing else on this runtime makes progress.
    std::thread::sleep(Duration::from_secs(6));
    guard.release().await.unwrap();
}

/// A caller keeps its call without polling it, as one does whose runtime is blocked. Its statement is in flight on the
/// connection that the other calls use, too.
#[tokio::test]
async fn a_call_that_is_not_polled_delays_no_other_call() {
    let schema = Schema::new();
    let store = schema.store().await;
    let [one, two] = [1, 2].map(|number| {
        let mut player = player(&store, number);
        player.lock = LockName::new(format!("lock-{number}")).unwrap();
        player
    });
    // Opens the connection and prepares the statements.
    for _ in 0..2 {
        takes_and_releases(&one).await;
    }
    for is_dropped in [false, true] {
        let kept = loop {
            let mut call = Box::pin(one.try_acquire());
            match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
                Poll::Pending => break call,
                // This thread was not scheduled between the request and its response.
                Poll::Ready(Outcome::Granted(lease)) => drop(one.release(&lease).await),
                Poll::Ready(other) => panic!("{other:?}"),
            }
        };
        takes_and_releases(&two).await;
        if is_dropped {
            drop(kept);
            assert!(matches!(one.withdraw().await, Outcome::Withdrawn));
        } else {
            let Outcome::Granted(lease) = kept.await else { panic!("not granted") };
            assert!(matches!(one.release(&lease).await, Outcome::Released(_)));
        }
        assert!(one.record().await.holders.is_empty());
    }
}

#[tokio::test]
async fn a_read_that_is_not_polled_delays_no_other_read() {
    let schema = Schema::new();
    let store = schema.store().await;
    // Occupies the first connection, so that the read has to open one.
    takes_and_releases(&player(&store, 1)).await;
    let query = ListLocks::default();
    let mut kept = store.list(&query);
    assert!(poll_fn(|context| Poll::Ready(kept.as_mut().poll(context).is_pending())).await);
    assert_eq!(store.list(&query).await.unwrap().items.len(), 1);
    assert_eq!(kept.await.unwrap().items.len(), 1);
}

/// The statement is in flight, or waits to be sent, on a runtime that no longer makes progress.
#[test]
fn a_statement_of_a_blocked_runtime_is_terminated_before_the_next_call_for_its_lease() {
    let schema = Schema::new();
    let (first, second) = (runtime(), runtime());
    let store = first.block_on(store_with_inline_connection(&schema));
    for polls in 0..4 {
        let one = player(&store, 1);
        first.block_on(async {
            let mut asks = Box::pin(one.try_acquire());
            for _ in 0..=polls {
                if poll_fn(|context| Poll::Ready(asks.as_mut().poll(context).is_ready())).await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(asks);
            // The first runtime is blocked until this call returns.
            let left = std::thread::scope(|scope| scope.spawn(|| second.block_on(one.withdraw())).join());
            assert!(matches!(left.unwrap(), Outcome::Withdrawn));
        });
        // A statement that was not sent yet would be sent now, before this one.
        first.block_on(takes_and_releases(&player(&store, 2)));
        assert!(first.block_on(one.record()).holders.is_empty(), "after {polls} polls");
    }
}

/// The statement waits for a row when its runtime ends.
#[test]
fn a_runtime_that_ends_during_a_call_leaves_no_lease() {
    let schema = Schema::new();
    let (first, second) = (runtime(), runtime());
    let store = first.block_on(store_with_inline_connection(&schema));
    let client = second.block_on(schema.client());
    let hold = format!("BEGIN; SELECT * FROM {}.locks FOR UPDATE", schema.name);
    second.block_on(client.batch_execute(&hold)).unwrap();
    let one = player(&store, 1);
    let asks = one.clone();
    first.spawn(async move { drop(asks.try_acquire().await) });
    first.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    drop(first);
    let leaves = one.clone();
    second.block_on(async move {
        let leaving = tokio::spawn(async move { leaves.withdraw().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.batch_execute("COMMIT").await.unwrap();
        assert!(matches!(leaving.await.unwrap(), Outcome::Withdrawn));
    });
    assert!(second.block_on(store.get(&one.lock)).unwrap().unwrap().holders.is_empty());
}
