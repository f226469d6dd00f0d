//! Stores that are slow or away: every asking ends in time, and those who wait for the lock wait for the store too.

use std::time::{Duration, Instant};

use leasehold::model::LockOp;
use leasehold::testing::Fault;
use leasehold::{Error, Guard, LockBuilder};

use super::support::{TTL, faulty, name, until};

/// More than anything here may take besides, on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

async fn ends_within(limit: Duration, asks: LockBuilder) -> Result<Guard, Error> {
    let start = Instant::now();
    let asked = tokio::time::timeout(limit + SLACK, asks.acquire()).await;
    asked.unwrap_or_else(|_| panic!("still asking after {:?}", start.elapsed()))
}

#[tokio::test]
async fn answers_that_take_longer_than_the_ttl_end_the_asking() {
    let patient = Duration::from_mins(1);
    for wait in [None, Some(patient)] {
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
        assert!(!other.status(&name("lock")).await.unwrap().is_locked);
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
async fn who_waits_for_a_lock_waits_for_its_store_too() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::LoseRequest);
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_mins(1)).acquire());
    until("asked again and again", async || store.sent().len() > 4).await;
    store.from_now_on(Fault::None);
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_store_that_stays_away_is_told_when_the_wait_is_over() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::LoseRequest);
    let wait = Duration::from_millis(700);
    let start = Instant::now();
    let error = ends_within(wait, leasehold.lock("lock").wait(wait)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(start.elapsed() >= wait);
}

#[tokio::test]
async fn a_store_that_is_gone_for_good_is_told_at_once() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::Refuse);
    let error = ends_within(Duration::ZERO, leasehold.lock("lock").wait(Duration::from_mins(1))).await;
    assert_eq!(error.unwrap_err().code(), "STORE_BROKEN");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_told_in_time() {
    let (store, leasehold, _) = faulty();
    store.from_now_on(Fault::Hang);
    for (asks, limit) in [
        (leasehold.lock("waits").wait(Duration::from_millis(300)), Duration::from_secs(1)),
        (leasehold.lock("looks once"), Duration::from_secs(5)),
        (leasehold.lock("a").and("b"), Duration::from_secs(5)),
    ] {
        let error = ends_within(limit, asks).await.unwrap_err();
        assert!(error.to_string().starts_with("memory: did not answer within "), "{error}");
    }
}
