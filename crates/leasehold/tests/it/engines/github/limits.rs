//! Rate limits: a caller that waits for a lock waits for them too, and for no longer than that.

use std::time::{Duration, Instant};

use leasehold::Leasehold;

use super::fake::{Fake, Fate};
use super::support::{client, fake, player};

fn refuse(fake: &Fake, what: &str, seconds: u64) {
    fake.plan(what, Fate::Refuse(403, vec![("retry-after", seconds.to_string())]));
}

#[tokio::test]
async fn a_limit_within_the_time_of_the_caller_is_waited_for() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let leasehold = Leasehold::with_store(client(&fake, "ada").await).unwrap();
    for step in ["GET /issues/1", "POST /comments", "PATCH /comments/*"] {
        refuse(&fake, step, 2);
        let begun = Instant::now();
        let guard = leasehold.lock("#1").wait(Duration::from_secs(40)).acquire().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(2), "{step}: {:?}", begun.elapsed());
        guard.release().await.unwrap();
    }
    // One that does not wait for the lock waits for its store for a while.
    refuse(&fake, "POST /comments", 1);
    leasehold.lock("#1").acquire().await.unwrap().release().await.unwrap();
    leasehold.close().await;
}

#[tokio::test]
async fn a_limit_beyond_it_is_told_at_once_with_its_end() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let leasehold = Leasehold::with_store(client(&fake, "ada").await).unwrap();
    refuse(&fake, "GET /issues/1", 3600);
    let begun = Instant::now();
    for wait in [None, Some(Duration::from_mins(10))] {
        let lock = leasehold.lock("#1");
        let lock = if let Some(wait) = wait { lock.wait(wait) } else { lock };
        let error = lock.acquire().await.unwrap_err();
        let told = error.to_string();
        assert!(told.starts_with("GitHub refuses requests until 2023-11-14T23:13:20Z ("), "{told}");
        assert_eq!(error.code(), "STORE_UNAVAILABLE");
        assert!(error.retry_after().is_some_and(|left| left > Duration::from_mins(50)), "{error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    leasehold.close().await;
}

/// A holder does not wait: its lease may end before the limit does.
#[tokio::test]
async fn a_renewal_within_a_limit_fails_at_once() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    let lease = ada.takes().await;
    refuse(&fake, "PATCH /comments/*", 5);
    let renew = leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None };
    let renew = leasehold::model::LockOp::Renew(renew);
    let begun = Instant::now();
    for _ in 0..3 {
        let error = ada.store.locks().apply(&ada.lock, &renew).await.unwrap_err();
        assert!(error.is_retryable() && error.retry_after().is_some(), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
