//! Tests of the metrics of locks on issues.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{LockName, Outcome};
use leasehold::store::InstrumentedStore;
use leasehold::testing::TestClient;

use super::support::{GRACE, TTL, client, fake};

/// A grant takes several requests, and the service dates each of them.
#[tokio::test]
async fn a_slow_lock_is_counted_as_on_other_engines() {
    let (fake, clock) = fake().await;
    fake.new_issue("Deploy");
    let store = Arc::new(InstrumentedStore::new(client(&fake, "ada").await));
    let lock = LockName::new("#1").unwrap();
    let [ada, bob, eve] = [1, 2, 3].map(|id| TestClient::new(store.clone(), id, lock.clone()));
    // The client reads the first list before it posts its candidate, and the second one after that;
    // then the candidate becomes a lease.
    let slow = || {
        let clock = clock.clone();
        fake.after_request("GET /1/comments", |_| {});
        fake.after_request("GET /1/comments", move |_| clock.advance(Duration::from_secs(1)));
    };
    slow();
    let lease = ada.acquire().await;
    assert!(lease.renewed_at > lease.acquired_at, "{lease:?}");
    bob.expect_conflict().await;
    bob.expect_conflict().await;
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
    ada.release(&lease).await;
    slow();
    bob.acquire().await;
    let reading = store.read().await;
    assert_eq!((reading.acquisitions, reading.releases), (2, 1));
    assert_eq!((reading.conflicts, reading.retries, reading.failures), (1, 2, 0));
    assert_eq!((reading.acquire.count(), reading.hold.count()), (2, 1));
    assert!(reading.acquire.sum > 0.0);
    // The holder has died, and the next client takes the lock over.
    clock.advance(Duration::from_millis(TTL + GRACE));
    slow();
    eve.acquire().await;
    let reading = store.read().await;
    assert_eq!((reading.acquisitions, reading.recovered_in_all()), (3, 1));
}
