//! Tests of arbitrarily stale reads: no holder is told that it has lost its lease, and no client
//! gets a lock that is held.

use std::time::{Duration, Instant};

use leasehold::model::{LeaseId, LockName, LockOp, Outcome, Renew, Ttl};
use leasehold::store::Clock;
use leasehold::testing::TestClient;
use uuid::Uuid;

use super::support::{elsewhere, new_id, options, test_client};
use crate::engines::github::fake::{Fake, Fate, StaleRefs};
use crate::engines::github::support::fake;

/// More reads than any call makes.
const ALWAYS: u32 = 1000;

fn renew(test_client: &TestClient, token: leasehold::model::Token) -> LockOp {
    LockOp::Renew(Renew { lease_id: test_client.id(), token, ttl: None })
}

#[tokio::test]
async fn a_holder_in_a_new_process_keeps_its_lease() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    let first = ada.acquire().await;
    ada.release(&first).await;
    let lease = ada.acquire().await;
    for reads in 1..=3 {
        // The tip after the release, and the tip before the first acquire.
        for age in [1, 3] {
            let again = elsewhere(&scenario, "ada", &ada).await;
            scenario.0.stale_refs(StaleRefs::Ago(reads, age));
            let outcome = again.renew(&lease).await;
            assert!(matches!(outcome, Outcome::Renewed(_)), "{reads} reads, {age} ago: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_reads_only_stale_tips_fails_as_unavailable() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    let first = ada.acquire().await;
    ada.release(&first).await;
    let lease = ada.acquire().await;
    let again = elsewhere(&scenario, "ada", &ada).await;
    scenario.0.stale_refs(StaleRefs::Ago(ALWAYS, 1));
    let error = again.store.locks().apply(&ada.lock, &renew(&ada, lease.token)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.to_string().contains("returns a stale refs/leasehold/"), "{error}");
    // The holder does not need to read.
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
}

#[tokio::test]
async fn a_held_lock_that_seems_free_is_not_granted() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    let first = ada.acquire().await;
    ada.release(&first).await;
    ada.acquire().await;
    for age in [1, 3] {
        scenario.0.stale_refs(StaleRefs::Ago(1, age));
        bob.expect_conflict().await;
        scenario.0.stale_refs(StaleRefs::Never);
        assert!(ada.holds().await);
    }
}

/// Holds also for a client to which the ref seems not to exist.
#[tokio::test]
async fn a_lost_lease_is_reported_although_a_stale_read_shows_it() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    let lease = ada.acquire().await;
    scenario.1.advance(Duration::from_secs(10));
    let bobs = bob.acquire().await;
    scenario.0.stale_refs(StaleRefs::Ago(2, 1));
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)));
    assert!(matches!(bob.renew(&bobs).await, Outcome::Renewed(_)));
}

#[tokio::test]
async fn a_request_with_a_lost_response_is_withdrawn_although_reads_are_stale() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    let lease = bob.acquire().await;
    bob.release(&lease).await;
    scenario.0.plan("PATCH /git/refs/*", Fate::LoseAnswer);
    let op = LockOp::Acquire(leasehold::model::Acquire {
        request: std::sync::Arc::new(ada.request.clone()),
        queue: None,
        steal_after: None,
    });
    assert!(ada.store.locks().apply(&ada.lock, &op).await.is_err());
    // More stale reads than the call retries: each returns the tip from when bob held the lock.
    scenario.0.stale_refs(StaleRefs::Ago(4, 2));
    assert_eq!(ada.withdraw().await, Outcome::Withdrawn);
    scenario.0.stale_refs(StaleRefs::Never);
    bob.acquire().await;
}

const TTL: Duration = Duration::from_millis(700);

/// Each client holds, renews, releases or dies at random, and records until when its lease was
/// certain; half of all reads return any earlier tip. Each client uses only its own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_never_two_holders_and_dead_holders_are_replaced() {
    let fake = Fake::start(&Clock::system()).await;
    let mut test_clients = Vec::new();
    for login in ["ada", "bob", "eve", "ada"] {
        let store = leasehold::store::github::connect(options(&fake, login, "")).await.unwrap();
        let mut test_client = TestClient::new(store, new_id(), LockName::new("lock").unwrap());
        test_client.request.ttl = Ttl::new(TTL).unwrap();
        test_clients.push(test_client);
    }
    fake.stale_refs(StaleRefs::Chance(50));
    let end = Instant::now() + Duration::from_secs(12);
    let lives: Vec<_> =
        test_clients.into_iter().map(|test_client| tokio::spawn(live(test_client, end))).collect();
    let mut held = Vec::new();
    for life in lives {
        held.extend(life.await.unwrap());
    }
    held.sort();
    println!("{} leases, {} clashes", held.len(), fake.repo().git.conflicts);
    assert!(held.len() > 8, "only {} were granted", held.len());
    for pair in held.windows(2) {
        let ((one, _, until), (other, since, _)) = (pair[0], pair[1]);
        assert!(one < other, "a token was granted twice");
        assert!(until <= since, "two holders for {:?}", until - since);
    }
}

async fn live(mut test_client: TestClient, end: Instant) -> Vec<(leasehold::model::Token, Instant, Instant)> {
    let (mut held, mut is_new) = (Vec::new(), true);
    while Instant::now() < end {
        if std::mem::take(&mut is_new) {
            test_client.request.lease_id = LeaseId::from_uuid(Uuid::from_u128(new_id()));
        }
        let op = LockOp::Acquire(leasehold::model::Acquire {
            request: std::sync::Arc::new(test_client.request.clone()),
            queue: None,
            steal_after: None,
        });
        let sent = Instant::now();
        let Ok(Outcome::Granted(lease)) = test_client.store.locks().apply(&test_client.lock, &op).await
        else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        is_new = true;
        let (mut until, since) = (sent + TTL, Instant::now());
        if since >= until {
            continue; // An answer that took longer than the lease lasts is no acquisition.
        }
        for _ in 0..fastrand::u32(0..3) {
            tokio::time::sleep(TTL / 5).await;
            let sent = Instant::now();
            match test_client.store.locks().apply(&test_client.lock, &renew(&test_client, lease.token)).await
            {
                Ok(Outcome::Renewed(_)) if Instant::now() < until => until = sent + TTL,
                Ok(Outcome::NotHeld(_)) => {
                    assert!(Instant::now() >= until, "a live holder lost its lease");
                    break;
                }
                _ => break,
            }
        }
        let dies = fastrand::u8(0..3) == 0;
        held.push((lease.token, since, if dies { until } else { until.min(Instant::now()) }));
        if dies {
            tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
        } else {
            let release =
                leasehold::model::Release { lease_id: test_client.id(), token: lease.token, at_least: None };
            drop(test_client.store.locks().apply(&test_client.lock, &LockOp::Release(release)).await);
        }
    }
    held
}
