//! Tests with faults: rate limits, server errors, lost responses.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome, Release, Renew};
use leasehold::testing::TestClient;

use super::support::test_client;
use crate::engines::github::fake::Fate;
use crate::engines::github::support::fake;

fn acquire(test_client: &TestClient) -> LockOp {
    LockOp::Acquire(Acquire {
        request: Arc::new(test_client.request.clone()),
        queue: None,
        steal_after: None,
    })
}

async fn fails(test_client: &TestClient, op: &LockOp) -> leasehold::Error {
    test_client.store.locks().apply(&test_client.lock, op).await.unwrap_err()
}

#[tokio::test]
async fn no_request_is_sent_during_a_rate_limit() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    scenario.0.plan("POST /git/commits", Fate::Refuse(403, vec![("retry-after", "90".to_owned())]));
    let error = fails(&ada, &acquire(&ada)).await;
    assert!(
        error.is_retryable()
            && error.to_string().contains("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"),
        "{error}"
    );
    scenario.0.requests();
    assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
    assert!(scenario.0.requests().is_empty(), "no request is sent until then");
    bob.acquire().await;
}

#[tokio::test]
async fn a_holder_is_asked_to_release_while_it_still_holds_if_the_rate_limit_does_not_suffice() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    let lease = ada.acquire().await;
    for (left, is_asked) in [(4321, false), (2, true), (4321, false)] {
        scenario.0.set_remaining(left);
        let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
        assert_eq!(renewed.release_request.is_some(), is_asked, "{left} left");
        assert_eq!(ada.store.rate_limit().unwrap().remaining, left);
    }
}

#[tokio::test]
async fn a_server_error_is_retryable() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    for step in ["GET /git/ref/*", "POST /git/commits", "POST /git/refs"] {
        scenario.0.plan(step, Fate::Refuse(502, Vec::new()));
        let error = fails(&ada, &acquire(&ada)).await;
        assert_eq!(error.code(), "STORE_UNAVAILABLE", "{step}: {error}");
    }
    let lease = ada.acquire().await;
    scenario.0.plan("PATCH /git/refs/*", Fate::Refuse(502, Vec::new()));
    let renew = LockOp::Renew(Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(fails(&ada, &renew).await.is_retryable());
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
}

#[tokio::test]
async fn a_write_with_a_lost_response_is_recognized() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    scenario.0.plan("POST /git/refs", Fate::LoseAnswer);
    assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
    let lease = ada.acquire().await;
    assert_eq!(ada.record().await.holders.len(), 1);
    scenario.1.advance(Duration::from_secs(4));
    scenario.0.plan("PATCH /git/refs/*", Fate::LoseAnswer);
    let renew = LockOp::Renew(Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(fails(&ada, &renew).await.is_retryable());
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
    scenario.0.plan("PATCH /git/refs/*", Fate::LoseAnswer);
    let release = LockOp::Release(Release { lease_id: ada.id(), token: lease.token, at_least: None });
    assert!(fails(&ada, &release).await.is_retryable());
    // The lease was released; nothing more is known of it.
    assert!(matches!(ada.release(&lease).await, Outcome::NotHeld(_)));
    bob.acquire().await;
}

/// The request outlives its call: no caller waits for it any more, but it still reaches the
/// service.
#[tokio::test]
async fn an_in_doubt_write_cannot_take_effect_after_a_withdrawal() {
    for there_before in [false, true] {
        let scenario = fake().await;
        let (ada, bob) =
            (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
        if there_before {
            let lease = bob.acquire().await;
            bob.release(&lease).await;
        }
        let step = if there_before { "PATCH /git/refs/*" } else { "POST /git/refs" };
        scenario.0.plan(step, Fate::Late);
        assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
        assert_eq!(ada.withdraw().await, Outcome::Withdrawn);
        scenario.0.catch_up();
        let record = ada.store.locks().get(&ada.lock).await.unwrap();
        assert!(
            record.is_none_or(|record| record.holders.is_empty()),
            "it took effect after it was withdrawn"
        );
        bob.acquire().await;
    }
}
