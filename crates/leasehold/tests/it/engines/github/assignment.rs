//! The holder as assignee of its issue: what failed is repaired, a few times, and decides nothing.

use leasehold::model::Outcome;
use leasehold::testing::Player;

use super::fake::{Fake, Fate, Person};
use super::support::{client, fake, player};

const BAD_GATEWAY: Fate = Fate::Refuse(502, Vec::new());

/// The number of requests to assign a login since the last call.
fn tries(fake: &Fake) -> usize {
    fake.asked().iter().filter(|asked| asked.contains(" POST ") && asked.ends_with("/assignees")).count()
}

fn assignees(fake: &Fake, issue: u64) -> Vec<String> {
    fake.repo().issues[&issue].assignees.clone()
}

async fn renews(player: &Player, lease: &leasehold::model::Lease) {
    let renewed = player.renews(lease).await;
    assert!(matches!(renewed, Outcome::Renewed(_)), "{renewed:?}");
}

#[tokio::test]
async fn one_failure_is_repaired_before_the_acquire_returns() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    fake.plan("POST /assignees", BAD_GATEWAY);
    let lease = ada.takes().await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    fake.asked();
    renews(&ada, &lease).await;
    assert_eq!(fake.asked().len(), 2, "nothing more to do");
}

#[tokio::test]
async fn an_assignment_that_failed_is_made_with_the_next_renewal() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    fake.plan("POST /assignees", BAD_GATEWAY);
    fake.plan("POST /assignees", BAD_GATEWAY);
    let lease = ada.takes().await;
    assert!(assignees(&fake, issue).is_empty());
    renews(&ada, &lease).await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    fake.asked();
    renews(&ada, &lease).await;
    assert_eq!(fake.asked().len(), 2, "a renewal costs no more than before");
    ada.releases(&lease).await;
    assert!(assignees(&fake, issue).is_empty());
}

/// `locks acquire` and `locks renew` are two processes.
#[tokio::test]
async fn the_first_renewal_by_another_process_assigns_the_holder() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    for _ in 0..2 {
        fake.plan("POST /assignees", BAD_GATEWAY);
    }
    let lease = ada.takes().await;
    let mut other = ada.clone();
    other.store = client(&fake, "ada").await;
    renews(&other, &lease).await;
    assert_eq!(assignees(&fake, issue), ["ada"]);
    // What a person has taken back since then stays so.
    fake.assign(issue, "ada", false);
    renews(&other, &lease).await;
    other.store = client(&fake, "ada").await;
    renews(&other, &lease).await;
    assert!(assignees(&fake, issue).is_empty());
}

#[tokio::test]
async fn tries_that_keep_failing_become_rare() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    for _ in 0..20 {
        fake.plan("POST /assignees", BAD_GATEWAY);
    }
    let lease = ada.takes().await;
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
async fn a_login_that_cannot_be_assigned_is_not_tried_again_and_the_doctor_tells() {
    let Some((fake, _)) = fake().await else { return };
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    fake.new_issue("Deploy");
    fake.new_issue("Migrate");
    let zoe = player(&fake, "zoe", "#1").await;
    let lease = zoe.takes().await;
    assert_eq!(tries(&fake), 1, "GitHub ignores it");
    renews(&zoe, &lease).await;
    let ada = player(&fake, "ada", "#2").await;
    fake.plan("POST /assignees", Fate::Refuse(404, Vec::new()));
    fake.asked();
    let lease = ada.takes().await;
    assert_eq!(tries(&fake), 1, "GitHub refuses it for good");
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
        findings.iter().filter_map(|finding| finding.concern.as_ref()).map(|c| c.code).collect();
    assert_eq!(codes, ["GITHUB_NOT_ASSIGNABLE"]);
}

/// The claim says whom it has left assigned: that login is not taken for a person.
#[tokio::test]
async fn a_release_outlasts_an_assignment_that_cannot_be_taken_back() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    let lease = ada.takes().await;
    fake.plan("DELETE /assignees", BAD_GATEWAY);
    let released = ada.releases(&lease).await;
    assert!(matches!(released, Outcome::Released(_)), "{released:?}");
    assert_eq!(assignees(&fake, issue), ["ada"], "for now");
    let lease = bob.takes().await;
    renews(&bob, &lease).await;
    bob.releases(&lease).await;
    assert!(assignees(&fake, issue).is_empty(), "the next release takes both back");
    // From then on ada is a person again where she assigns herself.
    fake.assign(issue, "ada", true);
    assert_eq!(bob.is_refused().await.holders[0].holder.as_str(), "@ada, who is assigned");
}
