//! Tests that no clock decides which client holds a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{LockName, Outcome, Ttl};
use leasehold::store::{Clock, Store, github};
use leasehold::testing::TestClient;

use super::support::{new_id, options};
use crate::engines::github::fake::Fake;

/// Long enough that a busy machine renews a lease in time.
const TTL: Duration = Duration::from_secs(4);

async fn store(fake: &Fake, login: &str, settings: &str) -> Arc<dyn Store> {
    github::connect(options(fake, login, settings)).await.unwrap()
}

fn test_client(store: &Arc<dyn Store>) -> TestClient {
    let mut test_client = TestClient::new(store.clone(), new_id(), LockName::new("lock").unwrap());
    test_client.request.ttl = Ttl::new(TTL).unwrap();
    test_client
}

/// Requests the lock until it is granted.
async fn until_granted(test_client: &TestClient) {
    let started = Instant::now();
    while !matches!(test_client.try_acquire().await, Outcome::Granted(_)) {
        assert!(started.elapsed() < 5 * TTL, "never granted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_lease_ends_when_it_was_observed_for_its_whole_ttl() {
    let fake = Fake::start(&Clock::system()).await;
    let (one, two) = (store(&fake, "ada", "").await, store(&fake, "bob", "").await);
    let (a, b) = (test_client(&one), test_client(&two));
    let lease = a.acquire().await;
    // A renewed lease is held past its first end.
    let started = Instant::now();
    while started.elapsed() < 2 * TTL {
        b.expect_conflict().await;
        assert!(matches!(a.renew(&lease).await, Outcome::Renewed(_)));
        tokio::time::sleep(TTL / 5).await;
    }
    let sent = Instant::now();
    assert!(matches!(a.renew(&lease).await, Outcome::Renewed(_)));
    b.expect_conflict().await;
    let seen = Instant::now();
    until_granted(&b).await;
    assert!(sent.elapsed() >= TTL, "granted while it was held");
    assert!(seen.elapsed() < TTL + Duration::from_secs(1), "recovered late: {:?}", seen.elapsed());
    assert!(matches!(a.renew(&lease).await, Outcome::NotHeld(_)));
}

#[tokio::test]
async fn a_new_client_detects_an_ended_lease_only_with_the_date() {
    let fake = Fake::start(&Clock::system()).await;
    let dated = "&clock=date&skew=500ms";
    test_client(&store(&fake, "ada", dated).await).acquire().await;
    let started = Instant::now();
    // The same lock, each time by a client that has never read it.
    loop {
        let newcomer = test_client(&store(&fake, "bob", dated).await);
        if matches!(newcomer.try_acquire().await, Outcome::Granted(_)) {
            break;
        }
        test_client(&store(&fake, "eve", "&clock=watch").await).expect_conflict().await;
        assert!(started.elapsed() < TTL + Duration::from_secs(6), "the date does not decide");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(started.elapsed() >= TTL, "granted while it was held");
}

/// A guard stays valid over a slow store.
#[tokio::test]
async fn a_guard_is_renewed_and_waiters_are_granted_in_order() {
    let fake = Fake::start(&Clock::system()).await;
    let holder = leasehold::Leasehold::with_store(store(&fake, "ada", "").await).unwrap();
    let guard = holder.lock("lock").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    let other = leasehold::Leasehold::with_store(store(&fake, "bob", "").await).unwrap();
    let error = other.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "LOCK_CONFLICT");
    let waits = tokio::spawn(async move { other.lock("lock").wait(Duration::from_secs(40)).acquire().await });
    while holder.locks().status(&LockName::new("lock").unwrap()).await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    guard.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    guard.release().await.unwrap();
}
