//! Strategies while another holder has the lock.

use std::time::Duration;

use leasehold::{Backoff, Error, Strategy};

use super::support::{TTL, faulty, memory, name, until};
use leasehold::testing::Fault;

#[tokio::test]
async fn a_waiter_is_granted_the_lock_when_it_is_released() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_secs(30)).acquire());
    until("queued", async || leasehold.locks().status(&name("lock")).await.unwrap().waiters.len() == 1).await;
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(waits.await.unwrap().unwrap().token() > token);
}

/// A lease that was granted to a ticket lasts only as long as the ticket until the guard renews it.
#[tokio::test]
async fn a_handed_over_lease_is_renewed() {
    let leasehold = memory().await;
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let waits = tokio::spawn(leasehold.lock("lock").ttl(TTL).wait(Duration::from_secs(30)).acquire());
    until("queued", async || leasehold.locks().status(&name("lock")).await.unwrap().waiters.len() == 1).await;
    guard.release().await.unwrap();
    let second = waits.await.unwrap().unwrap();
    until("renewals", async || {
        leasehold.locks().status(&name("lock")).await.unwrap().holders[0].renewals >= 4
    })
    .await;
    second.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_ends_at_its_timeout() {
    let leasehold = memory().await;
    let _guard = leasehold.lock("lock").holder("ada").acquire().await.unwrap();
    let timeout = Duration::from_millis(120);
    let error = leasehold.lock("lock").wait(timeout).acquire().await.unwrap_err();
    let Error::Conflict { waited, .. } = &error else { panic!("{error:?}") };
    assert!(*waited >= timeout, "{waited:?}");
    assert!(error.to_string().contains("held by ada"), "{error}");
    assert!(leasehold.locks().status(&name("lock")).await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_waiter_survives_lost_answers() {
    let (store, leasehold, other) = faulty();
    let guard = other.lock("lock").acquire().await.unwrap();
    store.plan([Fault::LoseAnswer, Fault::LoseRequest]);
    let waits = tokio::spawn(leasehold.lock("lock").wait(Duration::from_secs(30)).acquire());
    until("queued", async || other.locks().status(&name("lock")).await.unwrap().waiters.len() == 1).await;
    guard.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}

#[tokio::test]
async fn retry_sends_further_requests_and_gives_up_in_the_end() {
    let (store, leasehold, other) = faulty();
    let guard = other.lock("lock").acquire().await.unwrap();
    let short = Duration::from_millis(5);
    let strategy =
        Strategy::Retry(Backoff::default().initial_delay(short).max_delay(short * 2).max_retries(3));
    let error = leasehold.lock("lock").strategy(strategy.clone()).acquire().await.unwrap_err();
    assert_eq!((error.code(), store.sent().len()), ("LOCK_CONFLICT", 4));
    let retries =
        tokio::spawn(leasehold.lock("lock").strategy(Strategy::Retry(Backoff::default())).acquire());
    until("a request", async || store.sent().len() > 4).await;
    guard.release().await.unwrap();
    drop(retries.await.unwrap().unwrap());
}

#[tokio::test]
async fn a_stale_lease_is_stolen_and_a_live_one_is_not() {
    let leasehold = memory().await;
    let hour = Duration::from_hours(1);
    let live = leasehold.lock("live").ttl(TTL).acquire().await.unwrap();
    let stale = leasehold.lock("stale").ttl(hour).acquire().await.unwrap();
    until("a renewal", async || {
        leasehold.locks().status(&name("live")).await.unwrap().holders[0].renewals >= 2
    })
    .await;
    let thief = |lock| leasehold.lock(lock).steal_stale(TTL / 2).acquire();
    thief("live").await.unwrap_err();
    assert!(thief("stale").await.unwrap().token() > stale.token());
    live.release().await.unwrap();
}

#[tokio::test]
async fn sixteen_waiters_are_granted_the_lock_in_order() {
    let leasehold = memory().await;
    let first = leasehold.lock("lock").acquire().await.unwrap();
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..16_usize {
        let (leasehold, done) = (leasehold.clone(), done.clone());
        let lock = leasehold.lock("lock").wait(Duration::from_mins(1));
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            done.send(number).unwrap();
            guard.release().await.unwrap();
        });
        until("queued", async || {
            leasehold.locks().status(&name("lock")).await.unwrap().waiters.len() == number + 1
        })
        .await;
    }
    first.release().await.unwrap();
    for number in 0..16 {
        assert_eq!(order.recv().await, Some(number));
    }
}
