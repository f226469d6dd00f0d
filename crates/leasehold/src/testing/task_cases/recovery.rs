//! Recovery of tasks of dead workers.

use crate::model::{HeartbeatResult, HeldTask, TaskEventKind, TaskState, Ttl, WorkerInfo, WorkerStatus};
use crate::testing::task_fixture::{TaskFixture, cancel, info, task, worker};

/// Maximum delay after the first expired lease.
const FIRST_PAUSE: Ttl = Ttl::from_millis(500);

pub async fn a_task_with_an_expired_lease_becomes_pending(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(7, 1).await.remove(0);
    fixture.f.pass(29_999);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").expired(), 0);
    fixture.f.advance_past(1);
    let recovered = fixture.tasks().recover(100).await.expect("an answer");
    assert_eq!((recovered.returned, recovered.failed), (1, 0));
    let stored = fixture.get(1).await;
    assert!(matches!(stored.state, TaskState::Pending | TaskState::Scheduled), "{stored:?}");
    assert_eq!((stored.attempt, stored.version, stored.expiries), (1, 3, 1));
    assert!(stored.run_at <= leased.lease_expires_at.expect("it was leased").plus(FIRST_PAUSE));
    assert!(!stored.begun);
    assert!(stored.token > leased.token);
    assert_eq!(stored.events.len(), 1);
    assert_eq!(stored.events[0].kind, TaskEventKind::Expired);
    assert_eq!((stored.events[0].worker, stored.events[0].leased_at), (Some(worker(7)), leased.leased_at));
    assert_eq!(fixture.beat(&leased).await, HeartbeatResult::Lost);
    fixture.f.pass(500);
    assert_eq!(fixture.lease(8, 1).await[0].attempt, 2);
}

pub async fn two_concurrent_recoveries_recover_each_task_once(fixture: TaskFixture) {
    fixture.add(&(1..=20).map(task).collect::<Vec<_>>()).await;
    fixture.drain().await;
    fixture.f.advance_past(30_000);
    let (one, two) = (fixture.f.one.clone(), fixture.f.two.clone());
    let first = tokio::spawn(async move { one.tasks().expect("tasks").recover(100).await });
    let second = tokio::spawn(async move { two.tasks().expect("tasks").recover(100).await });
    let (first, second) = (
        first.await.expect("an answer").expect("no panic"),
        second.await.expect("an answer").expect("no panic"),
    );
    assert_eq!(first.returned + second.returned, 20);
    assert_eq!(fixture.get(1).await.version, 3);
    fixture.f.pass(500);
    assert_eq!(fixture.drain().await.len(), 20);
}

pub async fn a_recovery_has_a_limit(fixture: TaskFixture) {
    fixture.add(&(1..=5).map(task).collect::<Vec<_>>()).await;
    fixture.drain().await;
    fixture.f.advance_past(30_000);
    assert_eq!(fixture.tasks().recover(3).await.expect("an answer").returned, 3);
    assert_eq!(fixture.tasks().recover(3).await.expect("an answer").returned, 2);
}

pub async fn a_task_that_kills_its_workers_fails(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(2)]).await;
    for _ in 0..2 {
        assert_eq!(fixture.drain().await, [1]);
        fixture.f.advance_past(30_000);
        fixture.tasks().recover(100).await.expect("an answer");
        fixture.f.pass(500);
    }
    let stored = fixture.get(1).await;
    assert_eq!((stored.state, stored.events.len()), (TaskState::Failed, 2));
    assert!(stored.error.expect("a good value in a test").as_str().contains("lease expired"));
    assert_eq!(fixture.drain().await, [0; 0]);
}

pub async fn a_task_with_a_cancel_request_is_not_run_again(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    fixture.drain().await;
    fixture.change(1, cancel()).await;
    fixture.f.advance_past(30_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").aborted, 1);
    assert_eq!(fixture.state(1).await, TaskState::Aborted);
}

pub async fn workers_are_listed_by_their_heartbeats(fixture: TaskFixture) {
    let beat = async |number| {
        fixture.tasks().heartbeat(&info(number), &[], Ttl::from_secs(30)).await.expect("an answer");
    };
    let started = fixture.f.clock.now();
    beat(1).await;
    fixture.f.pass(10_000);
    beat(2).await;
    beat(1).await;
    let workers = fixture.tasks().workers().await.expect("an answer");
    assert_eq!(workers.len(), 2);
    assert_eq!(workers[0].info, info(1));
    assert_eq!((workers[0].started_at, workers[0].seen_at), (started, fixture.f.clock.now()));
    fixture.f.pass(31_000);
    assert!(workers[0].is_dead(fixture.f.clock.now()));
    fixture.tasks().deregister(worker(1)).await.expect("an answer");
    assert_eq!(fixture.tasks().workers().await.expect("an answer").len(), 1);
    fixture.f.pass(3_600_000);
    fixture.tasks().recover(100).await.expect("an answer");
    assert_eq!(fixture.tasks().workers().await.expect("an answer").len(), 0);
}

pub async fn a_worker_without_a_heartbeat_is_not_listed(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    let held = [HeldTask::new(leased.id, leased.token)];
    let beat = async || {
        let beats = fixture.tasks().heartbeat(&WorkerInfo::only(worker(1)), &held, Ttl::from_secs(30)).await;
        assert_eq!(beats.expect("heard"), [HeartbeatResult::Extended(None)]);
        fixture.tasks().workers().await.expect("listed")
    };
    assert_eq!(beat().await, []);
    fixture.tasks().heartbeat(&info(1), &[], Ttl::from_secs(30)).await.expect("heard");
    let since = fixture.f.clock.now();
    fixture.f.pass(1_000);
    let heard_of = WorkerStatus { info: info(1), started_at: since, seen_at: fixture.f.clock.now() };
    assert_eq!(beat().await, [heard_of], "but one that is listed was heard of");
}
