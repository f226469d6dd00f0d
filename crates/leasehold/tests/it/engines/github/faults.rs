//! Tests with faults: rate limits, unreadable comments, stale lists, ids in the wrong order, lost
//! and late responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome};
use leasehold::testing::TestClient;

use super::fake::{Fate, Ids, Person};
use super::support::{TTL, fake, test_client};

fn acquire(test_client: &TestClient) -> LockOp {
    LockOp::Acquire(Acquire {
        request: Arc::new(test_client.request.clone()),
        queue: None,
        steal_after: None,
    })
}

async fn fails(test_client: &TestClient) -> leasehold::Error {
    test_client.store.locks().apply(&test_client.lock, &acquire(test_client)).await.unwrap_err()
}

#[tokio::test]
async fn no_request_is_sent_during_a_rate_limit() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    fake.plan("POST /comments", Fate::Refuse(403, vec![("retry-after", "90".to_owned())]));
    fake.requests();
    let error = fails(&ada).await;
    assert!(
        error.is_retryable()
            && error.to_string().contains("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"),
        "{error}"
    );
    fake.requests();
    assert!(fails(&ada).await.is_retryable());
    assert!(fake.requests().is_empty(), "no request is sent until then");
    bob.acquire().await;
}

/// Half an hour is 541 renewals of a lease of 10 s.
#[tokio::test]
async fn a_holder_is_asked_to_release_while_it_still_holds_if_the_rate_limit_does_not_suffice() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
    let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
    assert!(renewed.release_request.is_none());
    assert_eq!(
        ada.store.rate_limit().map(|rate_limit| (rate_limit.limit, rate_limit.remaining)),
        Some((5000, 4321))
    );
    fake.set_remaining(1081);
    let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
    let asked = renewed.release_request.expect("its release is requested");
    assert_eq!(asked.by.as_str(), "the limit of GitHub");
    let reason = asked.reason.unwrap();
    assert!(reason.as_str().starts_with("1081 of 5000 requests are left until "), "{reason}");
    fake.set_remaining(1082);
    let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
    assert!(renewed.release_request.is_none(), "another client has stopped using requests");
}

/// A list of two pages is read twice.
#[tokio::test]
async fn the_rate_limit_covers_the_pages_of_a_long_list() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    for _ in 0..100 {
        fake.write(issue, "eve", "Looks good.");
    }
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
    fake.requests();
    for (remaining, is_asked) in [(541 * 5 - 1, true), (541 * 5, false)] {
        fake.set_remaining(remaining);
        let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
        assert_eq!(renewed.release_request.is_some(), is_asked, "{remaining}");
        assert_eq!(fake.requests().len(), 5);
    }
}

#[tokio::test]
async fn a_server_error_is_retryable() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    for step in ["GET /issues/1", "GET /comments", "POST /comments", "PATCH /1000001"] {
        fake.plan(step, Fate::Refuse(502, Vec::new()));
        let error = fails(&ada).await;
        assert_eq!(error.code(), "STORE_UNAVAILABLE", "{step}: {error}");
        if step.starts_with("PATCH") {
            assert!(fake.repo().issues[&1].comments.is_empty(), "the candidate is deleted");
        }
    }
    // The lock is held without an assignee, too.
    fake.plan("POST /assignees", Fate::Refuse(502, Vec::new()));
    ada.acquire().await;
}

#[tokio::test]
async fn a_locked_conversation_is_reported() {
    let (fake, _) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "NONE", can_push: true });
    let issue = fake.new_issue("Deploy");
    fake.repo().issues.get_mut(&issue).unwrap().is_locked = true;
    let error = fails(&test_client(&fake, "zoe", "#1").await).await;
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert!(error.to_string().contains("has locked the conversation"), "{error}");
    test_client(&fake, "ada", "#1").await.acquire().await;
}

#[tokio::test]
async fn an_unreadable_claim_keeps_others_out_and_its_holder_loses_the_lease() {
    let (fake, clock) = fake().await;
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    for comment in fake.repo().issues.get_mut(&issue).unwrap().comments.values_mut() {
        comment.body = comment.body.replace("\"state\":\"held\"", "\"state\":\"helt\"");
    }
    let conflict = bob.expect_conflict().await;
    assert!(conflict.holders[0].holder.as_str().ends_with("which cannot be read"), "{conflict:?}");
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)), "others may have read it as ended");
    // Its ttl cannot be read either, so the default ttl of the store applies.
    clock.advance(Duration::from_secs(900 + 5));
    bob.acquire().await;
}

#[tokio::test]
async fn deleting_the_claim_ends_the_lease() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    fake.repo().issues.get_mut(&issue).unwrap().comments.clear();
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)));
    assert!(bob.acquire().await.token >= lease.token);
}

/// A stale list does not contain the client's own candidate: it proves nothing, and the client
/// reads again.
#[tokio::test]
async fn a_stale_list_is_not_trusted() {
    let (fake, _) = fake().await;
    // Ada cannot be assigned, so the assignee does not show that she holds the lock.
    fake.person("ada", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    fake.freeze();
    ada.acquire().await;
    // Bob's first list is from before ada acquired the lock, and so are the two after bob has
    // posted its candidate.
    fake.stale_lists(3);
    fake.requests();
    bob.expect_conflict().await;
    let looks = fake
        .requests()
        .into_iter()
        .filter(|request| request.ends_with("GET /repos/ada/engine/issues/1/comments"));
    assert_eq!(looks.count(), 4);
    assert_eq!(fake.repo().issues[&issue].comments.len(), 1);
    assert!(ada.holds().await && !bob.holds().await);
}

/// Between the two pages that bob reads, a comment of the first page is deleted. Ada's claim moves to
/// the first page, and is on neither of the pages that bob has read.
#[tokio::test]
async fn a_claim_that_moves_to_an_earlier_page_is_seen() {
    let (fake, _) = fake().await;
    // Ada cannot be assigned, so the assignee does not show that she holds the lock.
    fake.person("ada", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.new_issue("Deploy");
    for _ in 0..100 {
        fake.write(issue, "eve", "Looks good.");
    }
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    ada.acquire().await;
    // Bob's first list has one page: ada's claim, and some comments before it, come after that.
    let mut later = fake.repo().issues.get_mut(&issue).unwrap().comments.split_off(&1_000_090);
    fake.after_request("POST /comments", move |repo| {
        repo.issues.get_mut(&issue).unwrap().comments.append(&mut later);
    });
    fake.after_request("GET /comments", |_| {});
    fake.after_request("GET /comments", move |repo| {
        repo.issues.get_mut(&issue).unwrap().comments.pop_first();
    });
    bob.expect_conflict().await;
    assert!(ada.holds().await && !bob.holds().await);
    assert!(!fake.repo().issues[&issue].comments.contains_key(&1_000_001), "a comment was deleted");
}

#[tokio::test]
async fn ids_in_the_wrong_order_cause_no_second_holder() {
    let (fake, _) = fake().await;
    fake.ids(Ids::Falling);
    for round in 0..10 {
        let issue = fake.new_issue("Deploy");
        let lock = format!("#{issue}");
        let test_clients = [
            test_client(&fake, "ada", &lock).await,
            test_client(&fake, "bob", &lock).await,
            test_client(&fake, "eve", &lock).await,
        ];
        let asking = test_clients.map(|test_client| {
            tokio::spawn(async move { matches!(test_client.try_acquire().await, Outcome::Granted(_)) })
        });
        let mut won = 0;
        for asked in asking {
            won += u32::from(asked.await.unwrap());
        }
        assert!(won <= 1, "round {round}: {won} holders");
    }
}

#[tokio::test]
async fn a_renewal_with_a_lost_response_is_repeated() {
    let (fake, clock) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
    clock.advance(Duration::from_secs(4));
    fake.plan("PATCH /1000001", Fate::LoseAnswer);
    let renew = LockOp::Renew(leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(ada.store.locks().apply(&ada.lock, &renew).await.unwrap_err().is_retryable());
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
}

/// A server holds a lock for which many of its clients wait, and the polls of these are slow.
#[tokio::test]
async fn a_renewal_does_not_wait_behind_the_polls_of_waiters() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
    for _ in 0..40 {
        fake.plan("GET /comments", Fate::Delay(Duration::from_millis(100)));
    }
    let ended = Arc::new(AtomicU32::new(0));
    for number in 10..20 {
        let (waiter, ended) = (TestClient::new(ada.store.clone(), number, ada.lock.clone()), ended.clone());
        tokio::spawn(async move {
            waiter.store.locks().apply(&waiter.lock, &acquire(&waiter)).await.unwrap();
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
    let ended = ended.load(Ordering::SeqCst);
    assert!(ended < 5, "{ended} polls were before it");
}

/// The holder has given up the lease: an edit that arrives later finds nothing to extend.
#[tokio::test]
async fn a_late_renewal_revives_no_lease() {
    let (fake, clock) = fake().await;
    fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    fake.plan("PATCH /1000001", Fate::Late);
    let renew = LockOp::Renew(leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(ada.store.locks().apply(&ada.lock, &renew).await.is_err());
    clock.advance(Duration::from_millis(TTL));
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)), "its lease has ended");
    fake.catch_up();
    bob.acquire().await;
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)));
}

#[tokio::test]
async fn an_uncontended_lock_costs_the_documented_number_of_requests() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    fake.requests();
    let lease = ada.acquire().await;
    assert_eq!(fake.requests().len(), 6, "acquire");
    ada.renew(&lease).await;
    assert_eq!(fake.requests().len(), 2, "renew");
    let bob = test_client(&fake, "bob", "#1").await;
    for unchanged in [0, 2, 2] {
        fake.requests();
        bob.expect_conflict().await;
        assert_eq!((fake.requests().len(), fake.unchanged()), (2, unchanged), "refused");
    }
    ada.release(&lease).await;
    assert_eq!(fake.requests().len(), 3, "release");
}

/// The client has given up on a renewal and has released the lock since. The renewal arrives after
/// that.
#[tokio::test]
async fn a_renewal_after_the_release_revives_no_lease() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    let comment = *fake.repo().issues[&issue].comments.keys().next().unwrap();
    fake.plan(&format!("PATCH /{comment}"), Fate::Late);
    let renew = leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None };
    ada.store.locks().apply(&ada.lock, &LockOp::Renew(renew)).await.unwrap_err();
    assert!(matches!(ada.release(&lease).await, Outcome::Released(_)));
    fake.catch_up();
    let next = bob.acquire().await;
    assert!(next.token > lease.token);
}

/// The edit that made ada's candidate a lease got no response, and neither did its withdrawal, which
/// takes effect when ada has acquired the lock with the same request.
#[tokio::test]
async fn a_late_withdrawal_ends_no_lease_of_the_same_request() {
    let (fake, _) = fake().await;
    // Ada cannot be assigned, so the assignee does not show that she holds the lock.
    fake.person("ada", Person { is_bot: false, association: "MEMBER", can_push: false });
    fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    fake.plan("PATCH /1000001", Fate::LoseAnswer);
    fake.plan("DELETE /1000001", Fate::Late);
    assert!(fails(&ada).await.is_retryable());
    let lease = ada.acquire().await;
    fake.catch_up();
    bob.expect_conflict().await;
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
}

/// The list shows ada's claim as it was before its renewal.
#[tokio::test]
async fn a_sweep_does_not_trust_a_stale_list() {
    let (fake, clock) = fake().await;
    fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    fake.freeze();
    clock.advance(Duration::from_secs(8));
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
    clock.advance(Duration::from_secs(7));
    fake.stale_lists(1);
    assert_eq!(bob.store.locks().sweep(100).await.unwrap().leases, 0);
    assert!(ada.holds().await);
    assert!(matches!(ada.renew(&lease).await, Outcome::Renewed(_)));
}
