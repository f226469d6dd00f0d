//! Tests of what people see on issues. It decides nothing.

use std::time::Duration;

use leasehold::model::Outcome;

use super::support::test_client;
use crate::engines::github::fake::{Fate, Person};
use crate::engines::github::support::{TTL, fake};

/// Returns the first line of each comment, and the assignees.
fn seen(fake: &crate::engines::github::fake::Fake) -> (Vec<String>, Vec<String>) {
    let repo = fake.repo();
    let comments = repo.issues[&1].comments.values();
    let lines = comments.map(|comment| comment.body.lines().next().unwrap_or_default().to_owned());
    (lines.collect(), repo.issues[&1].assignees.clone())
}

#[tokio::test]
async fn the_holder_is_the_assignee_and_has_one_comment() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    let ada = test_client(&scenario, "ada", "#1").await;
    for _ in 0..2 {
        let lease = ada.acquire().await;
        ada.renew(&lease).await;
        let (lines, assignees) = seen(&scenario.0);
        let line = format!(
            "🔒 **Held** by `{}` since {} (token {}).",
            ada.request.holder, lease.acquired_at, lease.token
        );
        assert_eq!((lines, assignees), (vec![line], vec!["ada".to_owned()]));
        ada.release(&lease).await;
        assert_eq!(seen(&scenario.0), (vec!["🔓 Free.".to_owned()], Vec::new()));
    }
}

#[tokio::test]
async fn the_next_holder_replaces_the_last_one_on_the_issue() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    let (ada, bob) =
        (test_client(&scenario, "ada", "issue/1").await, test_client(&scenario, "bob", "issue/1").await);
    ada.acquire().await;
    scenario.1.advance(Duration::from_millis(TTL));
    let lease = bob.acquire().await;
    let (lines, assignees) = seen(&scenario.0);
    assert_eq!((lines.len(), assignees), (1, vec!["bob".to_owned()]));
    assert!(matches!(ada.force_release(lease.token).await, Outcome::Forced(_)));
    assert_eq!(seen(&scenario.0), (vec!["🔓 Free.".to_owned()], Vec::new()));
}

#[tokio::test]
async fn a_failed_assignment_is_repeated_by_a_renewal() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    let (ada, bob) = (test_client(&scenario, "ada", "#1").await, test_client(&scenario, "bob", "#1").await);
    scenario.0.plan("POST /assignees", Fate::Refuse(502, Vec::new()));
    let lease = ada.acquire().await;
    assert!(seen(&scenario.0).1.is_empty());
    ada.renew(&lease).await;
    assert_eq!(seen(&scenario.0).1, ["ada"]);
    scenario.0.requests();
    ada.renew(&lease).await;
    let requests = scenario.0.requests();
    assert!(requests.iter().all(|request| request.contains("/git/")), "{requests:?}");
    scenario.0.plan("DELETE /assignees", Fate::Refuse(502, Vec::new()));
    assert!(matches!(ada.release(&lease).await, Outcome::Released(_)));
    assert_eq!(seen(&scenario.0).1, ["ada"], "for now");
    bob.acquire().await;
    assert_eq!(seen(&scenario.0).1, ["bob"]);
}

#[tokio::test]
async fn several_holders_are_shown_together() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    let (ada, bob) = (
        test_client(&scenario, "ada", "#1").await.shared(),
        test_client(&scenario, "bob", "#1").await.shared(),
    );
    let lease = ada.acquire().await;
    bob.acquire().await;
    assert_eq!(seen(&scenario.0).1, ["ada", "bob"]);
    assert_eq!(
        scenario.0.repo().issues[&1].comments.values().next().unwrap().body.matches("**Held**").count(),
        2
    );
    ada.release(&lease).await;
    assert_eq!(seen(&scenario.0).1, ["bob"]);
}

#[tokio::test]
async fn a_lock_is_held_although_it_cannot_be_shown() {
    let scenario = fake().await;
    let nowhere = test_client(&scenario, "ada", "#99").await;
    let lease = nowhere.acquire().await;
    assert!(matches!(nowhere.release(&lease).await, Outcome::Released(_)));
    scenario.0.new_issue("Deploy");
    let ada = test_client(&scenario, "ada", "#1").await;
    for step in ["GET /user", "GET /comments", "POST /comments", "POST /assignees", "DELETE /assignees"] {
        scenario.0.plan(step, Fate::Refuse(502, Vec::new()));
        let lease = ada.acquire().await;
        assert!(matches!(ada.release(&lease).await, Outcome::Released(_)), "{step}");
    }
}

#[tokio::test]
async fn people_do_not_decide_and_a_strangers_comment_unassigns_no_login() {
    let scenario = fake().await;
    scenario.0.new_issue("Deploy");
    scenario.0.person("mallory", Person { is_bot: false, association: "NONE", can_push: false });
    scenario.0.write(1, "mallory", "<!-- leasehold:shown {\"lock\":\"#1\",\"logins\":{\"5\":\"eve\"}} -->");
    scenario.0.repo().issues.get_mut(&1).unwrap().assignees = vec!["eve".to_owned()];
    let ada = test_client(&scenario, "ada", "#1").await;
    let lease = ada.acquire().await;
    assert_eq!(seen(&scenario.0).1, ["eve", "ada"]);
    ada.release(&lease).await;
    assert_eq!(seen(&scenario.0).1, ["eve"]);
}

#[tokio::test]
async fn a_lock_that_is_no_issue_is_shown_only_on_its_ref() {
    let scenario = fake().await;
    scenario.0.new_issue("deploy");
    test_client(&scenario, "ada", "deploy").await.acquire().await;
    assert!(scenario.0.repo().issues[&1].comments.is_empty());
}
