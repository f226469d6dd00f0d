//! Tests of the holder as assignee of its issue: failed assignments are repeated a few times, and
//! decide nothing.

use leasehold::model::Outcome;
use leasehold::testing::TestClient;

use super::fake::{Fake, Fate, Person};
use super::support::{client, fake, test_client};

const BAD_GATEWAY: Fate = Fate::Refuse(502, Vec::new());

/// Returns the number of requests to assign a login since the last call.
fn tries(fake: &Fake) -> usize {
    fake.requests()
        .iter()
        .filter(|request| request.contains(" POST ") && request.ends_with("/assignees"))
        .count()
}

fn assignees(fake: &Fake, issue: u64) -> Vec<String> {
    fake.repo().issues[&issue].assignees.clone()
}

async fn renews(test_client: &TestClient, lease: &leasehold::model::Lease) {
    let renewed = test_client.renew(lease).await;
    assert!(matches!(renewed, Outcome::Renewed(_)), "{renewed:?}");
}

#[tokio::test]
async fn one_failure_is_repaired_before_the_acquire_returns() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    fake.plan("POST /assignees", BAD_GATEWAY);
    let lease = ada.acquire().await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    fake.requests();
    renews(&ada, &lease).await;
    assert_eq!(fake.requests().len(), 2, "nothing is repaired");
}

#[tokio::test]
async fn a_failed_assignment_is_repeated_by_the_next_renewal() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    fake.plan("POST /assignees", BAD_GATEWAY);
    fake.plan("POST /assignees", BAD_GATEWAY);
    let lease = ada.acquire().await;
    assert!(assignees(&fake, issue).is_empty());
    renews(&ada, &lease).await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    fake.requests();
    renews(&ada, &lease).await;
    assert_eq!(fake.requests().len(), 2, "a renewal costs as many requests as before");
    ada.release(&lease).await;
    assert!(assignees(&fake, issue).is_empty());
}

/// `locks acquire` and `locks renew` are two processes.
#[tokio::test]
async fn the_first_renewal_by_another_process_assigns_the_holder() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    for _ in 0..2 {
        fake.plan("POST /assignees", BAD_GATEWAY);
    }
    let lease = ada.acquire().await;
    let mut other = ada.clone();
    other.store = client(&fake, "ada").await;
    renews(&other, &lease).await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    // An assignment that a person has removed since is not restored.
    fake.assign(issue, "ada", false);
    renews(&other, &lease).await;
    other.store = client(&fake, "ada").await;
    renews(&other, &lease).await;
    assert!(assignees(&fake, issue).is_empty());
}

#[tokio::test]
async fn repeated_failures_become_less_frequent() {
    let (fake, _) = fake().await;
    fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    for _ in 0..20 {
        fake.plan("POST /assignees", BAD_GATEWAY);
    }
    let lease = ada.acquire().await;
    assert_eq!(tries(&fake), 2);
    let mut made = Vec::new();
    for _ in 0..8 {
        renews(&ada, &lease).await;
        made.push(tries(&fake));
    }
    assert_eq!(made, [1, 0, 1, 0, 0, 0, 1, 0]);
    assert!(ada.holds().await);
}

#[tokio::test]
async fn a_login_that_cannot_be_assigned_is_not_retried_and_the_health_check_reports_it() {
    let (fake, _) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    fake.new_issue("Deploy");
    fake.new_issue("Migrate");
    let zoe = test_client(&fake, "zoe", "#1").await;
    let lease = zoe.acquire().await;
    assert_eq!(tries(&fake), 1, "GitHub ignores it");
    renews(&zoe, &lease).await;
    let ada = test_client(&fake, "ada", "#2").await;
    fake.plan("POST /assignees", Fate::Refuse(404, Vec::new()));
    fake.requests();
    let lease = ada.acquire().await;
    assert_eq!(tries(&fake), 1, "GitHub refuses it permanently");
    renews(&ada, &lease).await;
    assert_eq!(tries(&fake), 0);
    let findings = ada.store.check_health().await.unwrap();
    assert!(
        findings.iter().any(|finding| finding.detail.ends_with("can be assigned to ada")),
        "{findings:?}"
    );
    fake.plan("GET /assignees/ada", Fate::Refuse(404, Vec::new()));
    let findings = ada.store.check_health().await.unwrap();
    let codes: Vec<_> =
        findings.iter().filter_map(|finding| finding.issue.as_ref()).map(|c| c.code).collect();
    assert_eq!(codes, ["GITHUB_NOT_ASSIGNABLE"]);
}

/// The claim lists the logins that are still assigned, so they are not taken for people.
#[tokio::test]
async fn a_release_succeeds_although_the_assignee_cannot_be_removed() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    let lease = ada.acquire().await;
    fake.plan("DELETE /assignees", BAD_GATEWAY);
    let released = ada.release(&lease).await;
    assert!(matches!(released, Outcome::Released(_)), "{released:?}");
    assert_eq!(assignees(&fake, issue), ["ada"], "for now");
    let lease = bob.acquire().await;
    renews(&bob, &lease).await;
    bob.release(&lease).await;
    assert!(assignees(&fake, issue).is_empty(), "the next release unassigns both");
    // From then on, ada counts as a person if she assigns herself.
    fake.assign(issue, "ada", true);
    assert_eq!(bob.expect_conflict().await.holders[0].holder.as_str(), "@ada, who is assigned");
}
