//! What a task costs in requests, as the page says.

use std::time::Duration;

use leasehold::model::{AttemptResult, Cancel, Holder, TaskOp};

use super::support::{TTL, id, worker};
use crate::engines::github::support::{GRACE, fake};

#[tokio::test]
async fn a_task_costs_as_many_requests_as_the_page_says() {
    let Some((fake, clock)) = fake().await else { return };
    fake.labelled_issue("Fix it", &["agent"]);
    let ada = worker(&fake, "ada").await;
    clock.advance(Duration::from_secs(5));
    fake.asked();
    let task = ada.takes().await;
    assert_eq!(fake.asked().len(), 7, "lease");
    ada.beat(&task, None).await;
    assert_eq!(fake.asked().len(), 3, "a sign of life");
    ada.settle(&task, AttemptResult::Done(None)).await;
    assert_eq!(fake.asked().len(), 5, "done");
}

#[tokio::test]
async fn what_people_do_costs_as_many_requests_as_the_page_says() {
    let Some((fake, clock)) = fake().await else { return };
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    fake.asked();
    ada.settle(&task, AttemptResult::Return).await;
    assert_eq!(fake.asked().len(), 4, "given back");
    ada.takes().await;
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    bob.lease(0).await;
    fake.asked();
    let tasks = bob.store.tasks().unwrap();
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1);
    assert_eq!(fake.asked().len(), 12, "recovering");
    let cancel = Cancel { by: Holder::new("bob").unwrap(), reason: None };
    tasks.change(id(issue), &TaskOp::Cancel(cancel)).await.unwrap().unwrap();
    assert_eq!(fake.asked().len(), 8, "stopping");
    tasks.enqueue(&[leasehold::testing::shop::task(1).in_queue("agent")]).await.unwrap();
    assert_eq!(fake.asked().len(), 4, "adding");
}

#[tokio::test]
async fn an_idle_worker_asks_once_and_what_has_not_changed_is_not_sent_again() {
    let Some((fake, clock)) = fake().await else { return };
    fake.labelled_issue("Fix it", &["agent"]);
    fake.labelled_issue("Fix it too", &["agent", "attempts:1"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let tasks = ada.lease(2).await;
    ada.settle(&tasks[1], AttemptResult::Fail(leasehold::testing::shop::why())).await;
    clock.advance(Duration::from_secs(5));
    // One is worked on, one has failed: the first look is at the comments of both.
    assert!(bob.lease(1).await.is_empty());
    fake.asked();
    fake.unchanged();
    for _ in 0..3 {
        assert!(bob.lease(1).await.is_empty());
    }
    assert_eq!(fake.asked().len(), 3, "one list each");
    assert_eq!(fake.unchanged(), 3, "and none of them counts for GitHub");
}
