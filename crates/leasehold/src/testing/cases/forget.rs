//! Forgetting of idle locks: only idle locks are forgotten, and tokens keep increasing.

use std::time::Duration;

use crate::model::{EventKind, LockName, Ttl};
use crate::store::{ListEvents, ListLocks};
use crate::testing::{Fixture, TestClient};

/// Minimum time without a grant before a lock is forgotten in these cases.
const IDLE: Ttl = Ttl::from_secs(600);
/// [`IDLE`] in milliseconds.
const IDLE_MILLIS: u64 = 600_000;
/// Time between two passes in milliseconds. An engine needs a few passes to forget a lock.
const BETWEEN_PASSES: u64 = 61_000;

pub async fn an_idle_lock_is_forgotten(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release(&lease).await;
    f.pass(IDLE_MILLIS);
    assert_eq!(forget(&f).await, 1);
    assert!(!exists(&b).await);
    let listed = f.two.locks().list(&ListLocks::default()).await.expect("listed");
    assert!(listed.items.is_empty(), "{listed:?}");
    assert_eq!(forget(&f).await, 0);
    let again = b.acquire().await;
    assert!(again.token > lease.token);
    assert!(b.holds().await);
}

pub async fn a_forgotten_lock_is_free_and_its_history_stays(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release(&lease).await;
    f.pass(IDLE_MILLIS);
    assert_eq!(forget(&f).await, 1);
    let query = ListEvents { lock: Some(a.lock.clone()), ..ListEvents::default() };
    let kinds = |page: crate::store::Page<crate::model::Event>| -> Vec<EventKind> {
        page.items.into_iter().map(|event| event.kind).collect()
    };
    let told = f.one.locks().history(&query).await.expect("told");
    assert_eq!(kinds(told), [EventKind::Released, EventKind::Acquired]);
    let all = f.one.locks().history(&ListEvents::default()).await.expect("told");
    assert_eq!(kinds(all), [EventKind::Released, EventKind::Acquired]);
    // The old lease can be neither renewed nor released, and trying so creates no lock.
    assert!(matches!(a.renew(&lease).await, crate::model::Outcome::NotHeld(_)));
    assert!(matches!(a.release(&lease).await, crate::model::Outcome::NotHeld(_)));
    assert!(matches!(a.force_release(lease.token).await, crate::model::Outcome::NotHeld(_)));
    assert!(!exists(&b).await);
}

pub async fn a_lock_that_is_held_awaited_or_retained_is_not_forgotten(f: Fixture) {
    let held = f.client(1, "held");
    let waiting = f.client(2, "held");
    let kept = f.client(3, "kept");
    held.acquire_for(7_200).await;
    waiting.expect_queued_for(7_200).await;
    let lease = kept.acquire_for(7_200).await;
    kept.release_with(lease.token, Some(Ttl::from_secs(7_200))).await;
    f.pass(IDLE_MILLIS);
    assert_eq!(forget(&f).await, 0);
    assert_eq!(held.record().await.waiters.len(), 1);
    assert!(held.holds().await && kept.holds().await);
    assert!(f.client(4, "kept").expect_conflict().await.holders.len() == 1);
}

pub async fn a_recently_granted_lock_is_not_forgotten(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release(&lease).await;
    f.pass(IDLE_MILLIS);
    let lease = b.acquire().await;
    b.release(&lease).await;
    assert_eq!(forget(&f).await, 0);
    assert!(exists(&a).await);
}

pub async fn an_expired_lease_is_swept_before_its_lock_is_forgotten(f: Fixture) {
    let [a] = f.clients("lock");
    a.acquire().await;
    f.pass(IDLE_MILLIS);
    assert_eq!(forget(&f).await, 0, "its end has not been told yet");
    assert_eq!(f.one.locks().sweep(10).await.expect("swept").leases, 1);
    assert_eq!(forget(&f).await, 1);
    let query = ListEvents { lock: Some(a.lock.clone()), ..ListEvents::default() };
    let told = f.one.locks().history(&query).await.expect("told");
    assert_eq!(told.items.first().map(|event| event.kind), Some(EventKind::Expired));
}

pub async fn tokens_rise_after_forgetting_with_a_clock_set_back(f: Fixture) {
    let [a, b] = f.clients("lock");
    let lease = a.acquire().await;
    a.release(&lease).await;
    f.pass(IDLE_MILLIS);
    assert_eq!(forget(&f).await, 1);
    f.clock.set_back(Duration::from_hours(24));
    let again = b.acquire().await;
    assert!(again.token > lease.token, "{} after {}", again.token, lease.token);
    // A force-release also creates a new token, which no lease is granted with; later tokens are
    // higher still.
    b.force_release(again.token).await;
    let newest = b.record().await.token;
    assert!(newest > again.token);
    assert!(a.acquire().await.token > newest);
}

pub async fn concurrent_forgetting_and_acquiring_lose_nothing(f: Fixture) {
    for round in 0..12 {
        let name = format!("lock-{round}");
        let [a, b] = f.clients(&name);
        let lease = a.acquire().await;
        a.release(&lease).await;
        f.pass(IDLE_MILLIS);
        f.one.locks().sweep(100).await.expect("swept");
        f.one.locks().forget(IDLE, 100).await.expect("forgotten");
        f.pass(BETWEEN_PASSES);
        let (forgotten, taken) = tokio::join!(f.one.locks().forget(IDLE, 100), b.acquire());
        forgotten.expect("forgotten");
        assert!(taken.token > lease.token);
        assert!(b.holds().await, "what was granted is there");
        let again = b.renew(&taken).await;
        assert!(matches!(again, crate::model::Outcome::Renewed(_)), "{again:?}");
        b.release(&taken).await;
    }
}

pub async fn one_pass_forgets_at_most_its_limit(f: Fixture) {
    for number in 0..5 {
        let client = f.client(number + 1, &format!("lock-{number}"));
        let lease = client.acquire().await;
        client.release(&lease).await;
    }
    f.pass(IDLE_MILLIS);
    f.one.locks().sweep(100).await.expect("swept");
    let mut all = 0;
    for _ in 0..12 {
        let some = f.one.locks().forget(IDLE, 2).await.expect("forgotten");
        assert!(some <= 2);
        all += some;
        f.pass(BETWEEN_PASSES);
    }
    assert_eq!(all, 5);
}

/// Runs passes until every forgettable lock is forgotten, and returns their number.
async fn forget(f: &Fixture) -> u32 {
    let mut all = 0;
    for _ in 0..3 {
        f.two.locks().sweep(0).await.expect("swept");
        all += f.one.locks().forget(IDLE, 100).await.expect("forgotten");
        f.pass(BETWEEN_PASSES);
    }
    all
}

async fn exists(client: &TestClient) -> bool {
    let name: &LockName = &client.lock;
    client.store.locks().get(name).await.expect("the store answers").is_some()
}
