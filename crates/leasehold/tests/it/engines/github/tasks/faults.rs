//! Tests with faults.

use std::time::Duration;

use leasehold::model::{AttemptResult, HeartbeatResult, Settled, TaskState};

use super::support::{TTL, id, worker};
use crate::engines::github::fake::{Fate, Person};
use crate::engines::github::support::{GRACE, fake};

#[tokio::test]
async fn an_unreadable_claim_keeps_others_out_and_its_worker_loses_the_task() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    for comment in fake.repo().issues.get_mut(&issue).unwrap().comments.values_mut() {
        comment.body = comment.body.replace("\"state\":\"held\"", "\"state\":\"helt\"");
    }
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
    // Its ttl cannot be read, so the default ttl of the store applies.
    clock.advance(Duration::from_secs(900 + 5));
    let again = bob.takes().await;
    assert_eq!(again.attempt, 1, "its first attempt is not known");
    assert!(again.token >= task.token);
    assert_eq!(bob.settle(&again, AttemptResult::Done(None)).await, Settled::Now(TaskState::Succeeded));
}

/// A login without push access cannot be assigned, but can comment. Closing or labelling issues of
/// others needs more.
#[tokio::test]
async fn without_push_access_tasks_run_and_others_update_the_issue() {
    let (fake, clock) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (zoe, bob) = (worker(&fake, "zoe").await, worker(&fake, "bob").await);
    let task = zoe.takes().await;
    assert!(fake.repo().issues[&issue].assignees.is_empty());
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(
        zoe.settle(&task, AttemptResult::Fail(leasehold::testing::task_fixture::why())).await,
        Settled::Now(TaskState::Failed)
    );
    assert_eq!(fake.repo().issues[&issue].labels, ["agent"], "it could not be labelled");
    clock.advance(Duration::from_secs(9));
    assert!(bob.lease(1).await.is_empty());
    assert_eq!(fake.repo().issues[&issue].labels, ["agent", "leasehold:failed"]);
    let new = leasehold::testing::task_fixture::task(1).in_queue("agent");
    let error = zoe.store.tasks().unwrap().enqueue(&[new]).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED");
    assert!(fake.repo().issues.values().all(|issue| issue.title == "Fix it" || issue.is_closed));
}

#[tokio::test]
async fn a_rate_limit_at_any_step_loses_no_task() {
    let refused = || Fate::Refuse(403, vec![("retry-after", "1".to_owned())]);
    for what in ["POST /comments", "PATCH /1000001", "POST /assignees"] {
        let (fake, _) = fake().await;
        fake.labelled_issue("Fix it", &["agent"]);
        let ada = worker(&fake, "ada").await;
        fake.plan(what, refused());
        let mut tries = 0;
        let task = loop {
            match ada.try_lease(1).await {
                Ok(mut tasks) if !tasks.is_empty() => break tasks.remove(0),
                Ok(_) => {}
                Err(error) => assert!(error.is_retryable(), "{what}: {error}"),
            }
            tries += 1;
            assert!(tries < 600, "{what}: it was never leased");
            tokio::time::sleep(Duration::from_millis(20)).await;
            // A candidate that could not be withdrawn expires by itself.
            if tries % 100 == 0 {
                fake.clock().advance(TTL.as_duration() + Duration::from_millis(GRACE));
            }
        };
        fake.plan("PATCH /1", refused());
        let mut settled = ada.try_settle(&task, AttemptResult::Done(None)).await;
        while let Err(error) = &settled {
            assert!(error.is_retryable(), "{what}: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            settled = ada.try_settle(&task, AttemptResult::Done(None)).await;
        }
        assert_eq!(settled.unwrap(), Settled::Now(TaskState::Succeeded), "{what}");
    }
}

#[tokio::test]
async fn a_deleted_issue_has_no_task() {
    let (fake, _) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let other = fake.labelled_issue("Fix it too", &["agent"]);
    let ada = worker(&fake, "ada").await;
    let task = ada.takes().await;
    fake.repo().issues.get_mut(&issue).unwrap().is_deleted = true;
    assert_eq!(ada.heartbeat(&task, None).await, HeartbeatResult::Lost);
    assert_eq!(ada.settle(&task, AttemptResult::Done(None)).await, Settled::Lost);
    assert_eq!(ada.takes().await.id.number(), Some(other));
}

/// Every call of a worker comes to these issues first.
#[tokio::test]
async fn a_hundred_issues_that_cannot_be_leased_keep_no_later_task_from_its_retry() {
    for failed in [true, false] {
        let (fake, clock) = fake().await;
        for _ in 0..100 {
            if failed {
                fake.labelled_issue("Given up", &["agent", "leasehold:failed"]);
            } else {
                let assigned = fake.labelled_issue("Taken", &["agent"]);
                fake.write(assigned, "eve", "I do it.");
                fake.assign(assigned, "eve", true);
            }
        }
        clock.advance(Duration::from_secs(5));
        let issue = fake.labelled_issue("Fix it", &["agent"]);
        clock.advance(Duration::from_secs(5));
        let ada = worker(&fake, "ada").await;
        let task = ada.takes().await;
        assert_eq!(task.id, id(issue));
        let why = leasehold::testing::task_fixture::why();
        let settled = ada.settle(&task, AttemptResult::Retry(why, None)).await;
        assert_eq!(settled, Settled::Now(TaskState::Scheduled));
        clock.advance(Duration::from_hours(1));
        let again = ada.takes().await;
        assert_eq!((again.id, again.attempt), (id(issue), 2), "failed: {failed}");
    }
}
