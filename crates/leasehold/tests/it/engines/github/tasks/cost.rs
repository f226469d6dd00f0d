//! Tests of the number of requests per task in docs/engines/github.md.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::TaskFeedItem;
use leasehold::model::{AttemptResult, Cancel, Holder, TaskHistoryKind, TaskOp};
use leasehold::store::github;

use super::support::{TTL, Worker, id, worker};
use crate::engines::github::fake::Person;
use crate::engines::github::support::{GRACE, fake, options};

#[tokio::test]
async fn a_task_costs_the_documented_number_of_requests() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    let ada = worker(&fake, "ada").await;
    clock.advance(Duration::from_secs(5));
    fake.requests();
    let task = ada.takes().await;
    assert_eq!(fake.requests().len(), 7, "lease");
    ada.heartbeat(&task, None).await;
    assert_eq!(fake.requests().len(), 3, "heartbeat");
    ada.settle(&task, AttemptResult::Done(None)).await;
    assert_eq!(fake.requests().len(), 5, "done");
}

#[tokio::test]
async fn administrative_calls_cost_the_documented_number_of_requests() {
    let (fake, clock) = fake().await;
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let task = ada.takes().await;
    fake.requests();
    ada.settle(&task, AttemptResult::Return).await;
    assert_eq!(fake.requests().len(), 4, "return");
    ada.takes().await;
    clock.advance(TTL.as_duration() + Duration::from_millis(GRACE));
    bob.lease(0).await;
    fake.requests();
    let tasks = bob.store.tasks().unwrap();
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1);
    assert_eq!(fake.requests().len(), 12, "recovering");
    let cancel = Cancel { by: Holder::new("bob").unwrap(), reason: None };
    tasks.change(id(issue), &TaskOp::Cancel(cancel)).await.unwrap().unwrap();
    assert_eq!(fake.requests().len(), 8, "stopping");
    tasks.enqueue(&[leasehold::testing::task_fixture::task(1).in_queue("agent")]).await.unwrap();
    assert_eq!(fake.requests().len(), 4, "adding");
}

#[tokio::test]
async fn an_idle_worker_sends_one_conditional_request_per_poll() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    fake.labelled_issue("Fix it too", &["agent", "attempts:1"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let tasks = ada.lease(2).await;
    ada.settle(&tasks[1], AttemptResult::Fail(leasehold::testing::task_fixture::why())).await;
    clock.advance(Duration::from_secs(5));
    // One task is running, one has failed: the first call reads the comments of the running one.
    assert!(bob.lease(1).await.is_empty());
    fake.requests();
    fake.unchanged();
    for _ in 0..3 {
        assert!(bob.lease(1).await.is_empty());
    }
    assert_eq!(fake.requests().len(), 3, "one list each");
    assert_eq!(fake.unchanged(), 3, "none of them counts against the rate limit");
}

/// The worker may not label the issue of a failed task, and leaves that to others.
#[tokio::test]
async fn a_refused_update_is_not_repeated_at_every_poll() {
    let (fake, clock) = fake().await;
    fake.person("zoe", Person { is_bot: false, association: "MEMBER", can_push: false });
    let issue = fake.labelled_issue("Fix it", &["agent"]);
    let mut options = options(&fake, "zoe");
    // The update is repeated after 600 times as long.
    options.gap = Duration::from_millis(200);
    let zoe = Worker { store: github::connect(options).await.unwrap(), ..worker(&fake, "zoe").await };
    let task = zoe.takes().await;
    zoe.settle(&task, AttemptResult::Fail(leasehold::testing::task_fixture::why())).await;
    clock.advance(Duration::from_secs(9));
    let reads_events = |requests: &[String]| requests.iter().any(|request| request.ends_with("/events"));
    let writes = |requests: &[String]| requests.iter().any(|request| !request.contains(" GET "));
    fake.requests();
    assert!(zoe.lease(1).await.is_empty());
    let first = fake.requests();
    assert!(reads_events(&first) && writes(&first), "{first:?}");
    assert!(zoe.lease(1).await.is_empty());
    zoe.store.tasks().unwrap().recover(10).await.unwrap();
    let later = fake.requests();
    assert!(!reads_events(&later) && !writes(&later), "{later:?}");
    // A person who changes the issue may want the task again.
    fake.write(issue, "eve", "Why?");
    assert!(zoe.lease(1).await.is_empty());
    assert!(reads_events(&fake.requests()));
}

#[tokio::test]
async fn a_feed_reports_each_event_once_with_few_requests() {
    let (fake, clock) = fake().await;
    fake.labelled_issue("Fix it", &["agent"]);
    let (ada, bob) = (worker(&fake, "ada").await, worker(&fake, "bob").await);
    let client = Leasehold::with_store(bob.store).unwrap();
    let mut feed = client.tasks().unwrap().follow("agent").await.unwrap();
    assert_eq!(feed.interval(), Duration::from_secs(30));
    clock.advance(Duration::from_secs(30));
    let added = fake.labelled_issue("Fix it too", &["agent"]);
    let task = ada.takes().await;
    ada.settle(&task, AttemptResult::Done(None)).await;
    clock.advance(Duration::from_secs(30));
    let mut seen = Vec::new();
    for item in feed.poll().await.unwrap() {
        let TaskFeedItem::Event(event) = item else { panic!("{item:?}") };
        seen.push((event.task, event.kind));
    }
    seen.sort_by_key(|(task, _)| *task);
    let (first, second) = (task.id, id(added));
    assert_eq!(
        seen,
        [
            (first, TaskHistoryKind::Started),
            (first, TaskHistoryKind::Succeeded),
            (second, TaskHistoryKind::Added)
        ]
    );
    fake.requests();
    assert_eq!(feed.poll().await.unwrap(), []);
    assert!(fake.requests().len() <= 3, "an idle poll");
}
