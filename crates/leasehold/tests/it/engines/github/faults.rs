//! Bad days: limits, garbage, old lists, ids in the wrong order, answers that are lost or late.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{Acquire, LockOp, Outcome};
use leasehold::testing::Player;

use super::fake::{Fate, Ids, Person};
use super::support::{TTL, fake, player};

fn acquire(player: &Player) -> LockOp {
    LockOp::Acquire(Acquire { ask: Arc::new(player.ask.clone()), queue: None, steal_after: None })
}

async fn fails(player: &Player) -> leasehold::Error {
    player.store.locks().apply(&player.lock, &acquire(player)).await.unwrap_err()
}

#[tokio::test]
async fn silence_is_kept_when_github_asks_for_it() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    fake.plan("POST /comments", Fate::Refuse(403, vec![("retry-after", "90".to_owned())]));
    fake.asked();
    let error = fails(&ada).await;
    assert!(
        error.is_retryable()
            && error.to_string().contains("GitHub refuses requests until 2023-11-14T22:14:50Z (1m"),
        "{error}"
    );
    fake.asked();
    assert!(fails(&ada).await.is_retryable());
    assert!(fake.asked().is_empty(), "not a word until then");
    bob.takes().await;
}

/// Half an hour is 541 renewals of a lease of 10 s.
#[tokio::test]
async fn whoever_cannot_be_renewed_for_long_enough_is_asked_to_stop_while_it_still_holds() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    let lease = ada.takes().await;
    let Outcome::Renewed(renewed) = ada.renews(&lease).await else { panic!("lost") };
    assert!(renewed.asked.is_none());
    assert_eq!(ada.store.budget().map(|budget| (budget.limit, budget.remaining)), Some((5000, 4321)));
    fake.left(1081);
    let Outcome::Renewed(renewed) = ada.renews(&lease).await else { panic!("lost") };
    let asked = renewed.asked.expect("it is asked to stop");
    assert_eq!(asked.by.as_str(), "the limit of GitHub");
    let reason = asked.reason.unwrap();
    assert!(reason.as_str().starts_with("1081 of 5000 requests are left until "), "{reason}");
    fake.left(1082);
    let Outcome::Renewed(renewed) = ada.renews(&lease).await else { panic!("lost") };
    assert!(renewed.asked.is_none(), "somebody else has stopped using them up");
}

#[tokio::test]
async fn a_server_that_has_a_problem_may_be_asked_again() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    for step in ["GET /issues/1", "GET /comments", "POST /comments", "PATCH /1000001"] {
        fake.plan(step, Fate::Refuse(502, Vec::new()));
        let error = fails(&ada).await;
        assert_eq!(error.code(), "STORE_UNAVAILABLE", "{step}: {error}");
        if step.starts_with("PATCH") {
            assert!(fake.repo().issues[&1].comments.is_empty(), "the flag is down");
        }
    }
    // Without an assignee it is held all the same.
    fake.plan("POST /assignees", Fate::Refuse(502, Vec::new()));
    ada.takes().await;
}

#[tokio::test]
async fn a_locked_conversation_is_told() {
    let Some((fake, _)) = fake().await else { return };
    fake.person("zoe", Person { is_bot: false, association: "NONE", can_push: true });
    let issue = fake.new_issue("Deploy");
    fake.repo().issues.get_mut(&issue).unwrap().is_locked = true;
    let error = fails(&player(&fake, "zoe", "#1").await).await;
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert!(error.to_string().contains("has locked the conversation"), "{error}");
    player(&fake, "ada", "#1").await.takes().await;
}

#[tokio::test]
async fn a_claim_that_a_person_has_spoiled_keeps_others_out_and_its_holder_learns_it() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    let lease = ada.takes().await;
    for comment in fake.repo().issues.get_mut(&issue).unwrap().comments.values_mut() {
        comment.body = comment.body.replace("\"state\":\"held\"", "\"state\":\"helt\"");
    }
    let conflict = bob.is_refused().await;
    assert!(conflict.holders[0].holder.as_str().ends_with("which cannot be read"), "{conflict:?}");
    assert!(
        matches!(ada.renews(&lease).await, Outcome::NotHeld(_)),
        "it does not know whether others saw it"
    );
    // How long it was good for cannot be read either: as long as a lease lasts if nobody says otherwise.
    clock.advance(Duration::from_secs(900 + 5));
    bob.takes().await;
}

#[tokio::test]
async fn whoever_deletes_the_claim_takes_the_lock_away() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    let lease = ada.takes().await;
    fake.repo().issues.get_mut(&issue).unwrap().comments.clear();
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    assert!(matches!(ada.renews(&lease).await, Outcome::NotHeld(_)));
    assert!(bob.takes().await.token >= lease.token);
}

/// The old list does not have our own flag: it tells nothing, and another is asked for.
#[tokio::test]
async fn a_list_that_is_old_is_not_believed() {
    let Some((fake, _)) = fake().await else { return };
    // Who holds it is not to be seen from the assignee.
    fake.person("ada", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    fake.freeze();
    ada.takes().await;
    // Bob's first look is from before ada took it, and so are the two after its flag went up.
    fake.stale_lists(3);
    fake.asked();
    bob.is_refused().await;
    let looks =
        fake.asked().into_iter().filter(|asked| asked.ends_with("GET /repos/ada/engine/issues/1/comments"));
    assert_eq!(looks.count(), 4);
    assert_eq!(fake.repo().issues[&issue].comments.len(), 1);
    assert!(ada.holds().await && !bob.holds().await);
}

#[tokio::test]
async fn ids_in_the_wrong_order_make_no_second_holder() {
    let Some((fake, _)) = fake().await else { return };
    fake.ids(Ids::Falling);
    for round in 0..10 {
        let issue = fake.new_issue("Deploy");
        let lock = format!("#{issue}");
        let players = [
            player(&fake, "ada", &lock).await,
            player(&fake, "bob", &lock).await,
            player(&fake, "eve", &lock).await,
        ];
        let asking = players
            .map(|player| tokio::spawn(async move { matches!(player.asks().await, Outcome::Granted(_)) }));
        let mut won = 0;
        for asked in asking {
            won += u32::from(asked.await.unwrap());
        }
        assert!(won <= 1, "round {round}: {won} holders");
    }
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_is_made_again() {
    let Some((fake, clock)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    let lease = ada.takes().await;
    clock.advance(Duration::from_secs(4));
    fake.plan("PATCH /1000001", Fate::LoseAnswer);
    let renew = LockOp::Renew(leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(ada.store.locks().apply(&ada.lock, &renew).await.unwrap_err().is_retryable());
    assert!(matches!(ada.renews(&lease).await, Outcome::Renewed(_)));
}

/// Its holder has given it up: an edit that comes after that finds nothing to prolong.
#[tokio::test]
async fn a_late_renewal_brings_nobody_back() {
    let Some((fake, clock)) = fake().await else { return };
    fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    let lease = ada.takes().await;
    fake.plan("PATCH /1000001", Fate::Late);
    let renew = LockOp::Renew(leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None });
    assert!(ada.store.locks().apply(&ada.lock, &renew).await.is_err());
    clock.advance(Duration::from_millis(TTL));
    assert!(matches!(ada.renews(&lease).await, Outcome::NotHeld(_)), "its time is over");
    fake.catch_up();
    bob.takes().await;
    assert!(matches!(ada.renews(&lease).await, Outcome::NotHeld(_)));
}

#[tokio::test]
async fn an_uncontended_lock_costs_as_many_requests_as_the_page_says() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    fake.asked();
    let lease = ada.takes().await;
    assert_eq!(fake.asked().len(), 6, "acquire");
    ada.renews(&lease).await;
    assert_eq!(fake.asked().len(), 2, "renew");
    let bob = player(&fake, "bob", "#1").await;
    for unchanged in [0, 2, 2] {
        fake.asked();
        bob.is_refused().await;
        assert_eq!((fake.asked().len(), fake.unchanged()), (2, unchanged), "refused");
    }
    ada.releases(&lease).await;
    assert_eq!(fake.asked().len(), 3, "release");
}

/// The client has given up on a renewal, and has released the lock since. The renewal arrives after that.
#[tokio::test]
async fn a_renewal_that_comes_late_brings_no_lease_back() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    let lease = ada.takes().await;
    let comment = *fake.repo().issues[&issue].comments.keys().next().unwrap();
    fake.plan(&format!("PATCH /{comment}"), Fate::Late);
    let renew = leasehold::model::Renew { lease_id: ada.id(), token: lease.token, ttl: None };
    ada.store.locks().apply(&ada.lock, &LockOp::Renew(renew)).await.unwrap_err();
    assert!(matches!(ada.releases(&lease).await, Outcome::Released(_)));
    fake.catch_up();
    let next = bob.takes().await;
    assert!(next.token > lease.token);
}
