//! Tests of the repository: its requirements, its log, and what people do to refs.

use std::time::Duration;

use leasehold::model::{LockName, Outcome};
use leasehold::store::{EventRange, ListEvents, ListLocks, github};

use super::support::{client, options, test_client};
use crate::engines::github::fake::Person;
use crate::engines::github::support::fake;

#[tokio::test]
async fn a_repository_without_a_commit_is_refused_with_a_hint() {
    let (fake, _) = fake().await;
    fake.repo().git.is_empty = true;
    let error = github::connect(options(&fake, "ada", "")).await.err().unwrap();
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().contains("has no commit yet"), "{error}");
    assert!(error.hint().unwrap().contains("push one"));
}

#[tokio::test]
async fn missing_push_access_is_reported_at_once() {
    let (fake, _) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let error = github::connect(options(&fake, "zoe", "")).await.err().unwrap();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert!(error.hint().unwrap().contains("contents"), "{error}");
}

#[tokio::test]
async fn lost_push_access_is_reported() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    let lease = ada.acquire().await;
    scenario.0.person("ada", Person { is_bot: false, association: "MEMBER", can_push: false });
    let op = leasehold::model::LockOp::Renew(leasehold::model::Renew {
        lease_id: ada.id(),
        token: lease.token,
        ttl: None,
    });
    let error = ada.store.locks().apply(&ada.lock, &op).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
}

#[tokio::test]
async fn every_change_of_a_lock_is_a_readable_commit() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "deploy @eve #7").await.meta("why", "a release");
    let lease = ada.acquire().await;
    ada.renew(&lease).await;
    ada.release(&lease).await;
    let repo = scenario.0.repo();
    let [tip] = &repo.git.refs.values().collect::<Vec<_>>()[..] else { panic!("one ref") };
    let mut log = Vec::new();
    let mut next = Some((*tip).clone());
    while let Some(commit) = next.as_ref().map(|sha| &repo.git.commits[sha]) {
        assert!(!commit.message.contains("@eve") && !commit.message.contains("#7"), "{}", commit.message);
        log.push(commit.message.lines().next().unwrap().replace('\u{200b}', ""));
        next = commit.parents.first().cloned();
    }
    let held = format!("Lock deploy @eve #7 is held by {}", ada.request.holder);
    assert_eq!(log, ["Lock deploy @eve #7 is free", &held, &held]);
    let first = repo.git.commits.values().find(|commit| commit.parents.is_empty()).unwrap();
    assert!(first.message.contains("\nmetadata.why: a release\n"), "{}", first.message);
}

#[tokio::test]
async fn a_deleted_ref_is_created_again_and_its_holder_is_informed() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "lock").await);
    let lease = ada.acquire().await;
    scenario.0.repo().git.refs.clear();
    scenario.1.advance(Duration::from_millis(5));
    let bobs = bob.acquire().await;
    assert!(bobs.token > lease.token);
    assert!(matches!(ada.renew(&lease).await, Outcome::NotHeld(_)));
    scenario.0.repo().git.refs.clear();
    assert!(matches!(bob.renew(&bobs).await, Outcome::NotHeld(_)));
    assert!(ada.store.locks().get(&ada.lock).await.unwrap().is_none_or(|record| record.holders.is_empty()));
    ada.acquire().await;
}

#[tokio::test]
async fn a_ref_moved_by_a_person_is_not_taken_for_a_lock() {
    let scenario = fake().await;
    let (ada, bob) =
        (test_client(&scenario, "ada", "lock").await, test_client(&scenario, "bob", "other").await);
    ada.acquire().await;
    bob.acquire().await;
    {
        let git = &mut scenario.0.repo().git;
        let (one, other) = {
            let mut names = git.refs.keys().cloned();
            (names.next().unwrap(), names.next().unwrap())
        };
        let tip = git.refs[&other].clone();
        git.point(&one, &tip);
    }
    let eve = client(&scenario.0, "eve", &scenario.1).await;
    let mut broken = 0;
    for lock in ["lock", "other"] {
        if let Err(error) = eve.locks().get(&LockName::new(lock).unwrap()).await {
            assert_eq!(error.code(), "STORE_BROKEN", "{error}");
            broken += 1;
        }
    }
    assert_eq!(broken, 1);
    assert_eq!(
        eve.locks().list(&ListLocks::default()).await.unwrap().items.len(),
        1,
        "the others are listed"
    );
}

#[tokio::test]
async fn old_events_move_to_other_refs_and_stay_readable() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    for _ in 0..40 {
        let lease = ada.acquire().await;
        ada.release(&lease).await;
        scenario.1.advance(Duration::from_millis(1));
    }
    let query = ListEvents::default().lock(ada.lock.clone()).span(EventRange::Newest).limit(1000);
    let bob = client(&scenario.0, "bob", &scenario.1).await;
    assert_eq!(bob.locks().history(&query).await.unwrap().items.len(), 80);
    let moved_out =
        scenario.0.repo().git.refs.keys().filter(|name| name.starts_with("refs/archived-")).count();
    assert!(moved_out > 0);
    assert_eq!(bob.locks().list(&ListLocks::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn the_health_check_describes_the_repository() {
    let scenario = fake().await;
    let ada = test_client(&scenario, "ada", "lock").await;
    ada.acquire().await;
    let findings = ada.store.check_health().await.unwrap();
    assert!(findings.iter().all(|finding| finding.issue.is_none()), "{findings:?}");
    assert_eq!(findings[0].detail, "ada/engine: 1 refs in refs/leasehold/");
}
