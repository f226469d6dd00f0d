//! Tasks with the same lock, which run one at a time.

use crate::model::{AttemptResult, Change, Priority, TaskState, Ttl};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, cancel, numbers, task, update, why};

pub async fn of_tasks_with_one_lock_one_runs(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3), task(4).with_lock("m")]).await;
    assert_eq!(shop.state(2).await, TaskState::Blocked);
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1, 3, 4]);
    shop.done(&leased[0]).await;
    assert_eq!(shop.state(2).await, TaskState::Pending);
    assert_eq!(shop.drain().await, [2]);
}

pub async fn a_pending_task_of_one_queue_blocks_none_of_another(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).in_queue("other").with_lock("l")]).await;
    shop.add(&[task(3).in_queue("other").with_lock("l")]).await;
    assert_eq!(shop.state(2).await, TaskState::Pending, "nobody serves the queue of the first");
    assert_eq!(shop.state(3).await, TaskState::Blocked);
    let leased = shop.lease_from(1, 10, &["other"]).await.tasks;
    assert_eq!(numbers(&leased), [2]);
    let both = shop.lease_from(1, 10, &["q", "other"]).await.tasks;
    assert_eq!(numbers(&both), [1], "between queues the lock itself decides");
    shop.done(&leased[0]).await;
    assert_eq!(numbers(&shop.lease_from(1, 10, &["other"]).await.tasks), [3]);
}

pub async fn blocked_tasks_go_on_in_order(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let first = shop.lease(1, 10).await.remove(0);
    shop.f.pass(1);
    shop.add(&[task(3).with_lock("l"), task(4).with_lock("l").with_priority(1)]).await;
    shop.done(&first).await;
    for expected in [4, 2, 3] {
        let leased = shop.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected]);
        shop.done(&leased[0]).await;
    }
}

pub async fn blocked_tasks_keep_their_place(f: Fixture) {
    let shop = Shop::from(f);
    for number in 1..=5 {
        shop.add(&[task(number).with_lock("l")]).await;
        shop.f.pass(1);
    }
    for number in 6..=20 {
        shop.add(&[task(number)]).await;
        shop.f.pass(1);
    }
    for expected in 1..=20 {
        let leased = shop.lease(1, 1).await;
        assert_eq!(
            numbers(&leased),
            [expected],
            "a task that waited for its lock goes before those that came later"
        );
        shop.f.pass(10);
        shop.done(&leased[0]).await;
    }
}

pub async fn a_better_task_takes_the_place_of_a_head_that_does_not_run(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    shop.f.pass(1);
    shop.add(&[task(3).with_lock("l").with_priority(100)]).await;
    assert_eq!(shop.state(3).await, TaskState::Pending);
    assert_eq!((shop.state(1).await, shop.state(2).await), (TaskState::Blocked, TaskState::Blocked));
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [3]);
    shop.add(&[task(4).with_lock("l").with_priority(200)]).await;
    assert_eq!(shop.state(3).await, TaskState::Running, "what runs stays the head");
    assert_eq!(shop.state(4).await, TaskState::Blocked);
    shop.done(&leased[0]).await;
    for expected in [4, 1, 2] {
        let leased = shop.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected]);
        shop.done(&leased[0]).await;
    }
}

pub async fn what_is_due_takes_the_place_of_a_head_that_it_comes_before(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l").with_priority(5).after(10)]).await;
    shop.f.pass(10_000);
    assert_eq!(numbers(&shop.lease(1, 10).await), [2]);
    assert_eq!(shop.state(1).await, TaskState::Blocked);
}

pub async fn a_changed_priority_changes_the_head(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3).with_lock("l")]).await;
    let priority = |weight, version| {
        update(Change { expected: version, priority: Priority::new(weight).ok(), ..Change::default() })
    };
    let (_, raised) = shop.change(3, priority(7, 1)).await;
    assert_eq!((raised.state, shop.state(1).await), (TaskState::Pending, TaskState::Blocked));
    let (_, lowered) = shop.change(3, priority(-7, 2)).await;
    assert_eq!((lowered.state, shop.state(1).await), (TaskState::Blocked, TaskState::Pending));
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    let (_, raised) = shop.change(2, priority(7, 1)).await;
    assert_eq!((raised.state, shop.state(1).await), (TaskState::Blocked, TaskState::Running));
    assert_eq!(shop.count(TaskState::Blocked).await, 2);
}

pub async fn a_better_task_goes_before_a_head_that_is_given_back(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l")]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.add(&[task(2).with_lock("l").with_priority(5)]).await;
    shop.settle(&leased, AttemptResult::Return).await;
    assert_eq!(shop.drain().await, [2]);
    assert_eq!(shop.state(1).await, TaskState::Blocked);
}

pub async fn a_task_that_waits_for_its_next_attempt_lets_others_have_its_lock(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(5)))).await;
    let second = shop.lease(1, 10).await;
    assert_eq!(numbers(&second), [2]);
    shop.f.pass(5_000);
    assert_eq!(shop.drain().await, [0; 0], "its lock is taken");
    assert_eq!(shop.state(1).await, TaskState::Blocked);
    shop.done(&second[0]).await;
    assert_eq!(shop.drain().await, [1]);
}

pub async fn a_task_that_is_given_back_keeps_its_turn(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.settle(&leased, AttemptResult::Return).await;
    assert_eq!(shop.drain().await, [1]);
}

pub async fn a_crashed_worker_does_not_keep_the_lock(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l").attempts(1), task(2).with_lock("l")]).await;
    shop.lease(1, 1).await;
    shop.f.pass(30_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").failed, 1);
    assert_eq!(shop.drain().await, [2]);
}

pub async fn cancelling_frees_the_lock(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3).with_lock("l")]).await;
    shop.change(2, cancel()).await;
    shop.change(1, cancel()).await;
    assert_eq!(shop.state(1).await, TaskState::Aborted);
    assert_eq!(shop.drain().await, [3]);
}

pub async fn a_scheduled_task_takes_its_lock_only_when_it_is_due(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l").after(20), task(2).with_lock("l")]).await;
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [2]);
    shop.f.pass(20_000);
    assert_eq!(shop.drain().await, [0; 0]);
    shop.done(&leased[0]).await;
    assert_eq!(shop.drain().await, [1]);
}

pub async fn a_hundred_with_one_lock_are_in_nobodys_way(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&(1..=100).map(|number| task(number).with_lock("l")).collect::<Vec<_>>()).await;
    shop.add(&[task(101)]).await;
    assert_eq!(shop.count(TaskState::Blocked).await, 99);
    assert_eq!(shop.drain().await, [1, 101]);
}
