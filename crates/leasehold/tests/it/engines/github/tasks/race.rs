//! Tests of many clients at once.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold::model::{AttemptResult, Settled, TaskState};

use super::support::{id, worker};
use crate::engines::github::support::fake;

/// Three processes with one login: the assignee does not distinguish them.
#[tokio::test]
async fn three_workers_of_one_login_run_each_of_twenty_tasks_once() {
    let (fake, _) = fake().await;
    let issues: Vec<u64> = (0..20)
        .map(|number| fake.labelled_issue(&format!("Issue {number}"), &["agent", "attempts:1"]))
        .collect();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let worker = worker(&fake, "ada").await;
        workers.spawn(async move {
            let (mut done, mut idle) = (Vec::new(), 0);
            while idle < 20 {
                match worker.try_lease(1).await.unwrap_or_default().pop() {
                    Some(task) => {
                        let settled = worker.settle(&task, AttemptResult::Done(None)).await;
                        assert_eq!((settled, task.attempt), (Settled::Now(TaskState::Succeeded), 1));
                        (done, idle) = ([done, vec![task.id]].concat(), 0);
                    }
                    None => {
                        idle += 1;
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            }
            done
        });
    }
    let done = workers.join_all().await.concat();
    assert_eq!(done.len(), 20, "each task once");
    assert_eq!(done.into_iter().collect::<BTreeSet<_>>(), issues.iter().map(|number| id(*number)).collect());
    let repo = fake.repo();
    assert!(
        issues.iter().all(|number| repo.issues[number].is_closed && repo.issues[number].assignees.is_empty())
    );
}

/// The lock `#1` and the task of issue 1 share one claim.
#[tokio::test]
async fn the_lock_of_an_issue_keeps_workers_away_from_its_task() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) =
        (worker(&fake, "ada").await, crate::engines::github::support::test_client(&fake, "bob", "#1").await);
    let lease = bob.acquire().await;
    assert!(ada.lease(1).await.is_empty());
    bob.release(&lease).await;
    let task = ada.takes().await;
    bob.expect_conflict().await;
    // When ada is dead, the lock can be acquired; the task's attempt still counts.
    clock.advance(Duration::from_secs(60 + 5));
    let lease = bob.acquire().await;
    assert!(ada.lease(1).await.is_empty());
    bob.release(&lease).await;
    let again = ada.takes().await;
    assert_eq!((again.attempt, again.token > task.token), (2, true));
}
