//! Tests of what people see on issues, and of their actions that clients respect.

use leasehold::model::EventKind::{Acquired, Released};
use leasehold::model::Outcome;
use leasehold::{Error, Leasehold};

use super::fake::Person;
use super::support::{GRACE, TTL, client, fake, player};

fn stranger() -> Person {
    Person { is_bot: false, association: "NONE", can_push: false }
}

#[tokio::test]
async fn the_holder_is_the_assignee_and_has_one_comment() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let player = player(&fake, "ada", "#1").await.meta("worker_id", "w-7");
    let lease = player.takes().await;
    clock.advance(std::time::Duration::from_secs(4));
    player.renews(&lease).await;
    {
        let repo = fake.repo();
        let issue = &repo.issues[&issue];
        assert_eq!(issue.assignees, ["ada"]);
        let [comment] = &issue.comments.values().collect::<Vec<_>>()[..] else { panic!("one comment") };
        let first = comment.body.lines().next().unwrap();
        let holder = &player.ask.holder;
        let token = lease.token;
        assert_eq!(
            first,
            format!("🔒 **Held** by `{holder}` since 2023-11-14T22:13:20Z (token {token}, renewal 1).")
        );
        assert!(comment.body.contains(r#""worker_id":"w-7""#), "{}", comment.body);
    }
    player.releases(&lease).await;
    let repo = fake.repo();
    let issue = &repo.issues[&issue];
    assert!(issue.assignees.is_empty() && issue.comments.len() == 1);
    assert!(issue.comments.values().next().unwrap().body.starts_with("🔓 Released by"));
}

/// The claim of a task has the same fields in the same place.
#[tokio::test]
async fn a_claim_contains_worker_host_times_and_labels() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.labelled_issue("Deploy", &["complexity:high", "type:infra"]);
    let ada = player(&fake, "ada", "#1").await.meta("team", "ops");
    let said = || {
        let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
        let json = body.split_once("<!-- leasehold:v1 ").unwrap().1.trim_end_matches(" -->").to_owned();
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["metadata"].clone()
    };
    let lease = ada.takes().await;
    let first = said();
    assert_eq!(first["worker_id"], ada.ask.holder.as_str());
    assert_eq!(first["node_id"], leasehold::store::host_name());
    assert_eq!(first["pid"], std::process::id().to_string());
    assert_eq!((&first["task_info.complexity"], &first["task_info.type"]), (&"high".into(), &"infra".into()));
    assert_eq!(
        (&first["claimed_at"], &first["heartbeat_last"]),
        (&first["claimed_at"], &first["claimed_at"])
    );
    assert_eq!(first["claimed_at"], "2023-11-14T22:13:20Z");
    assert_eq!(lease.ask.metadata, ada.ask.metadata, "only the entries of the caller");
    clock.advance(std::time::Duration::from_secs(4));
    let Outcome::Renewed(renewed) = ada.renews(&lease).await else { panic!("lost") };
    let renewed_at = said();
    assert_eq!((&renewed_at["claimed_at"], &renewed_at["team"]), (&first["claimed_at"], &"ops".into()));
    assert_eq!(renewed_at["heartbeat_last"], "2023-11-14T22:13:24Z");
    assert_eq!(renewed.ask.metadata, ada.ask.metadata);
    let shown = ada.store.locks().get(&ada.lock).await.unwrap().unwrap();
    assert_eq!(shown.holders[0].ask.metadata, ada.ask.metadata);
}

#[tokio::test]
async fn a_person_who_is_assigned_keeps_programs_out() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let player = player(&fake, "ada", "#1").await;
    fake.repo().issues.get_mut(&issue).unwrap().assignees = vec!["eve".to_owned()];
    let conflict = player.is_refused().await;
    assert_eq!(conflict.holders[0].holder.as_str(), "@eve, who is assigned");
    assert!(fake.repo().issues[&issue].comments.is_empty(), "no comment was posted");
    let status = Leasehold::with_store(player.store.clone()).unwrap().status(&player.lock).await.unwrap();
    assert!(status.is_locked && !status.is_stale, "{status:?}");
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    player.takes().await;
}

#[tokio::test]
async fn the_history_lists_people_and_programs_in_order_of_time() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    let minute = std::time::Duration::from_mins(1);
    fake.assign(issue, "eve", true);
    clock.advance(minute);
    fake.assign(issue, "eve", false);
    clock.advance(minute);
    let lease = ada.takes().await;
    ada.releases(&lease).await;
    clock.advance(minute);
    fake.assign(issue, "eve", true);
    let ask = leasehold::store::ListEvents { lock: Some(ada.lock.clone()), ..Default::default() };
    let told = ada.store.locks().history(&ask).await.unwrap().items;
    let told: Vec<_> = told.iter().rev().map(|event| (event.holder.as_str(), event.kind)).collect();
    let (eve, holder) = ("@eve, who is assigned", ada.ask.holder.as_str());
    assert_eq!(
        told,
        [(eve, Acquired), (eve, Released), (holder, Acquired), (holder, Released), (eve, Acquired)]
    );
}

/// The response to the client's own assignment shows a person who was first.
#[tokio::test]
async fn a_person_assigned_during_an_acquire_is_first() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let player = player(&fake, "ada", "#1").await;
    fake.after_request("PATCH /1000001", move |repo| {
        repo.issues.get_mut(&issue).unwrap().assignees = vec!["eve".to_owned()];
    });
    assert_eq!(player.is_refused().await.holders[0].holder.as_str(), "@eve, who is assigned");
    let repo = fake.repo();
    assert_eq!(repo.issues[&issue].assignees, ["eve"]);
    assert!(repo.issues[&issue].comments.is_empty(), "the claim was withdrawn");
}

#[tokio::test]
async fn the_assignee_of_a_dead_worker_is_not_taken_for_a_person() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (player(&fake, "ada", "#1").await, player(&fake, "bob", "#1").await);
    ada.takes().await;
    clock.advance(std::time::Duration::from_millis(TTL + GRACE));
    bob.takes().await;
    let repo = fake.repo();
    assert_eq!(repo.issues[&issue].assignees, ["bob"]);
    assert_eq!(repo.issues[&issue].comments.len(), 1);
}

#[tokio::test]
async fn a_login_that_cannot_be_assigned_holds_the_lock_and_the_health_check_reports_it() {
    let Some((fake, _)) = fake().await else { return };
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.new_issue("Deploy");
    let (zoe, ada) = (player(&fake, "zoe", "#1").await, player(&fake, "ada", "#1").await);
    let lease = zoe.takes().await;
    assert!(fake.repo().issues[&issue].assignees.is_empty());
    ada.is_refused().await;
    let findings = zoe.store.check_health().await.unwrap();
    let codes: Vec<_> =
        findings.iter().filter_map(|finding| finding.concern.as_ref()).map(|c| c.code).collect();
    assert_eq!(codes, ["GITHUB_NO_PUSH"]);
    zoe.releases(&lease).await;
    ada.takes().await;
    let findings = ada.store.check_health().await.unwrap();
    assert!(findings.iter().all(|finding| finding.concern.is_none()), "{findings:?}");
    assert!(
        findings.iter().any(|finding| finding.detail == "4321 of 5000 are left in this hour"),
        "{findings:?}"
    );
}

/// Otherwise any user could keep all clients out, or use up all tokens.
#[tokio::test]
async fn a_comment_of_a_stranger_or_an_unknown_bot_does_not_count() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    ada.takes().await;
    let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
    for (login, person, counts) in [
        ("mallory", stranger(), false),
        ("robot[bot]", Person { is_bot: true, ..stranger() }, false),
        ("carol", Person { association: "OWNER", ..stranger() }, true),
        ("dan", Person { association: "CONTRIBUTOR", ..stranger() }, false),
    ] {
        fake.person(login, person);
        let number = fake.new_issue("Another");
        fake.write(number, login, &body);
        let bob = player(&fake, "bob", &format!("#{number}")).await;
        assert_eq!(matches!(bob.asks().await, Outcome::Conflict(_)), counts, "{login}");
    }
}

/// With one token beyond all others, every later lease would have the same token.
#[tokio::test]
async fn a_token_far_ahead_of_the_clock_is_ignored() {
    let Some((fake, _)) = fake().await else { return };
    let issue = fake.new_issue("Deploy");
    let ada = player(&fake, "ada", "#1").await;
    let lease = ada.takes().await;
    ada.releases(&lease).await;
    let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
    let far = body.replace(&lease.token.to_string(), "9007199254740990");
    assert_ne!(far, body);
    fake.write(issue, "bob", &far);
    // An unreadable comment keeps others out for a limited time.
    ada.is_refused().await;
    fake.clock().advance(std::time::Duration::from_hours(2));
    let next = ada.takes().await;
    assert!(next.token > lease.token && next.token.get() < 9_000_000_000_000_000, "{next:?}");
}

#[tokio::test]
async fn an_outsider_counts_if_the_url_names_it() {
    let Some((fake, _)) = fake().await else { return };
    fake.person("mallory", stranger());
    let issue = fake.new_issue("Deploy");
    let mallory = player(&fake, "mallory", "#1").await;
    mallory.takes().await;
    let mut options = super::support::options(&fake, "bob");
    options.workers = vec!["Mallory".to_owned()];
    let mut bob = player(&fake, "bob", "#1").await;
    bob.store = leasehold::store::github::connect(options).await.unwrap();
    bob.is_refused().await;
    assert_eq!(fake.repo().issues[&issue].comments.len(), 1);
}

#[tokio::test]
async fn only_exclusive_locks_are_supported_and_waiting_polls() {
    let Some((fake, _)) = fake().await else { return };
    fake.new_issue("Deploy");
    let leasehold = Leasehold::with_store(client(&fake, "ada").await).unwrap();
    for refused in
        [leasehold.lock("#1").shared().acquire().await, leasehold.lock("#1").slots(2).acquire().await]
    {
        let error = refused.expect_err("it should have been refused");
        assert_eq!(error.to_string(), "github has exclusive locks only: neither shared ones nor slots");
    }
    let guard = leasehold.lock("#1").acquire().await.unwrap();
    assert_eq!(
        guard.leases()[0].1.ask.ttl,
        leasehold::model::Ttl::from_secs(900),
        "the default of the engine"
    );
    let waiting = leasehold.lock("#1").wait(std::time::Duration::from_millis(50)).acquire().await;
    assert!(matches!(waiting, Err(Error::Conflict { .. })));
    guard.release().await.unwrap();
    leasehold
        .lock("#1")
        .wait(std::time::Duration::from_millis(50))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    leasehold.close().await;
}
