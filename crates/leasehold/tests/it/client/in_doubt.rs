//! Lost answers to operations that end a lease: an operation that was executed is a success, and a
//! loss is reported.

use std::time::Duration;

use leasehold::Error;
use leasehold::model::{Holder, LockOp, Reason, Ttl};
use leasehold::testing::{Fault, FaultyStore};

use super::support::{TTL, faulty, name, until};

fn ada() -> Holder {
    Holder::new("ada").unwrap()
}

fn stuck() -> Reason {
    Reason::new("stuck").unwrap()
}

fn count(store: &FaultyStore, filter: fn(&LockOp) -> bool) -> usize {
    store.sent().iter().filter(|op| filter(op)).count()
}

#[tokio::test]
async fn a_release_by_id_whose_answer_was_lost_is_a_success() {
    let (store, leasehold, other) = faulty();
    let (_, lease) = leasehold.lock("lock").acquire().await.unwrap().detach().remove(0);
    store.plan([Fault::LoseAnswer]);
    leasehold.locks().release("lock", lease.request.lease_id, lease.token).await.unwrap();
    assert!(!leasehold.locks().status("lock").await.unwrap().is_locked);
    // The release of a lease that is not held is an error.
    let error = other.locks().release("lock", lease.request.lease_id, lease.token).await.unwrap_err();
    assert_eq!(error.code(), "LOCK_NOT_HELD");
}

#[tokio::test]
async fn a_lost_release_request_does_not_hide_a_loss() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    other.locks().force_release(&name("lock"), guard.token(), ada(), stuck()).await.unwrap();
    store.plan([Fault::LoseRequest]);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.to_string(), "the lease on lock 'lock' was lost: ada took it by force (stuck)");
}

/// A renewal whose response was lost has extended the lease, so the store has it for longer than the guard knows.
#[tokio::test]
async fn a_lease_whose_release_failed_is_released_when_the_store_is_back() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("first").and("second").ttl(TTL).acquire().await.unwrap();
    for (lock, lease) in guard.leases() {
        let extended = Some(Ttl::from_secs(60));
        other.locks().renew(&lock, lease.request.lease_id, lease.token, extended).await.unwrap();
    }
    store.from_now_on(Fault::LoseRequest);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    store.from_now_on(Fault::None);
    for lock in ["first", "second"] {
        let guard = other.lock(lock).wait(Duration::from_secs(20)).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// The guard ends at its maximum hold time, long before its lease. The store is unavailable for longer than
/// the minimum time of a release in the background.
#[tokio::test]
async fn a_lease_is_released_after_an_outage_at_the_maximum_hold_time() {
    let (store, leasehold, other) = faulty();
    let request = leasehold.lock("lock").ttl(Duration::from_mins(1)).max_hold(Duration::from_millis(300));
    let guard = request.acquire().await.unwrap();
    store.from_now_on(Fault::LoseRequest);
    guard.lost().await;
    drop(guard);
    tokio::time::sleep(Duration::from_secs(3)).await;
    store.from_now_on(Fault::None);
    other.lock("lock").wait(Duration::from_secs(20)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_reports_how_the_lease_had_ended() {
    let (_, leasehold, other) = faulty();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    other.locks().release("lock", guard.lease_id(), guard.token()).await.unwrap();
    let error = guard.release().await.unwrap_err();
    let message = "the lease on lock 'lock' was lost: it had been released already, by its id and token";
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn a_force_release_whose_answer_was_lost_is_a_success() {
    let (store, leasehold, other) = faulty();
    let guard = other.lock("lock").acquire().await.unwrap();
    store.plan([Fault::LoseAnswer]);
    let status = leasehold.locks().force_release(&name("lock"), guard.token(), ada(), stuck()).await.unwrap();
    assert!(!status.is_locked);
    let error =
        leasehold.locks().force_release(&name("lock"), guard.token(), ada(), stuck()).await.unwrap_err();
    assert_eq!(error.code(), "LOCK_NOT_HELD");
}

#[tokio::test]
async fn holders_get_one_release_request_although_the_answer_was_lost() {
    let (store, leasehold, other) = faulty();
    let _guard = other.lock("lock").acquire().await.unwrap();
    store.plan([Fault::LoseAnswer]);
    assert_eq!(leasehold.locks().request_release(&name("lock"), ada(), Some(stuck())).await.unwrap(), 1);
    assert_eq!(count(&store, |op| matches!(op, LockOp::RequestRelease(_))), 1);
    // A request that did not arrive is sent again; the request of another caller does not count.
    store.plan([Fault::LoseRequest]);
    let bob = Holder::new("bob").unwrap();
    assert_eq!(leasehold.locks().request_release(&name("lock"), bob.clone(), None).await.unwrap(), 1);
    assert_eq!(
        other.locks().status(&name("lock")).await.unwrap().holders[0].release_request.as_ref().unwrap().by,
        bob
    );
}

#[tokio::test]
async fn a_holder_that_released_after_the_request_is_no_error() {
    let (store, leasehold, other) = faulty();
    let guard = other.lock("lock").acquire().await.unwrap();
    store.plan([Fault::LoseAnswer]);
    let locks = leasehold.locks();
    let request = locks.request_release("lock", ada(), None);
    let (holders, released) = tokio::join!(request, guard.release());
    released.unwrap();
    assert_eq!(holders.unwrap(), 0);
}

/// The caller does not learn from the store which lease it has changed.
#[tokio::test]
async fn holders_are_notified_of_changes_whose_answers_were_lost() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let (store, leasehold, other) = faulty();
    let holder = async |lock: &str| other.lock(lock).ttl(Duration::from_mins(30)).acquire().await.unwrap();
    let (released, forced, renewed) =
        (holder("released").await, holder("forced").await, holder("renewed").await);
    // Until the guards have subscribed. On a busy machine they may not have; they read the locks afterwards.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let locks = leasehold.locks();
    store.plan([Fault::LoseAnswer]);
    locks.release("released", released.lease_id(), released.token()).await.unwrap();
    tokio::time::timeout(PATIENCE, released.lost()).await.expect("the holder learns of the release");
    store.plan([Fault::LoseAnswer]);
    locks.force_release("forced", forced.token(), ada(), stuck()).await.unwrap();
    tokio::time::timeout(PATIENCE, forced.lost()).await.expect("the holder learns of the forced release");
    store.plan([Fault::LoseAnswer]);
    let shorter = Some(Ttl::from_secs(60));
    let error = locks.renew("renewed", renewed.lease_id(), renewed.token(), shorter).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    until("the guard renews its lease", async || {
        other.locks().status("renewed").await.unwrap().holders[0].renewals >= 2
    })
    .await;
}

#[tokio::test]
async fn work_keeps_its_result_when_the_release_shows_a_loss() {
    let (_, leasehold, other) = faulty();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let run = guard.run(async |lease| {
        other.locks().force_release(&name("lock"), lease.token(), ada(), stuck()).await.unwrap();
        42
    });
    let lost = run.await.unwrap_err();
    assert_eq!(lost.value, Some(42));
    assert!(lost.error.to_string().ends_with("ada took it by force (stuck)"), "{}", lost.error);
    assert!(matches!(Error::from(lost), Error::Lost { .. }));
}

/// The work blocks its thread, so that it cannot be dropped, and the store is unavailable.
#[tokio::test]
async fn work_that_ends_after_its_lease_is_reported_as_lost_although_the_store_is_unavailable() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    store.from_now_on(Fault::LoseRequest);
    let run = guard.run(async |_| {
        std::thread::sleep(TTL * 2);
        42
    });
    let lost = run.await.unwrap_err();
    assert_eq!(lost.value, Some(42));
    assert_eq!(lost.to_string(), "the lease on lock 'lock' was lost: it could not be renewed in time");
}
