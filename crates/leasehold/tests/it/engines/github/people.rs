//! Tests of what people see on issues, and of their actions that clients respect.

use leasehold::model::EventKind::{Acquired, Released};
use leasehold::model::Outcome;
use leasehold::{Error, Leasehold};

use super::fake::Person;
use super::support::{GRACE, TTL, client, fake, test_client};

fn stranger() -> Person {
    Person { is_bot: false, association: "NONE", can_push: false }
}

#[tokio::test]
async fn the_holder_is_the_assignee_and_has_one_comment() {
    let (fake, clock) = fake().await;
    let issue = fake.new_issue("Deploy");
    let test_client = test_client(&fake, "ada", "#1").await.meta("worker_id", "w-7");
    let lease = test_client.acquire().await;
    clock.advance(std::time::Duration::from_secs(4));
    test_client.renew(&lease).await;
    {
        let repo = fake.repo();
        let issue = &repo.issues[&issue];
        assert_eq!(issue.assignees, ["ada"]);
        let [comment] = &issue.comments.values().collect::<Vec<_>>()[..] else { panic!("one comment") };
        let first = comment.body.lines().next().unwrap();
        let holder = &test_client.request.holder;
        let token = lease.token;
        assert_eq!(
            first,
            format!("🔒 **Held** by `{holder}` since 2023-11-14T22:13:20Z (token {token}, renewal 1).")
        );
        assert!(comment.body.contains(r#""worker_id":"w-7""#), "{}", comment.body);
    }
    test_client.release(&lease).await;
    let repo = fake.repo();
    let issue = &repo.issues[&issue];
    assert!(issue.assignees.is_empty() && issue.comments.len() == 1);
    assert!(issue.comments.values().next().unwrap().body.starts_with("🔓 Released by"));
}

/// The claim of a task has the same fields in the same place.
#[tokio::test]
async fn a_claim_contains_worker_host_times_and_labels() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Deploy", &["complexity:high", "type:infra"]);
    let ada = test_client(&fake, "ada", "#1").await.meta("team", "ops");
    let said = || {
        let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
        let json = body.split_once("<!-- leasehold:v1 ").unwrap().1.trim_end_matches(" -->").to_owned();
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["metadata"].clone()
    };
    let lease = ada.acquire().await;
    let first = said();
    assert_eq!(first["worker_id"], ada.request.holder.as_str());
    assert_eq!(first["node_id"], leasehold::store::host_name());
    assert_eq!(first["pid"], std::process::id().to_string());
    assert_eq!((&first["task_info.complexity"], &first["task_info.type"]), (&"high".into(), &"infra".into()));
    assert_eq!(
        (&first["claimed_at"], &first["heartbeat_last"]),
        (&first["claimed_at"], &first["claimed_at"])
    );
    assert_eq!(first["claimed_at"], "2023-11-14T22:13:20Z");
    assert_eq!(lease.request.metadata, ada.request.metadata, "only the entries of the caller");
    clock.advance(std::time::Duration::from_secs(4));
    let Outcome::Renewed(renewed) = ada.renew(&lease).await else { panic!("lost") };
    let renewed_at = said();
    assert_eq!((&renewed_at["claimed_at"], &renewed_at["team"]), (&first["claimed_at"], &"ops".into()));
    assert_eq!(renewed_at["heartbeat_last"], "2023-11-14T22:13:24Z");
    assert_eq!(renewed.request.metadata, ada.request.metadata);
    let shown = ada.store.locks().get(&ada.lock).await.unwrap().unwrap();
    assert_eq!(shown.holders[0].request.metadata, ada.request.metadata);
}

#[tokio::test]
async fn a_person_who_is_assigned_keeps_programs_out() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let test_client = test_client(&fake, "ada", "#1").await;
    fake.repo().issues.get_mut(&issue).unwrap().assignees = vec!["eve".to_owned()];
    let conflict = test_client.expect_conflict().await;
    assert_eq!(conflict.holders[0].holder.as_str(), "@eve, who is assigned");
    assert!(fake.repo().issues[&issue].comments.is_empty(), "no comment was posted");
    let status = Leasehold::with_store(test_client.store.clone())
        .unwrap()
        .locks()
        .status(&test_client.lock)
        .await
        .unwrap();
    assert!(status.is_locked && !status.is_stale, "{status:?}");
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    test_client.acquire().await;
}

#[tokio::test]
async fn the_history_lists_people_and_programs_in_order_of_time() {
    let (fake, clock) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let minute = std::time::Duration::from_mins(1);
    fake.assign(issue, "eve", true);
    clock.advance(minute);
    fake.assign(issue, "eve", false);
    clock.advance(minute);
    let lease = ada.acquire().await;
    ada.release(&lease).await;
    clock.advance(minute);
    fake.assign(issue, "eve", true);
    let request = leasehold::store::ListEvents::default().lock(ada.lock.clone());
    let told = ada.store.locks().history(&request).await.unwrap().items;
    let told: Vec<_> = told.iter().rev().map(|event| (event.holder.as_str(), event.kind)).collect();
    let (eve, holder) = ("@eve, who is assigned", ada.request.holder.as_str());
    assert_eq!(
        told,
        [(eve, Acquired), (eve, Released), (holder, Acquired), (holder, Released), (eve, Acquired)]
    );
}

/// The response to the client's own assignment shows a person who was first.
#[tokio::test]
async fn a_person_assigned_during_an_acquire_is_first() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let test_client = test_client(&fake, "ada", "#1").await;
    fake.after_request("PATCH /1000001", move |repo| {
        repo.issues.get_mut(&issue).unwrap().assignees = vec!["eve".to_owned()];
    });
    assert_eq!(test_client.expect_conflict().await.holders[0].holder.as_str(), "@eve, who is assigned");
    let repo = fake.repo();
    assert_eq!(repo.issues[&issue].assignees, ["eve"]);
    assert!(repo.issues[&issue].comments.is_empty(), "the claim was withdrawn");
}

#[tokio::test]
async fn the_assignee_of_a_dead_worker_is_not_taken_for_a_person() {
    let (fake, clock) = fake().await;
    let issue = fake.new_issue("Deploy");
    let (ada, bob) = (test_client(&fake, "ada", "#1").await, test_client(&fake, "bob", "#1").await);
    ada.acquire().await;
    clock.advance(std::time::Duration::from_millis(TTL + GRACE));
    bob.acquire().await;
    let repo = fake.repo();
    assert_eq!(repo.issues[&issue].assignees, ["bob"]);
    assert_eq!(repo.issues[&issue].comments.len(), 1);
}

#[tokio::test]
async fn a_login_that_cannot_be_assigned_holds_the_lock_and_the_health_check_reports_it() {
    let (fake, _) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.new_issue("Deploy");
    let (zoe, ada) = (test_client(&fake, "zoe", "#1").await, test_client(&fake, "ada", "#1").await);
    let lease = zoe.acquire().await;
    assert!(fake.repo().issues[&issue].assignees.is_empty());
    ada.expect_conflict().await;
    let findings = zoe.store.check_health().await.unwrap();
    let codes: Vec<_> =
        findings.iter().filter_map(|finding| finding.issue.as_ref()).map(|c| c.code).collect();
    assert_eq!(codes, ["GITHUB_NO_PUSH"]);
    zoe.release(&lease).await;
    ada.acquire().await;
    let findings = ada.store.check_health().await.unwrap();
    assert!(findings.iter().all(|finding| finding.issue.is_none()), "{findings:?}");
    assert!(
        findings.iter().any(|finding| finding.detail == "4321 of 5000 are left in this hour"),
        "{findings:?}"
    );
}

/// Otherwise any user could keep all clients out, or use up all tokens.
#[tokio::test]
async fn a_comment_of_a_stranger_or_an_unknown_bot_does_not_count() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    ada.acquire().await;
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
        let bob = test_client(&fake, "bob", &format!("#{number}")).await;
        assert_eq!(matches!(bob.try_acquire().await, Outcome::Conflict(_)), counts, "{login}");
    }
}

/// With one token beyond all others, every later lease would have the same token.
#[tokio::test]
async fn a_token_far_ahead_of_the_clock_is_ignored() {
    let (fake, _) = fake().await;
    let issue = fake.new_issue("Deploy");
    let ada = test_client(&fake, "ada", "#1").await;
    let lease = ada.acquire().await;
    ada.release(&lease).await;
    let body = fake.repo().issues[&issue].comments.values().next().unwrap().body.clone();
    let far = body.replace(&lease.token.to_string(), "9007199254740990");
    assert_ne!(far, body);
    fake.write(issue, "bob", &far);
    // An unreadable comment keeps others out for a limited time.
    ada.expect_conflict().await;
    fake.clock().advance(std::time::Duration::from_hours(2));
    let next = ada.acquire().await;
    assert!(next.token > lease.token && next.token.get() < 9_000_000_000_000_000, "{next:?}");
}

#[tokio::test]
async fn an_outsider_counts_if_the_url_names_it() {
    let (fake, _) = fake().await;
    fake.person("mallory", stranger());
    let issue = fake.new_issue("Deploy");
    let mallory = test_client(&fake, "mallory", "#1").await;
    mallory.acquire().await;
    let mut options = super::support::options(&fake, "bob");
    options.workers = vec!["Mallory".to_owned()];
    let mut bob = test_client(&fake, "bob", "#1").await;
    bob.store = leasehold::store::github::connect(options).await.unwrap();
    bob.expect_conflict().await;
    assert_eq!(fake.repo().issues[&issue].comments.len(), 1);
}

#[tokio::test]
async fn only_exclusive_locks_are_supported_and_waiting_polls() {
    let (fake, _) = fake().await;
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
        guard.leases()[0].1.request.ttl,
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
