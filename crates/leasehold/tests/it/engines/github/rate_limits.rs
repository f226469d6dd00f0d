//! Tests of rate limits: a caller that waits for a lock waits for them, too, but not longer than
//! its own timeout.

use std::time::{Duration, Instant};

use leasehold::Leasehold;

use super::fake::{Fake, Fate};
use super::support::{client, fake, test_client};

fn refuse(fake: &Fake, pattern: &str, seconds: u64) {
    fake.plan(pattern, Fate::Refuse(403, vec![("retry-after", seconds.to_string())]));
}

#[tokio::test]
async fn a_caller_waits_for_a_limit_within_its_timeout() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let leasehold = Leasehold::with_store(client(&fake, "ada").await).unwrap();
    for step in ["GET /issues/1", "POST /comments", "PATCH /comments/*"] {
        refuse(&fake, step, 2);
        let begun = Instant::now();
        let guard = leasehold.lock("#1").wait(Duration::from_secs(40)).acquire().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(2), "{step}: {:?}", begun.elapsed());
        guard.release().await.unwrap();
    }
    // A caller that does not wait for the lock waits for its store for a short time.
    refuse(&fake, "POST /comments", 1);
    leasehold.lock("#1").acquire().await.unwrap().release().await.unwrap();
    leasehold.close().await;
}

#[tokio::test]
async fn a_limit_beyond_the_timeout_fails_at_once_with_its_end() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let leasehold = Leasehold::with_store(client(&fake, "ada").await).unwrap();
    refuse(&fake, "GET /issues/1", 3600);
    let begun = Instant::now();
    for wait in [None, Some(Duration::from_mins(10))] {
        let lock = leasehold.lock("#1");
        let lock = if let Some(wait) = wait { lock.wait(wait) } else { lock };
        let error = lock.acquire().await.unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("GitHub refuses requests until 2023-11-14T23:13:20Z ("), "{message}");
        assert_eq!(error.code(), "STORE_UNAVAILABLE");
        assert!(error.retry_after().is_some_and(|left| left > Duration::from_mins(50)), "{error:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    leasehold.close().await;
}

/// A holder does not wait: its lease may end before the limit does.
#[tokio::test]
async fn a_renewal_during_a_rate_limit_fails_at_once() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
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
