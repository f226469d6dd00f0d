//! Acquiring several locks at once: in order, all or none.

use std::time::Duration;

use leasehold::model::{ForceRelease, LockOp};
use leasehold::testing::Fault;

use super::support::{TTL, faulty, memory, name, until};

#[tokio::test]
async fn all_are_held_and_all_are_released() {
    let leasehold = memory().await;
    let guard = leasehold.lock("b").and("c").and("a").acquire().await.unwrap();
    let names: Vec<_> = guard.leases().iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for lock in ["a", "b", "c"] {
        leasehold.lock(lock).acquire().await.unwrap_err();
    }
    guard.release().await.unwrap();
    for lock in ["a", "b", "c"] {
        assert!(!leasehold.locks().status(&name(lock)).await.unwrap().is_locked, "{lock}");
    }
}

#[tokio::test]
async fn if_one_lock_is_held_none_is_acquired() {
    let leasehold = memory().await;
    let _held = leasehold.lock("b").acquire().await.unwrap();
    leasehold.lock("c").and("b").and("a").acquire().await.unwrap_err();
    leasehold.clone().close().await;
    for lock in ["a", "c"] {
        assert!(!leasehold.locks().status(&name(lock)).await.unwrap().is_locked, "{lock}");
    }
}

#[tokio::test]
async fn losing_one_lease_loses_the_guard() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("a").and("b").ttl(TTL).acquire().await.unwrap();
    let token = guard.leases()[1].1.token;
    let (by, reason) = ("admin".try_into().unwrap(), "stuck".try_into().unwrap());
    other.locks().force_release(&name("b"), token, by, reason).await.unwrap();
    guard.lost().await;
    assert!(store.sent().iter().any(|op| matches!(op, LockOp::Renew(_))));
    store.from_now_on(Fault::None);
}

/// Without a global order, two callers that name the same locks in different orders would wait for
/// each other forever.
#[tokio::test]
async fn callers_that_acquire_the_same_locks_do_not_deadlock() {
    let leasehold = memory().await;
    let work = async |first: &'static str, second: &'static str| {
        for _ in 0..50 {
            let lock = leasehold.lock(first).and(second).wait(Duration::from_secs(30));
            lock.acquire().await.unwrap().release().await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let both = async { tokio::join!(work("a", "b"), work("b", "a")) };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("no deadlock");
    until("free", async || !leasehold.locks().status(&name("a")).await.unwrap().is_locked).await;
}

/// A caller may stop waiting for a release. The leases would otherwise block other callers until they
/// expire.
#[tokio::test]
async fn a_release_whose_future_is_dropped_is_finished_in_the_background() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("a").and("b").ttl(Duration::from_mins(10)).acquire().await.unwrap();
    store.plan([Fault::Hang]);
    let release = tokio::time::timeout(Duration::from_millis(20), guard.release()).await;
    assert!(release.is_err(), "the first release does not return: {release:?}");
    for lock in ["a", "b"] {
        until(lock, async || !other.locks().status(&name(lock)).await.unwrap().is_locked).await;
    }
}

/// The locks are released in reverse order. The loss of the last one shows, and then the store fails.
#[tokio::test]
async fn a_release_that_fails_does_not_hide_the_loss_of_another_lease() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("a").and("b").ttl(Duration::from_mins(10)).acquire().await.unwrap();
    let token = guard.leases()[1].1.token;
    let (by, reason) = ("admin".try_into().unwrap(), "stuck".try_into().unwrap());
    // Through the store, so that the guard is not notified.
    let force = LockOp::ForceRelease(ForceRelease { token, by, reason });
    other.store().locks().apply(&name("b"), &force).await.unwrap();
    store.plan([Fault::None, Fault::Refuse]);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.to_string(), "the lease on lock 'b' was lost: admin took it by force (stuck)");
}
