//! Tests of what people do on GitHub at each stage of a task.

use std::time::Duration;

use leasehold::model::{
    AttemptResult, Cancel, HeartbeatResult, Holder, Settled, TaskAnswer, TaskOp, TaskState,
};
use leasehold::testing::task_fixture::why;

use super::support::{TTL, id, worker};
use crate::engines::github::support::{GRACE, fake};

#[tokio::test]
async fn urgent_issues_go_first_and_then_the_oldest() {
    let (fake, clock) = fake().await;
    let add = |labels: &[&str]| {
        clock.advance(Duration::from_hours(24));
        fake.labelled_issue("Fix it", &[&["agent"], labels].concat())
    };
    let low = add(&["priority:low"]);
    let (old, new) = (add(&[]), add(&["P2"]));
    let (high, critical, high_too) = (add(&["Priority:High"]), add(&["P0"]), add(&["P1"]));
    let pull = add(&["P0"]);
    fake.repo().issues.get_mut(&pull).unwrap().is_pull_request = true;
    let ada = worker(&fake, "ada").await;
    let order: Vec<_> = ada.lease(20).await.iter().filter_map(|task| task.id.number()).collect();
    assert_eq!(order, [critical, high, high_too, old, new, low]);
}

#[tokio::test]
async fn an_assigned_issue_is_not_leased() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    fake.repo().issues.get_mut(&issue).unwrap().assignees = vec!["eve".to_owned()];
    let ada = worker(&fake, "ada").await;
    assert!(ada.lease(1).await.is_empty());
    assert!(fake.repo().issues[&issue].comments.is_empty(), "no comment was posted");
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    ada.takes().await;
}

#[tokio::test]
async fn closing_a_pending_issue_cancels_its_task_and_reopening_retries_it() {
    let (fake, clock) = fake().await;
    for (reason, state) in [("completed", TaskState::Succeeded), ("not_planned", TaskState::Aborted)] {
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let ada = worker(&fake, "ada").await;
        fake.close(issue, reason);
        assert!(ada.lease(1).await.is_empty());
        assert_eq!(ada.get(issue).await.state, state);
        clock.advance(Duration::from_secs(9));
        fake.reopen(issue);
        let task = ada.takes().await;
        assert_eq!((task.id, task.attempt), (id(issue), 1));
        ada.settle(&task, AttemptResult::Done(None)).await;
    }
}

#[tokio::test]
async fn closing_the_issue_of_a_running_task_requests_its_cancellation() {
    let (fake, clock) = fake().await;
    for verdict in [AttemptResult::Abort(None), AttemptResult::Done(None)] {
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let task = ada.takes().await;
        fake.close(issue, "not_planned");
        assert_eq!(ada.get(issue).await.state, TaskState::Running, "it runs until its worker stops");
        let HeartbeatResult::Extended(Some(asked)) = ada.heartbeat(&task, None).await else {
            panic!("no cancellation request")
        };
        assert_eq!(asked.by.as_str(), "the person who closed the issue");
        let state =
            if verdict == AttemptResult::Done(None) { TaskState::Succeeded } else { TaskState::Aborted };
        assert_eq!(ada.settle(&task, verdict).await, Settled::Now(state));
        clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
        assert!(bob.lease(1).await.is_empty());
        let repo = fake.repo();
        assert_eq!(
            repo.issues[&issue].state_reason.as_deref(),
            Some("not_planned"),
            "as the person closed it"
        );
        assert!(repo.issues[&issue].is_closed && repo.issues[&issue].assignees.is_empty());
    }
}

#[tokio::test]
async fn a_finished_task_runs_again_when_its_issue_is_reopened() {
    let (fake, clock) = fake().await;
    for verdict in [AttemptResult::Done(None), AttemptResult::Abort(None)] {
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
        let mut last = None;
        // Twice: the second time, the issue has already been reopened once.
        for _ in 0..2 {
            let task = ada.takes().await;
            assert_eq!(task.attempt, 1, "attempts start from one");
            assert!(last.is_none_or(|last| last < task.token));
            last = Some(task.token);
            ada.settle(&task, verdict.clone()).await;
            clock.advance(Duration::from_secs(9));
            assert!(bob.lease(1).await.is_empty());
            fake.reopen(issue);
            clock.advance(Duration::from_secs(9));
        }
        let task = bob.takes().await;
        bob.settle(&task, AttemptResult::Done(None)).await;
    }
}

#[tokio::test]
async fn a_failed_task_stays_open_with_a_label_and_is_retried_without_it() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent", "attempts:1"]);
    let ada = worker(&fake, "ada").await;
    let task = ada.takes().await;
    assert_eq!(ada.settle(&task, AttemptResult::Retry(why(), None)).await, Settled::Now(TaskState::Failed));
    {
        let repo = fake.repo();
        assert!(!repo.issues[&issue].is_closed && repo.issues[&issue].assignees.is_empty());
        assert_eq!(repo.issues[&issue].labels, ["agent", "attempts:1", "leasehold:failed"]);
        let comment = repo.issues[&issue].comments.values().next().unwrap();
        assert!(
            comment.body.starts_with("❌ **Failed** in attempt 1, and given up: `it did not work`."),
            "{}",
            comment.body
        );
    }
    clock.advance(Duration::from_secs(9));
    assert!(ada.lease(1).await.is_empty());
    fake.unlabel(issue, "leasehold:failed");
    let again = ada.takes().await;
    assert_eq!(again.attempt, 1);
    assert_eq!(ada.settle(&again, AttemptResult::Done(None)).await, Settled::Now(TaskState::Succeeded));
}

#[tokio::test]
async fn an_issue_without_its_label_leaves_the_queue_and_its_worker_goes_on() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    fake.unlabel(issue, "agent");
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Extended(None));
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(
        ada.settle(&task, AttemptResult::Done(None)).await,
        Settled::Now(TaskState::Succeeded),
        "late, but no client has ended the lease"
    );
}

#[tokio::test]
async fn cancelling_a_running_task_posts_a_comment() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    let cancel = TaskOp::Cancel(Cancel { by: Holder::new("bob").unwrap(), reason: None });
    for _ in 0..2 {
        let (answer, stored) = bob.store.tasks().unwrap().change(task.id, &cancel).await.unwrap().unwrap();
        assert_eq!((answer, stored.state), (TaskAnswer::Done, TaskState::Running));
    }
    assert_eq!(fake.repo().issues[&issue].comments.len(), 2, "a repeated request posts no comment");
    assert!(
        matches!(ada.heartbeat(&task, None).await, HeartbeatResult::Extended(Some(asked)) if asked.by.as_str() == "bob")
    );
    // Ada dies: a task with a cancellation request does not run again.
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(bob.get(issue).await.state, TaskState::Aborted);
    let repo = fake.repo();
    assert_eq!(repo.issues[&issue].state_reason.as_deref(), Some("not_planned"));
    assert!(repo.issues[&issue].assignees.is_empty());
}

/// Deleting the claim takes the task from its worker.
#[tokio::test]
async fn deleting_the_comment_takes_the_task_from_its_worker() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    fake.repo().issues.get_mut(&issue).unwrap().comments.clear();
    fake.repo().issues.get_mut(&issue).unwrap().assignees.clear();
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
    assert!(bob.takes().await.token >= task.token);
}
