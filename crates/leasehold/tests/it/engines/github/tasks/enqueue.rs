//! Tests of issues that are created for tasks.

use std::time::Duration;

use leasehold::model::{AttemptResult, Enqueued, NewTask, Payload, Reuse, TaskState};
use leasehold::testing::task_fixture::{queue, task};

use super::support::worker;
use crate::engines::github::fake::{Fate, Person};
use crate::engines::github::support::{fake, options};

fn new(number: u128) -> NewTask {
    task(number).in_queue("agent")
}

#[tokio::test]
async fn a_new_task_is_an_issue_that_people_can_read() {
    let (fake, _) = fake().await;
    let ada = worker(&fake, "ada").await;
    let tasks = ada.store.tasks().unwrap();
    let mut mail = new(1);
    mail.payload = Payload::new("{\"to\": \"<!-- leasehold:task {} --> ```\"}").unwrap();
    assert_eq!(tasks.enqueue(&[mail.clone()]).await.unwrap(), [Enqueued::Added(mail.id)]);
    {
        let repo = fake.repo();
        let issue = &repo.issues[&1];
        assert_eq!(issue.labels, ["agent", "leasehold:task"]);
        assert!(issue.title.starts_with("agent: {\"to\""), "{}", issue.title);
        assert!(issue.body.starts_with("A task for `agent`"), "{}", issue.body);
    }
    let leased = worker(&fake, "bob").await.takes().await;
    assert_eq!((leased.id, leased.payload), (mail.id, mail.payload));
}

/// A task that is sent again is added once, whatever was lost the first time.
#[tokio::test]
async fn a_task_enqueued_again_after_a_lost_response_exists_once() {
    for step in 0..8 {
        for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late] {
            let (fake, clock) = fake().await;
            let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
            let what = format!("step {step}, {fate:?}");
            fake.crash("ada", step, fate);
            drop(ada.store.tasks().unwrap().enqueue(&[new(1).with_key("k")]).await);
            fake.heal();
            clock.advance(std::time::Duration::from_secs(66));
            let again = bob.store.tasks().unwrap().enqueue(&[new(1).with_key("k")]).await.unwrap();
            assert_eq!(again, [Enqueued::Added(new(1).id)], "{what}");
            fake.catch_up();
            clock.advance(std::time::Duration::from_secs(66));
            let leased = bob.lease(10).await;
            assert_eq!(leased.len(), 1, "{what}");
            bob.settle(&leased[0], AttemptResult::Done(None)).await;
            assert!(bob.lease(10).await.is_empty(), "{what}");
        }
    }
}

/// The client is alive, and must not cancel a task that other clients may already have seen.
#[tokio::test]
async fn a_task_whose_last_edit_got_no_response_is_not_cancelled() {
    for fate in [Fate::LoseRequest, Fate::LoseAnswer, Fate::Late, Fate::Refuse(502, Vec::new())] {
        // The client sends the edit again, until all of its attempts have failed.
        for failures in [1, 3] {
            let (fake, clock) = fake().await;
            let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
            let what = format!("{fate:?}, {failures} times");
            for _ in 0..failures {
                fake.plan("PATCH /1", fate.clone());
            }
            let first = ada.store.tasks().unwrap().enqueue(&[new(1).with_key("k")]).await;
            assert_eq!(first.is_ok(), failures == 1, "{what}: {first:?}");
            if fate != Fate::LoseAnswer {
                // A candidate that did not become a task expires.
                clock.advance(Duration::from_secs(66));
            }
            let again = ada.store.tasks().unwrap().enqueue(&[new(1).with_key("k")]).await.unwrap();
            assert_eq!(again, [Enqueued::Added(new(1).id)], "{what}");
            let other = bob.store.tasks().unwrap().enqueue(&[new(2).with_key("k")]).await.unwrap();
            assert_eq!(other[0].id(), new(1).id, "{what}");
            fake.catch_up();
            let leased = bob.lease(10).await;
            assert_eq!(leased.len(), 1, "{what}");
            assert_eq!(leased[0].id, new(1).id, "{what}");
        }
    }
}

/// Other clients regard a candidate as dead from its end on, and add a task with its key.
#[tokio::test]
async fn a_candidate_that_has_expired_does_not_become_a_task() {
    // The candidate has no time at all, or less than the next write waits for its turn.
    let waits = (Duration::from_millis(500), Duration::from_secs(2));
    for (candidate_ttl, gap) in [(Duration::ZERO, Duration::ZERO), waits] {
        let (fake, clock) = fake().await;
        let mut options = options(&fake, "ada");
        (options.candidate_ttl, options.gap) = (candidate_ttl, gap);
        let ada = leasehold::store::github::connect(options).await.unwrap();
        let error = ada.tasks().unwrap().enqueue(&[new(1).with_key("k")]).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        clock.advance(Duration::from_secs(66));
        let bob = worker(&fake, "bob").await;
        let added = bob.store.tasks().unwrap().enqueue(&[new(2).with_key("k")]).await.unwrap();
        assert_eq!(added, [Enqueued::Added(new(2).id)]);
        let leased: Vec<_> = bob.lease(10).await.into_iter().map(|task| task.id).collect();
        assert_eq!(leased, [new(2).id]);
    }
}

/// The edit that takes the key from the earlier task waits for its turn until the candidate has expired.
#[tokio::test]
async fn a_candidate_that_has_expired_takes_no_key_over() {
    let (fake, _) = fake().await;
    let bob = worker(&fake, "bob").await;
    let (tasks, first) = (bob.store.tasks().unwrap(), new(1).with_key("k"));
    tasks.enqueue(std::slice::from_ref(&first)).await.unwrap();
    let task = bob.takes().await;
    bob.settle(&task, AttemptResult::Done(None)).await;
    let mut options = options(&fake, "ada");
    (options.candidate_ttl, options.gap) = (Duration::from_millis(500), Duration::from_secs(2));
    let ada = leasehold::store::github::connect(options).await.unwrap();
    let second = NewTask { reuse: Reuse::Finished, ..new(2).with_key("k") };
    let error = ada.tasks().unwrap().enqueue(&[second]).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let owner = tasks.get_by_key(&first.queue, first.key.as_ref().unwrap()).await.unwrap();
    assert_eq!(owner.expect("the earlier task").id, first.id);
}

/// To people, the candidates would look like tasks.
#[tokio::test]
async fn a_batch_that_fails_leaves_no_open_issue() {
    let (fake, clock) = fake().await;
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let (tasks, batch) = (ada.store.tasks().unwrap(), [new(1), new(2)]);
    let open = || fake.repo().issues.values().filter(|issue| !issue.is_closed).count();
    let fail = async || {
        fake.plan("POST /issues", Fate::Pass);
        fake.plan("POST /issues", Fate::Refuse(502, Vec::new()));
        assert!(tasks.enqueue(&batch).await.unwrap_err().is_retryable());
    };
    fail().await;
    assert_eq!(open(), 0);
    // The withdrawal fails as well.
    fake.plan("PATCH /2", Fate::Refuse(502, Vec::new()));
    fail().await;
    tasks.recover(10).await.unwrap();
    assert_eq!(open(), 1, "its client may still be at work");
    clock.advance(Duration::from_mins(10));
    tasks.recover(10).await.unwrap();
    assert_eq!(open(), 0);
    tasks.enqueue(&batch).await.unwrap();
    assert_eq!(bob.lease(10).await.len(), 2);
}

/// More issues than GitHub returns by page numbers.
#[tokio::test]
async fn tasks_are_added_and_recovered_beside_thousands_of_finished_ones() {
    const ISSUES: u64 = 3000;
    let (fake, clock) = fake().await;
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let tasks = ada.store.tasks().unwrap();
    tasks.enqueue(&[new(1)]).await.unwrap();
    let first = fake.repo().issues[&1].clone();
    for number in 2..=ISSUES {
        let mut finished = first.clone();
        finished.body = first.body.replace("-0000-000000000001", &format!("-0000-{number:012x}"));
        fake.repo().issues.insert(number, finished);
        clock.advance(Duration::from_secs(1));
        fake.close(number, "completed");
    }
    assert_eq!(tasks.recover(10).await.unwrap().returned, 0);
    // The oldest and the newest are found: neither is added again.
    let again = [new(2), new(u128::from(ISSUES)), new(u128::from(ISSUES) + 1)];
    let answers = tasks.enqueue(&again).await.unwrap();
    assert_eq!(answers, again.each_ref().map(|new| Enqueued::Added(new.id)));
    assert_eq!(fake.repo().issues.len() as u64, ISSUES + 1);
    assert_eq!(bob.lease(10).await.len(), 2);
}

#[tokio::test]
async fn of_many_concurrent_enqueues_with_one_key_one_succeeds() {
    let (fake, _) = fake().await;
    let mut adding = tokio::task::JoinSet::new();
    for number in 1..=4 {
        let worker = worker(&fake, ["ada", "bob", "eve", "ada"][number - 1]).await;
        adding.spawn(async move {
            let mut new = new(number as u128).with_key("k");
            new.payload = Payload::default();
            worker.store.tasks().unwrap().enqueue(&[new]).await.unwrap()[0]
        });
    }
    let answers = adding.join_all().await;
    let added: Vec<_> = answers.iter().filter(|answer| matches!(answer, Enqueued::Added(_))).collect();
    assert_eq!(added.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer.id() == added[0].id()), "{answers:?}");
    let ada = worker(&fake, "ada").await;
    assert_eq!(ada.lease(10).await.len(), 1);
}

#[tokio::test]
async fn unsupported_and_oversized_tasks_are_refused_with_a_hint() {
    let (fake, _) = fake().await;
    let ada = worker(&fake, "ada").await;
    let tasks = ada.store.tasks().unwrap();
    let large = NewTask { payload: Payload::of(&"x".repeat(70_000)).unwrap(), ..new(1) };
    for (bad, code, words) in [
        (new(1).with_lock("l"), "NOT_SUPPORTED", "a task with a lock"),
        (new(1).in_queue("a,b"), "INVALID", "cannot be a label of GitHub"),
        (large, "INVALID", "does not fit into an issue"),
    ] {
        let error = tasks.enqueue(&[new(2), bad]).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(
        tasks
            .pause(&queue("agent"), None)
            .await
            .unwrap_err()
            .to_string()
            .contains("is not supported on GitHub issues")
    );
    assert!(fake.repo().issues.is_empty(), "all or none");
}

/// Otherwise any user could give a worker a payload of their choice.
#[tokio::test]
async fn hidden_json_of_a_stranger_is_only_text() {
    let (fake, _) = fake().await;
    let ada = worker(&fake, "ada").await;
    ada.store.tasks().unwrap().enqueue(&[new(1)]).await.unwrap();
    let text = fake.repo().issues[&1].body.clone();
    fake.person("mallory", Person { is_bot: false, association: "NONE", can_push: false });
    let issue = fake.labelled_issue("Please", &["agent"]);
    {
        let mut repo = fake.repo();
        let issue = repo.issues.get_mut(&issue).unwrap();
        (issue.author, issue.body) =
            ("mallory".to_owned(), text.replace("-0000-000000000001", "-0000-000000000002"));
    }
    let leased = ada.lease(10).await;
    let theirs = leased.iter().find(|task| task.id.number() == Some(issue)).expect("the issue is a task");
    let payload: serde_json::Value = theirs.payload.read().unwrap();
    assert_eq!((payload["author"].as_str(), theirs.state), (Some("mallory"), TaskState::Running));
}
