//! What people see on issues. It decides nothing.

use std::time::Duration;

use leasehold::model::Outcome;

use super::support::player;
use crate::engines::github::fake::{Fate, Person};
use crate::engines::github::support::{TTL, fake};

/// The first line of each comment, and the assignees.
fn seen(fake: &crate::engines::github::fake::Fake) -> (Vec<String>, Vec<String>) {
    let repo = fake.repo();
    let comments = repo.issues[&1].comments.values();
    let lines = comments.map(|comment| comment.body.lines().next().unwrap_or_default().to_owned());
    (lines.collect(), repo.issues[&1].assignees.clone())
}

#[tokio::test]
async fn the_holder_is_the_assignee_and_one_comment_says_more() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    let ada = player(&scene, "ada", "#1").await;
    for _ in 0..2 {
        let lease = ada.takes().await;
        ada.renews(&lease).await;
        let (lines, assignees) = seen(&scene.0);
        let line = format!(
            "🔒 **Held** by `{}` since {} (token {}).",
            ada.ask.holder, lease.acquired_at, lease.token
        );
        assert_eq!((lines, assignees), (vec![line], vec!["ada".to_owned()]));
        ada.releases(&lease).await;
        assert_eq!(seen(&scene.0), (vec!["🔓 Free.".to_owned()], Vec::new()));
    }
}

#[tokio::test]
async fn who_comes_next_takes_the_place_of_who_was_there() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    let (ada, bob) = (player(&scene, "ada", "issue/1").await, player(&scene, "bob", "issue/1").await);
    ada.takes().await;
    scene.1.advance(Duration::from_millis(TTL));
    let lease = bob.takes().await;
    let (lines, assignees) = seen(&scene.0);
    assert_eq!((lines.len(), assignees), (1, vec!["bob".to_owned()]));
    assert!(matches!(ada.forces(lease.token).await, Outcome::Forced(_)));
    assert_eq!(seen(&scene.0), (vec!["🔓 Free.".to_owned()], Vec::new()));
}

#[tokio::test]
async fn an_issue_that_could_not_be_assigned_is_assigned_with_a_renewal() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    let (ada, bob) = (player(&scene, "ada", "#1").await, player(&scene, "bob", "#1").await);
    scene.0.plan("POST /assignees", Fate::Refuse(502, Vec::new()));
    let lease = ada.takes().await;
    assert!(seen(&scene.0).1.is_empty());
    ada.renews(&lease).await;
    assert_eq!(seen(&scene.0).1, ["ada"]);
    scene.0.asked();
    ada.renews(&lease).await;
    let asked = scene.0.asked();
    assert!(asked.iter().all(|asked| asked.contains("/git/")), "{asked:?}");
    scene.0.plan("DELETE /assignees", Fate::Refuse(502, Vec::new()));
    assert!(matches!(ada.releases(&lease).await, Outcome::Released(_)));
    assert_eq!(seen(&scene.0).1, ["ada"], "for now");
    bob.takes().await;
    assert_eq!(seen(&scene.0).1, ["bob"]);
}

#[tokio::test]
async fn several_holders_are_shown_together() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    let (ada, bob) = (player(&scene, "ada", "#1").await.shared(), player(&scene, "bob", "#1").await.shared());
    let lease = ada.takes().await;
    bob.takes().await;
    assert_eq!(seen(&scene.0).1, ["ada", "bob"]);
    assert_eq!(
        scene.0.repo().issues[&1].comments.values().next().unwrap().body.matches("**Held**").count(),
        2
    );
    ada.releases(&lease).await;
    assert_eq!(seen(&scene.0).1, ["bob"]);
}

#[tokio::test]
async fn what_cannot_be_shown_is_held_all_the_same() {
    let Some(scene) = fake().await else { return };
    let nowhere = player(&scene, "ada", "#99").await;
    let lease = nowhere.takes().await;
    assert!(matches!(nowhere.releases(&lease).await, Outcome::Released(_)));
    scene.0.new_issue("Deploy");
    let ada = player(&scene, "ada", "#1").await;
    for step in ["GET /user", "GET /comments", "POST /comments", "POST /assignees", "DELETE /assignees"] {
        scene.0.plan(step, Fate::Refuse(502, Vec::new()));
        let lease = ada.takes().await;
        assert!(matches!(ada.releases(&lease).await, Outcome::Released(_)), "{step}");
    }
}

#[tokio::test]
async fn people_do_not_decide_and_a_strangers_comment_has_nobody_unassigned() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("Deploy");
    scene.0.person("mallory", Person { is_bot: false, association: "NONE", can_push: false });
    scene.0.write(1, "mallory", "<!-- leasehold:shown {\"lock\":\"#1\",\"logins\":{\"5\":\"eve\"}} -->");
    scene.0.repo().issues.get_mut(&1).unwrap().assignees = vec!["eve".to_owned()];
    let ada = player(&scene, "ada", "#1").await;
    let lease = ada.takes().await;
    assert_eq!(seen(&scene.0).1, ["eve", "ada"]);
    ada.releases(&lease).await;
    assert_eq!(seen(&scene.0).1, ["eve"]);
}

#[tokio::test]
async fn a_lock_with_another_name_is_seen_on_its_ref_alone() {
    let Some(scene) = fake().await else { return };
    scene.0.new_issue("deploy");
    player(&scene, "ada", "deploy").await.takes().await;
    assert!(scene.0.repo().issues[&1].comments.is_empty());
}
