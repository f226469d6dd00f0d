//! Requests and answers that are lost between client and store.

use leasehold::model::LockOp;
use leasehold::testing::Fault;

use super::support::{TTL, faulty, name, until};

#[tokio::test]
async fn a_lost_answer_to_an_acquire_does_not_take_the_lock_twice() {
    let (store, leasehold, other) = faulty();
    store.plan([Fault::LoseAnswer, Fault::LoseAnswer]);
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let status = other.locks().status(&name("lock")).await.unwrap();
    assert_eq!(status.holders.len(), 1);
    assert_eq!(status.holders[0].token, guard.token());
    let ids: Vec<_> = store
        .sent()
        .iter()
        .map(|op| match op {
            LockOp::Acquire(acquire) => acquire.request.lease_id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [guard.lease_id(); 3]);
}

#[tokio::test]
async fn a_store_that_never_answers_leaves_nothing_held() {
    let (store, leasehold, other) = faulty();
    store.plan([Fault::LoseAnswer, Fault::LoseAnswer, Fault::LoseAnswer]);
    let error = leasehold.lock("lock").acquire().await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    leasehold.close().await;
    assert!(!other.locks().status(&name("lock")).await.unwrap().is_locked);
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_expiry_is_not_an_acquisition() {
    let (store, leasehold, _) = faulty();
    store.plan([Fault::Delay(TTL * 2)]);
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    // The request was sent again, and only the second answer counts.
    assert_eq!(store.sent().iter().filter(|op| matches!(op, LockOp::Acquire(_))).count(), 2);
    assert!(leasehold::BootInstant::now() < guard.watch().borrow().valid_until);
}

#[tokio::test]
async fn an_acquire_that_is_dropped_in_flight_is_withdrawn() {
    let (store, leasehold, other) = faulty();
    store.plan([Fault::Hang]);
    let acquire = tokio::spawn(leasehold.lock("lock").acquire());
    until("held", async || other.locks().status(&name("lock")).await.unwrap().is_locked).await;
    acquire.abort();
    until("free again", async || !other.locks().status(&name("lock")).await.unwrap().is_locked).await;
}

#[tokio::test]
async fn a_lost_answer_to_a_release_is_no_loss() {
    let (store, leasehold, other) = faulty();
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    store.plan([Fault::LoseAnswer]);
    guard.release().await.unwrap();
    assert!(!other.locks().status(&name("lock")).await.unwrap().is_locked);
}

#[tokio::test]
async fn guarded_work_succeeds_even_if_the_release_fails() {
    let (store, leasehold, _) = faulty();
    let guard = leasehold.lock("lock").ttl(TTL).acquire().await.unwrap();
    store.from_now_on(Fault::LoseRequest);
    assert_eq!(guard.run(async |_| 42).await.unwrap(), 42);
}
