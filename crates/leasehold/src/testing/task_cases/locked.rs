//! Tasks with the same lock, which run one at a time.

use crate::model::{AttemptResult, Priority, TaskState, TaskUpdate, Ttl};
use crate::testing::task_fixture::{TaskFixture, cancel, numbers, task, update, why};

pub async fn of_tasks_with_one_lock_one_runs(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3), task(4).with_lock("m")]).await;
    assert_eq!(fixture.state(2).await, TaskState::Blocked);
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1, 3, 4]);
    fixture.done(&leased[0]).await;
    assert_eq!(fixture.state(2).await, TaskState::Pending);
    assert_eq!(fixture.drain().await, [2]);
}

pub async fn a_pending_task_of_one_queue_blocks_none_of_another(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).in_queue("other").with_lock("l")]).await;
    fixture.add(&[task(3).in_queue("other").with_lock("l")]).await;
    assert_eq!(fixture.state(2).await, TaskState::Pending, "no worker serves the queue of the first");
    assert_eq!(fixture.state(3).await, TaskState::Blocked);
    let leased = fixture.lease_from(1, 10, &["other"]).await.tasks;
    assert_eq!(numbers(&leased), [2]);
    let both = fixture.lease_from(1, 10, &["q", "other"]).await.tasks;
    assert_eq!(numbers(&both), [1], "between queues the lock itself decides");
    fixture.done(&leased[0]).await;
    assert_eq!(numbers(&fixture.lease_from(1, 10, &["other"]).await.tasks), [3]);
}

pub async fn blocked_tasks_become_pending_in_order(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let first = fixture.lease(1, 10).await.remove(0);
    fixture.f.pass(1);
    fixture.add(&[task(3).with_lock("l"), task(4).with_lock("l").with_priority(1)]).await;
    fixture.done(&first).await;
    for expected in [4, 2, 3] {
        let leased = fixture.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected]);
        fixture.done(&leased[0]).await;
    }
}

pub async fn blocked_tasks_keep_their_position(fixture: TaskFixture) {
    for number in 1..=5 {
        fixture.add(&[task(number).with_lock("l")]).await;
        fixture.f.pass(1);
    }
    for number in 6..=20 {
        fixture.add(&[task(number)]).await;
        fixture.f.pass(1);
    }
    for expected in 1..=20 {
        let leased = fixture.lease(1, 1).await;
        assert_eq!(
            numbers(&leased),
            [expected],
            "a task that waited for its lock goes before those that came later"
        );
        fixture.f.pass(10);
        fixture.done(&leased[0]).await;
    }
}

pub async fn a_better_task_replaces_a_lock_owner_that_does_not_run(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    fixture.f.pass(1);
    fixture.add(&[task(3).with_lock("l").with_priority(100)]).await;
    assert_eq!(fixture.state(3).await, TaskState::Pending);
    assert_eq!((fixture.state(1).await, fixture.state(2).await), (TaskState::Blocked, TaskState::Blocked));
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [3]);
    fixture.add(&[task(4).with_lock("l").with_priority(200)]).await;
    assert_eq!(fixture.state(3).await, TaskState::Running, "what runs stays the head");
    assert_eq!(fixture.state(4).await, TaskState::Blocked);
    fixture.done(&leased[0]).await;
    for expected in [4, 1, 2] {
        let leased = fixture.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected]);
        fixture.done(&leased[0]).await;
    }
}

pub async fn a_due_task_replaces_a_lock_owner_that_it_precedes(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l").with_priority(5).after(10)]).await;
    fixture.f.pass(10_000);
    assert_eq!(numbers(&fixture.lease(1, 10).await), [2]);
    assert_eq!(fixture.state(1).await, TaskState::Blocked);
}

pub async fn a_changed_priority_changes_the_lock_owner(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3).with_lock("l")]).await;
    let priority = |weight, version| {
        update(TaskUpdate {
            expected: version,
            priority: Priority::new(weight).ok(),
            ..TaskUpdate::default()
        })
    };
    let (_, raised) = fixture.change(3, priority(7, 1)).await;
    assert_eq!((raised.state, fixture.state(1).await), (TaskState::Pending, TaskState::Blocked));
    let (_, lowered) = fixture.change(3, priority(-7, 2)).await;
    assert_eq!((lowered.state, fixture.state(1).await), (TaskState::Blocked, TaskState::Pending));
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    let (_, raised) = fixture.change(2, priority(7, 1)).await;
    assert_eq!((raised.state, fixture.state(1).await), (TaskState::Blocked, TaskState::Running));
    assert_eq!(fixture.count(TaskState::Blocked).await, 2);
}

pub async fn a_better_task_precedes_a_returned_lock_owner(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l")]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.add(&[task(2).with_lock("l").with_priority(5)]).await;
    fixture.settle(&leased, AttemptResult::Return).await;
    assert_eq!(fixture.drain().await, [2]);
    assert_eq!(fixture.state(1).await, TaskState::Blocked);
}

pub async fn a_task_that_waits_for_a_retry_does_not_own_its_lock(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(5)))).await;
    let second = fixture.lease(1, 10).await;
    assert_eq!(numbers(&second), [2]);
    fixture.f.pass(5_000);
    assert_eq!(fixture.drain().await, [0; 0], "its lock is taken");
    assert_eq!(fixture.state(1).await, TaskState::Blocked);
    fixture.done(&second[0]).await;
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn a_returned_task_keeps_its_lock(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l")]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Return).await;
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn the_task_of_a_crashed_worker_frees_its_lock(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l").attempts(1), task(2).with_lock("l")]).await;
    fixture.lease(1, 1).await;
    fixture.f.pass(30_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").failed, 1);
    assert_eq!(fixture.drain().await, [2]);
}

pub async fn cancelling_frees_the_lock(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l"), task(2).with_lock("l"), task(3).with_lock("l")]).await;
    fixture.change(2, cancel()).await;
    fixture.change(1, cancel()).await;
    assert_eq!(fixture.state(1).await, TaskState::Aborted);
    assert_eq!(fixture.drain().await, [3]);
}

pub async fn a_scheduled_task_takes_its_lock_only_when_it_is_due(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l").after(20), task(2).with_lock("l")]).await;
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [2]);
    fixture.f.pass(20_000);
    assert_eq!(fixture.drain().await, [0; 0]);
    fixture.done(&leased[0]).await;
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn a_hundred_tasks_with_one_lock_delay_no_other(fixture: TaskFixture) {
    fixture.add(&(1..=100).map(|number| task(number).with_lock("l")).collect::<Vec<_>>()).await;
    fixture.add(&[task(101)]).await;
    assert_eq!(fixture.count(TaskState::Blocked).await, 99);
    assert_eq!(fixture.drain().await, [1, 101]);
}
