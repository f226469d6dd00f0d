//! The slot of locks moves to another node of a Cluster, key by key.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockName, LockOp, Outcome};
use leasehold::store::redis::RedisStore;
use leasehold::store::{ListEvents, Store};
use leasehold::testing::TestClient;

use super::cluster::MovingSlot;
use super::support::options;

/// The bucket of a name is part of the stored format.
const LOCK: &str = "terraform-prod";
const DUE: &str = "p:{35}:due";

#[tokio::test]
async fn an_acquire_that_is_refused_while_the_slot_moves_writes_nothing() {
    let moving = MovingSlot::of(DUE).await;
    let store = Arc::new(RedisStore::connect(options(&moving.url(), "p")).await.unwrap());
    let client = TestClient::new(store.clone(), 1, LockName::new(LOCK).unwrap());
    let lease = client.acquire_for(600).await;
    assert!(matches!(client.release(&lease).await, Outcome::Released(_)));
    moving.begin().await;
    // A lease that ends before the first one would is written to this key, after its event. The record stays
    // for now.
    moving.move_keys(&[DUE.to_owned()]).await;
    let request = Arc::new(client.request.clone());
    let acquire = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
    let error = store.locks().apply(&client.lock, &acquire).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    moving.finish().await;
    let repeated = async {
        loop {
            match store.locks().apply(&client.lock, &acquire).await {
                Ok(outcome) => return outcome,
                // The client still sends to the old node.
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_mins(1), repeated).await.expect("the slot has moved");
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
    let events = store.locks().history(&ListEvents::default()).await.unwrap().items;
    assert_eq!(events.len(), 3, "{events:?}");
}
