//! Recovery of tasks of dead workers.

use crate::model::{HeartbeatResult, HeldTask, TaskEventKind, TaskState, Ttl, WorkerInfo, WorkerStatus};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, cancel, info, task, worker};

/// Maximum delay after the first expired lease.
const FIRST_PAUSE: Ttl = Ttl::from_millis(500);

pub async fn a_lease_that_ran_out_goes_back(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(7, 1).await.remove(0);
    shop.f.pass(29_999);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").expired(), 0);
    shop.f.outlast(1);
    let recovered = shop.tasks().recover(100).await.expect("an answer");
    assert_eq!((recovered.returned, recovered.failed), (1, 0));
    let stored = shop.get(1).await;
    assert!(matches!(stored.state, TaskState::Pending | TaskState::Scheduled), "{stored:?}");
    assert_eq!((stored.attempt, stored.version, stored.expiries), (1, 3, 1));
    assert!(stored.run_at <= leased.lease_expires_at.expect("it was leased").plus(FIRST_PAUSE));
    assert!(!stored.begun);
    assert!(stored.token > leased.token);
    assert_eq!(stored.events.len(), 1);
    assert_eq!(stored.events[0].kind, TaskEventKind::Expired);
    assert_eq!((stored.events[0].worker, stored.events[0].leased_at), (Some(worker(7)), leased.leased_at));
    assert_eq!(shop.beat(&leased).await, HeartbeatResult::Lost);
    shop.f.pass(500);
    assert_eq!(shop.lease(8, 1).await[0].attempt, 2);
}

pub async fn two_who_recover_do_it_once(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&(1..=20).map(task).collect::<Vec<_>>()).await;
    shop.drain().await;
    shop.f.outlast(30_000);
    let (one, two) = (shop.f.one.clone(), shop.f.two.clone());
    let first = tokio::spawn(async move { one.tasks().expect("tasks").recover(100).await });
    let second = tokio::spawn(async move { two.tasks().expect("tasks").recover(100).await });
    let (first, second) = (
        first.await.expect("an answer").expect("no panic"),
        second.await.expect("an answer").expect("no panic"),
    );
    assert_eq!(first.returned + second.returned, 20);
    assert_eq!(shop.get(1).await.version, 3);
    shop.f.pass(500);
    assert_eq!(shop.drain().await.len(), 20);
}

pub async fn a_recovery_has_a_limit(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&(1..=5).map(task).collect::<Vec<_>>()).await;
    shop.drain().await;
    shop.f.outlast(30_000);
    assert_eq!(shop.tasks().recover(3).await.expect("an answer").returned, 3);
    assert_eq!(shop.tasks().recover(3).await.expect("an answer").returned, 2);
}

pub async fn a_task_that_kills_its_workers_is_given_up(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).attempts(2)]).await;
    for _ in 0..2 {
        assert_eq!(shop.drain().await, [1]);
        shop.f.outlast(30_000);
        shop.tasks().recover(100).await.expect("an answer");
        shop.f.pass(500);
    }
    let stored = shop.get(1).await;
    assert_eq!((stored.state, stored.events.len()), (TaskState::Failed, 2));
    assert!(stored.error.expect("a good value in a test").as_str().contains("lease ran out"));
    assert_eq!(shop.drain().await, [0; 0]);
}

pub async fn what_was_to_be_stopped_is_not_run_again(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    shop.drain().await;
    shop.change(1, cancel()).await;
    shop.f.outlast(30_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").aborted, 1);
    assert_eq!(shop.state(1).await, TaskState::Aborted);
}

pub async fn workers_are_known_by_their_signs_of_life(f: Fixture) {
    let shop = Shop::from(f);
    let beat = async |number| {
        shop.tasks().heartbeat(&info(number), &[], Ttl::from_secs(30)).await.expect("an answer");
    };
    let started = shop.f.clock.now();
    beat(1).await;
    shop.f.pass(10_000);
    beat(2).await;
    beat(1).await;
    let workers = shop.tasks().workers().await.expect("an answer");
    assert_eq!(workers.len(), 2);
    assert_eq!(workers[0].info, info(1));
    assert_eq!((workers[0].started_at, workers[0].seen_at), (started, shop.f.clock.now()));
    shop.f.pass(31_000);
    assert!(workers[0].is_gone(shop.f.clock.now()));
    shop.tasks().leave(worker(1)).await.expect("an answer");
    assert_eq!(shop.tasks().workers().await.expect("an answer").len(), 1);
    shop.f.pass(3_600_000);
    shop.tasks().recover(100).await.expect("an answer");
    assert_eq!(shop.tasks().workers().await.expect("an answer").len(), 0);
}

pub async fn a_worker_that_says_nothing_of_itself_is_not_listed(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    let held = [HeldTask::new(leased.id, leased.token)];
    let beat = async || {
        let beats = shop.tasks().heartbeat(&WorkerInfo::only(worker(1)), &held, Ttl::from_secs(30)).await;
        assert_eq!(beats.expect("heard"), [HeartbeatResult::Extended(None)]);
        shop.tasks().workers().await.expect("listed")
    };
    assert_eq!(beat().await, []);
    shop.tasks().heartbeat(&info(1), &[], Ttl::from_secs(30)).await.expect("heard");
    let since = shop.f.clock.now();
    shop.f.pass(1_000);
    let heard_of = WorkerStatus { info: info(1), started_at: since, seen_at: shop.f.clock.now() };
    assert_eq!(beat().await, [heard_of], "but one that is listed was heard of");
}
