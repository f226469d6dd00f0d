//! Tests of the mapping from locks to issues.

use std::time::Duration;

use leasehold::model::{LeaseTasks, LockName, LockRecord, QueueName, Ttl, WorkerId};
use leasehold::store::{ListLocks, StoreUrl};
use leasehold::testing::TestClient;

use super::fake::{Fate, Person};
use super::support::{GRACE, TTL, client, fake, options, test_client};

#[tokio::test]
async fn two_names_with_one_number_are_the_same_issue() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    test_client(&fake, "ada", "#1").await.acquire().await;
    test_client(&fake, "bob", "issue/1").await.expect_conflict().await;
    assert_eq!(fake.repo().issues.len(), 1);
}

#[tokio::test]
async fn an_issue_is_created_once_per_name() {
    let (fake, _) = fake().await;
    let (ada, bob) =
        (test_client(&fake, "ada", "deploy/prod").await, test_client(&fake, "bob", "deploy/prod").await);
    assert!(ada.store.locks().get(&ada.lock).await.unwrap().is_none(), "a read creates no issue");
    let lease = ada.acquire().await;
    bob.expect_conflict().await;
    ada.release(&lease).await;
    bob.acquire().await;
    let repo = fake.repo();
    assert_eq!(repo.issues.len(), 1);
    let issue = &repo.issues[&1];
    assert_eq!(
        (issue.title.as_str(), issue.labels.as_slice()),
        ("deploy/prod", ["leasehold".to_owned()].as_slice())
    );
}

#[tokio::test]
async fn an_issue_created_by_a_person_is_found_by_title_and_label() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("deploy");
    fake.new_issue("deploy");
    fake.repo().issues.get_mut(&issue).unwrap().labels = vec!["leasehold".to_owned()];
    let ada = test_client(&fake, "ada", "deploy").await;
    ada.acquire().await;
    assert_eq!(fake.repo().issues[&issue].assignees, ["ada"]);
    assert_eq!(fake.repo().issues.len(), 2);
    let listed = ada.store.locks().list(&ListLocks::default()).await.unwrap();
    assert_eq!(listed.items.len(), 1);
    // Only people can decide between two such issues.
    fake.repo().issues.get_mut(&2).unwrap().labels = vec!["leasehold".to_owned()];
    let bob = test_client(&fake, "bob", "deploy").await;
    let error = bob.store.locks().get(&bob.lock).await.unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().ends_with("#1 and #2"), "{error}");
}

fn listed(page: &leasehold::store::Page<LockRecord>) -> Vec<(&str, usize)> {
    page.items.iter().map(|record| (record.name.as_str(), record.holders.len())).collect()
}

#[tokio::test]
async fn a_numbered_lock_is_listed_while_it_is_held() {
    let (fake, clock) = fake().await;
    for title in ["Deploy", "Migrate"] {
        fake.new_issue(title);
    }
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "issue/2").await);
    let named = test_client(&fake, "eve", "build").await;
    let (lease, _, _) = (ada.acquire().await, bob.acquire().await, named.acquire().await);
    // A stranger's comment does not count, and a task is not a lock.
    let body = fake.repo().issues[&1].comments.values().next().unwrap().body.clone();
    fake.person("mallory", Person { is_bot: false, association: "NONE", can_push: false });
    let other = fake.new_issue("Another");
    fake.write(other, "mallory", &body.replace("\"#1\"", &format!("\"#{other}\"")));
    fake.labelled_issue("Fix the roof", &["agent"]);
    let (worker, queue) = (WorkerId::from_uuid(uuid::Uuid::from_u128(7)), QueueName::new("agent").unwrap());
    let request = LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(60));
    assert_eq!(ada.store.tasks().unwrap().lease(&request).await.unwrap().tasks.len(), 1);
    let looker = client(&fake, "eve").await;
    fake.requests();
    let all = looker.locks().list(&ListLocks::default()).await.unwrap();
    assert_eq!(listed(&all), [("#1", 1), ("build", 1), ("issue/2", 1)]);
    assert_eq!(fake.requests().len(), 5, "the label, the comments that changed last, and each lock");
    let query = ListLocks::default().prefix("bu".to_owned());
    assert_eq!(listed(&looker.locks().list(&query).await.unwrap()), [("build", 1)]);
    assert_eq!(fake.requests().len(), 2, "no numbered lock has this prefix");
    ada.release(&lease).await;
    let all = looker.locks().list(&ListLocks::default()).await.unwrap();
    assert_eq!(listed(&all), [("build", 1), ("issue/2", 1)]);
    clock.advance(std::time::Duration::from_millis(TTL + GRACE));
    assert_eq!(looker.locks().sweep(100).await.unwrap().leases, 2, "ended leases are found, too");
    let all = looker.locks().list(&ListLocks::default()).await.unwrap();
    assert_eq!(listed(&all), [("build", 0)]);
}

/// A client that dies while creating an issue leaves a candidate that expires.
#[tokio::test]
async fn an_unfinished_issue_blocks_for_a_limited_time() {
    let (fake, clock) = fake().await;
    for (after, fate) in
        [(2, Fate::LoseAnswer), (3, Fate::LoseRequest), (4, Fate::LoseAnswer), (4, Fate::LoseRequest)]
    {
        let name = format!("lock-{after}-{fate:?}");
        let ada = test_client(&fake, "ada", &name).await;
        fake.crash("ada", after, fate);
        drop(ada.store.locks().apply(&ada.lock, &acquire(&ada)).await.expect_err("it died"));
        fake.heal();
        clock.advance(std::time::Duration::from_secs(65));
        let bob = test_client(&fake, "bob", &name).await;
        bob.acquire().await;
        test_client(&fake, "eve", &name).await.expect_conflict().await;
        let repo = fake.repo();
        let open = repo.issues.values().filter(|issue| issue.title == name && issue.body.contains("settled"));
        assert_eq!(open.count(), 1, "{name}");
    }
}

/// Without a response, the issue may be the lock already, and other clients may use it.
#[tokio::test]
async fn an_issue_that_was_settled_without_a_response_stays_the_lock() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
        let (fake, _) = fake().await;
        let ada = test_client(&fake, "ada", "deploy").await;
        fake.plan("PATCH /1", fate.clone());
        ada.acquire().await;
        fake.catch_up();
        test_client(&fake, "bob", "deploy").await.expect_conflict().await;
        assert_eq!(fake.repo().issues.len(), 1, "{fate:?}");
    }
    let (fake, _) = fake().await;
    let ada = test_client(&fake, "ada", "deploy").await;
    for _ in 0..3 {
        fake.plan("PATCH /1", Fate::LoseAnswer);
    }
    let error = ada.store.locks().apply(&ada.lock, &acquire(&ada)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    test_client(&fake, "bob", "deploy").await.acquire().await;
    ada.expect_conflict().await;
    let repo = fake.repo();
    assert_eq!((repo.issues.len(), repo.issues[&1].is_closed), (1, false));
}

/// The edit that would make the issue a lock waits for its turn for too long: other clients regard the
/// candidate as dead by then, and may create another issue.
#[tokio::test]
async fn an_issue_does_not_become_the_lock_after_its_time() {
    let (fake, clock) = fake().await;
    let mut options = options(&fake, "ada");
    (options.candidate_ttl, options.gap) = (Duration::from_millis(500), Duration::from_secs(2));
    let store = leasehold::store::github::connect(options).await.unwrap();
    let ada = TestClient::new(store, 1, LockName::new("deploy").unwrap());
    let error = ada.store.locks().apply(&ada.lock, &acquire(&ada)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(fake.repo().issues.values().all(|issue| !issue.body.contains("settled")));
    clock.advance(Duration::from_secs(66));
    test_client(&fake, "bob", "deploy").await.acquire().await;
}

/// GitHub leaves out the label, so no list of locks would contain the issue.
#[tokio::test]
async fn a_login_that_cannot_label_an_issue_creates_no_lock() {
    let (fake, _) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let zoe = test_client(&fake, "zoe", "deploy").await;
    let error = zoe.store.locks().apply(&zoe.lock, &acquire(&zoe)).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    let created: Vec<_> = fake.repo().issues.values().map(|issue| issue.is_closed).collect();
    assert_eq!(created, [true], "one issue, which is closed");
    test_client(&fake, "ada", "deploy").await.acquire().await;
    zoe.expect_conflict().await;
}

fn acquire(test_client: &TestClient) -> leasehold::model::LockOp {
    let request = std::sync::Arc::new(test_client.request.clone());
    leasehold::model::LockOp::Acquire(leasehold::model::Acquire { request, queue: None, steal_after: None })
}

#[tokio::test]
async fn a_deleted_issue_is_created_again_for_a_name_and_fails_for_a_number() {
    let (fake, clock) = fake().await;
    let (named, ada) = (test_client(&fake, "ada", "deploy").await, test_client(&fake, "ada", "#1").await);
    let lease = named.acquire().await;
    named.release(&lease).await;
    fake.repo().issues.get_mut(&1).unwrap().is_deleted = true;
    clock.advance(std::time::Duration::from_secs(1));
    assert!(named.acquire().await.token > lease.token, "tokens follow the clock");
    assert_eq!(fake.repo().issues.len(), 2);
    let error = ada.store.locks().apply(&ada.lock, &acquire(&ada)).await.unwrap_err();
    assert_eq!(error.to_string(), "issue #1 of the GitHub repository ada/engine does not exist");
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
}

#[tokio::test]
async fn a_closed_issue_is_not_used() {
    let (fake, _) = fake().await;
    let named = test_client(&fake, "ada", "deploy").await;
    let lease = named.acquire().await;
    named.release(&lease).await;
    fake.repo().issues.get_mut(&1).unwrap().is_closed = true;
    for lock in ["deploy", "#1"] {
        let bob = test_client(&fake, "bob", lock).await;
        let error = bob.store.locks().apply(&bob.lock, &acquire(&bob)).await.unwrap_err();
        assert_eq!(error.to_string(), "issue #1 of the GitHub repository ada/engine is closed");
    }
    assert_eq!(fake.repo().issues.len(), 1);
}

#[tokio::test]
async fn a_missing_repository_and_an_invalid_token_are_reported_at_once() {
    let (fake, _) = fake().await;
    let url = fake.url().replace("ada/engine", "ada/motor");
    let missing = leasehold::store::github::GithubOptions::from_url(&StoreUrl::parse(&url).unwrap()).unwrap();
    let missing = leasehold::store::github::connect(missing.with_token("token-of-ada")).await.err().unwrap();
    assert_eq!(missing.code(), "STORE_MISCONFIGURED", "{missing}");
    assert!(missing.to_string().contains("ada/motor does not exist"), "{missing}");
    let unknown = options(&fake, "nobody").with_token("s3cr3t");
    let unknown = leasehold::store::github::connect(unknown).await.err().unwrap();
    assert_eq!(unknown.code(), "STORE_NOT_PERMITTED", "{unknown}");
    assert!(!format!("{unknown:?}").contains("s3cr3t"));
    drop(client(&fake, "ada").await);
}
