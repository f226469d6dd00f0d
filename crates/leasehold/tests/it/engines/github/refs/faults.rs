//! Bad days: limits, servers with problems, answers that are lost.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome, Release, Renew};
use leasehold::testing::Player;

use super::support::player;
use crate::engines::github::fake::Fate;
use crate::engines::github::support::fake;

fn acquire(player: &Player) -> LockOp {
    LockOp::Acquire(Acquire { ask: Arc::new(player.ask.clone()), queue: None, steal_after: None })
}

async fn fails(player: &Player, op: &LockOp) -> leasehold::Error {
    player.store.locks().apply(&player.lock, op).await.unwrap_err()
}

#[tokio::test]
async fn silence_is_kept_when_github_asks_for_it() {
    let Some(scene) = fake().await else { return };
    let (ada, bob) = (player(&scene, "ada", "lock").await, player(&scene, "bob", "lock").await);
    scene.0.plan("POST /git/commits", Fate::Refuse(403, vec![("retry-after", "90".to_owned())]));
    let error = fails(&ada, &acquire(&ada)).await;
    assert!(
        error.is_retryable()
            && error.to_string().contains("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"),
        "{error}"
    );
    scene.0.asked();
    assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
    assert!(scene.0.asked().is_empty(), "not a word until then");
    bob.takes().await;
}

#[tokio::test]
async fn whoever_cannot_be_renewed_for_long_enough_is_asked_to_stop_while_it_still_holds() {
    let Some(scene) = fake().await else { return };
    let ada = player(&scene, "ada", "lock").await;
    let lease = ada.takes().await;
    for (left, is_asked) in [(4321, false), (2, true), (4321, false)] {
        scene.0.left(left);
        let Outcome::Renewed(renewed) = ada.renews(&lease).await else { panic!("lost") };
        assert_eq!(renewed.asked.is_some(), is_asked, "{left} left");
        assert_eq!(ada.store.budget().unwrap().remaining, left);
    }
}

#[tokio::test]
async fn a_server_that_has_a_problem_may_be_asked_again() {
    let Some(scene) = fake().await else { return };
    let ada = player(&scene, "ada", "lock").await;
    for step in ["GET /git/ref/*", "POST /git/commits", "POST /git/refs"] {
        scene.0.plan(step, Fate::Refuse(502, Vec::new()));
        let error = fails(&ada, &acquire(&ada)).await;
        assert_eq!(error.code(), "STORE_UNAVAILABLE", "{step}: {error}");
    }
    let lease = ada.takes().await;
    scene.0.plan("PATCH /git/refs/*", Fate::Refuse(502, Vec::new()));
    let renew = LockOp::Renew(Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(fails(&ada, &renew).await.is_retryable());
    assert!(matches!(ada.renews(&lease).await, Outcome::Renewed(_)));
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_known_again() {
    let Some(scene) = fake().await else { return };
    let (ada, bob) = (player(&scene, "ada", "lock").await, player(&scene, "bob", "lock").await);
    scene.0.plan("POST /git/refs", Fate::LoseAnswer);
    assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
    let lease = ada.takes().await;
    assert_eq!(ada.record().await.holders.len(), 1);
    scene.1.advance(Duration::from_secs(4));
    scene.0.plan("PATCH /git/refs/*", Fate::LoseAnswer);
    let renew = LockOp::Renew(Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(fails(&ada, &renew).await.is_retryable());
    assert!(matches!(ada.renews(&lease).await, Outcome::Renewed(_)));
    scene.0.plan("PATCH /git/refs/*", Fate::LoseAnswer);
    let release = LockOp::Release(Release { lease_id: ada.id(), token: lease.token, at_least: None });
    assert!(fails(&ada, &release).await.is_retryable());
    // It was released; that is all that can be said of it afterwards.
    assert!(matches!(ada.releases(&lease).await, Outcome::NotHeld(_)));
    bob.takes().await;
}

/// Its request outlives the call: nobody waits for it any more, and it still finds its way to the service.
#[tokio::test]
async fn a_write_that_is_adrift_cannot_land_after_it_was_taken_back() {
    for there_before in [false, true] {
        let Some(scene) = fake().await else { return };
        let (ada, bob) = (player(&scene, "ada", "lock").await, player(&scene, "bob", "lock").await);
        if there_before {
            let lease = bob.takes().await;
            bob.releases(&lease).await;
        }
        let step = if there_before { "PATCH /git/refs/*" } else { "POST /git/refs" };
        scene.0.plan(step, Fate::Late);
        assert!(fails(&ada, &acquire(&ada)).await.is_retryable());
        assert_eq!(ada.leaves().await, Outcome::Left);
        scene.0.catch_up();
        let record = ada.store.locks().get(&ada.lock).await.unwrap();
        assert!(record.is_none_or(|record| record.holders.is_empty()), "it landed after it was taken back");
        bob.takes().await;
    }
}
