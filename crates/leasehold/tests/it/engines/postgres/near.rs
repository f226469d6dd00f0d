//! The connection on the caller's own runtime: whatever becomes of that runtime, leases are kept, and calls that were
//! dropped come before those that follow or not at all.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold::model::{LeaseId, LockName, Outcome};
use leasehold::store::LockStore;
use leasehold::store::postgres::PostgresStore;
use leasehold::testing::Player;
use tokio::runtime::Runtime;

use super::server::Schema;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn player(store: &Arc<PostgresStore>, number: u128) -> Player {
    let mut player = Player::new(store.clone(), number, LockName::new("lock").unwrap());
    player.ask.lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    player
}

async fn takes_and_releases(player: &Player) {
    let lease = player.takes().await;
    assert!(matches!(player.releases(&lease).await, Outcome::Released(_)));
}

/// A store on this runtime, with its near connection open.
async fn store_nearby(schema: &Schema) -> Arc<PostgresStore> {
    let (store, client) = (schema.store().await, schema.client().await);
    let used = format!("% {}.locks %", schema.name);
    let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> pg_backend_pid()";
    // The lane's, and this one.
    while client.query_one(count, &[&used]).await.unwrap().get::<_, i64>(0) < 2 {
        takes_and_releases(&player(&store, 9)).await;
    }
    store
}

#[test]
fn a_runtime_that_is_gone_does_not_take_the_store_with_it() {
    let Some(schema) = Schema::new() else { return };
    let first = runtime();
    let store = first.block_on(store_nearby(&schema));
    let one = player(&store, 1);
    let lease = first.block_on(one.takes());
    drop(first);
    // Not even one that could do I/O is needed.
    let second = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert!(matches!(second.block_on(one.renews(&lease)), Outcome::Renewed(_)));
    assert!(matches!(second.block_on(one.releases(&lease)), Outcome::Released(_)));
}

#[tokio::test]
async fn work_that_blocks_its_runtime_keeps_its_lease() {
    let Some(schema) = Schema::new() else { return };
    let leasehold = leasehold::Leasehold::connect(&schema.url_with("")).await.unwrap();
    for _ in 0..50 {
        leasehold.lock("lock").acquire().await.unwrap().release().await.unwrap();
    }
    let guard = leasehold.lock("lock").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    // Three times its ttl, and nothing else of this runtime gets a turn.
    std::thread::sleep(Duration::from_secs(3));
    guard.release().await.unwrap();
}

/// The statement is on its way, or waits to be sent, on a runtime that does nothing any more.
#[test]
fn what_a_blocked_runtime_has_left_behind_is_ended_before_the_next_call_for_the_lease() {
    let Some(schema) = Schema::new() else { return };
    let (first, second) = (runtime(), runtime());
    let store = first.block_on(store_nearby(&schema));
    for turns in 0..4 {
        let one = player(&store, 1);
        first.block_on(async {
            let mut asks = Box::pin(one.asks());
            for _ in 0..=turns {
                if poll_fn(|context| Poll::Ready(asks.as_mut().poll(context).is_ready())).await {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(asks);
            // Until this is done, the first runtime is blocked.
            let left = std::thread::scope(|scope| scope.spawn(|| second.block_on(one.leaves())).join());
            assert!(matches!(left.unwrap(), Outcome::Left));
        });
        // Whatever was left to be sent would be sent now, before this.
        first.block_on(takes_and_releases(&player(&store, 2)));
        assert!(first.block_on(one.record()).holders.is_empty(), "after {turns} turns");
    }
}

/// Its statement waits for a row when its runtime goes away.
#[test]
fn a_runtime_that_ends_in_the_middle_of_a_call_leaves_nothing_behind() {
    let Some(schema) = Schema::new() else { return };
    let (first, second) = (runtime(), runtime());
    let store = first.block_on(store_nearby(&schema));
    let client = second.block_on(schema.client());
    let hold = format!("BEGIN; SELECT * FROM {}.locks FOR UPDATE", schema.name);
    second.block_on(client.batch_execute(&hold)).unwrap();
    let one = player(&store, 1);
    let asks = one.clone();
    first.spawn(async move { drop(asks.asks().await) });
    first.block_on(async { tokio::time::sleep(Duration::from_millis(50)).await });
    drop(first);
    let leaves = one.clone();
    second.block_on(async move {
        let leaving = tokio::spawn(async move { leaves.leaves().await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.batch_execute("COMMIT").await.unwrap();
        assert!(matches!(leaving.await.unwrap(), Outcome::Left));
    });
    assert!(second.block_on(store.get(&one.lock)).unwrap().unwrap().holders.is_empty());
}
