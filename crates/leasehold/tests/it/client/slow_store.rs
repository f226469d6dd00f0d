//! Slow and unavailable stores: every acquire ends in time, and a waiter for a lock also waits for
//! the store.

use std::time::{Duration, Instant};

use leasehold::model::LockOp;
use leasehold::testing::Fault;
use leasehold::{Error, Guard, LockBuilder};

use super::support::{faulty, name, until};

/// Short enough for three slow responses within the 5 s that an acquire without a wait may take.
const TTL: Duration = Duration::from_millis(600);

/// Additional time for a busy machine.
const SLACK: Duration = Duration::from_secs(4);

async fn ends_within(limit: Duration, request: LockBuilder) -> Result<Guard, Error> {
    let start = Instant::now();
    let acquired = tokio::time::timeout(limit + SLACK, request.acquire()).await;
    acquired.unwrap_or_else(|_| panic!("no result after {:?}", start.elapsed()))
}

#[tokio::test]
async fn answers_slower_than_the_ttl_end_the_acquire() {
    for wait in [None, Some(Duration::from_mins(1))] {
        let (store, leasehold, other) = faulty();
        store.from_now_on(Fault::Delay(TTL.mul_f64(1.2)));
        let lock = leasehold.lock("lock").ttl(TTL);
        let lock = if let Some(wait) = wait { lock.wait(wait) } else { lock };
        let error = ends_within(TTL * 4, lock).await.unwrap_err();
        assert_eq!(error.code(), "STORE_UNAVAILABLE");
        assert!(error.to_string().contains("longer than the ttl of 600ms"), "{error}");
        assert_eq!(store.sent().iter().filter(|op| matches!(op, LockOp::Acquire(_))).count(), 3);
        store.from_now_on(Fault::None);
        leasehold.close().await;
        assert!(!other.locks().status(&name("lock")).await.unwrap().is_locked);
    }
}

#[tokio::test]
async fn slow_answers_do_not_outlast_the_wait() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::Delay(TTL.mul_f64(1.2)));
    let error = ends_within(TTL * 2, leasehold.lock("lock").ttl(TTL).wait(TTL / 2)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert_eq!(store.sent().iter().filter(|op| matches!(op, LockOp::Acquire(_))).count(), 1);
}

#[tokio::test]
async fn a_waiter_waits_for_an_unavailable_store_too() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::LoseRequest);
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_mins(1)).acquire());
    until("several requests", async || store.sent().len() > 4).await;
    store.from_now_on(Fault::None);
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_unavailable_store_is_reported_after_the_timeout() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::LoseRequest);
    let wait = Duration::from_millis(700);
    let start = Instant::now();
    let error = ends_within(wait, leasehold.lock("lock").wait(wait)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(start.elapsed() >= wait);
}

#[tokio::test]
async fn a_permanent_store_error_is_reported_at_once() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::Refuse);
    let error = ends_within(Duration::ZERO, leasehold.lock("lock").wait(Duration::from_mins(1))).await;
    assert_eq!(error.unwrap_err().code(), "STORE_BROKEN");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_reported_in_time() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::Hang);
    for (request, limit) in [
        (leasehold.lock("waits").wait(Duration::from_millis(300)), Duration::from_secs(1)),
        (leasehold.lock("fails fast"), Duration::from_secs(5)),
        (leasehold.lock("a").and("b"), Duration::from_secs(5)),
    ] {
        let error = ends_within(limit, request).await.unwrap_err();
        assert!(error.to_string().starts_with("the store memory: did not answer within "), "{error}");
    }
}

/// Each single answer comes in time.
#[tokio::test]
async fn several_locks_share_the_time_of_an_acquire() {
    let (store, leasehold, other) = faulty();
    store.from_now_on(Fault::Delay(Duration::from_secs(2)));
    let request = leasehold.lock("a").and("b").and("c").and("d").and("e");
    let error = ends_within(Duration::from_secs(5), request).await.unwrap_err();
    assert!(error.to_string().starts_with("the store memory: did not answer within "), "{error}");
    store.from_now_on(Fault::None);
    leasehold.close().await;
    for lock in ["a", "b", "c", "d", "e"] {
        assert!(!other.locks().status(&name(lock)).await.unwrap().is_locked, "{lock}");
    }
}

#[tokio::test]
async fn a_waiter_whose_store_falls_silent_is_told_in_time() {
    let (store, leasehold, other) = faulty();
    let _held = other.lock("lock").acquire().await.unwrap();
    let wait = Duration::from_secs(3);
    let waits = tokio::spawn(ends_within(wait * 2, leasehold.lock("lock").wait(wait)));
    let waiters = async || other.locks().status(&name("lock")).await.unwrap().waiters.len();
    until("it waits", async || waiters().await == 1).await;
    store.from_now_on(Fault::Hang);
    let error = waits.await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("the store memory: did not answer within "), "{error}");
}
