//! Scheduled tasks.

use crate::model::{AttemptResult, Priority, TaskState, TaskUpdate, Timestamp, Ttl, When};
use crate::testing::task_fixture::{TaskFixture, numbers, task, update};

pub async fn a_task_does_not_run_before_it_is_due(fixture: TaskFixture) {
    fixture.add(&[task(1).after(60)]).await;
    assert_eq!(fixture.state(1).await, TaskState::Scheduled);
    fixture.f.pass(59_999);
    assert_eq!(fixture.drain().await, [0; 0]);
    fixture.f.pass(1);
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn a_time_in_the_past_is_now(fixture: TaskFixture) {
    let mut new = task(1);
    new.when = When::At(Timestamp::from_micros(5));
    fixture.add(&[new]).await;
    assert_eq!(fixture.state(1).await, TaskState::Pending);
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn overdue_tasks_run_in_order_of_their_due_time(fixture: TaskFixture) {
    fixture.add(&[task(1).after(30), task(2).after(10), task(3).after(20)]).await;
    fixture.f.pass(86_400_000);
    assert_eq!(fixture.drain().await, [2, 3, 1]);
}

pub async fn a_future_task_of_high_priority_delays_no_other(fixture: TaskFixture) {
    fixture.add(&[task(1).with_priority(1000).after(3600), task(2)]).await;
    assert_eq!(fixture.drain().await, [2]);
}

pub async fn an_idle_worker_learns_when_the_next_task_is_due(fixture: TaskFixture) {
    let now = fixture.f.clock.now();
    assert_eq!(fixture.lease_from(1, 1, &["q"]).await.next_due, None);
    fixture.add(&[task(1).after(60), task(2).after(30), task(3).after(10).in_queue("other"), task(4)]).await;
    let leased = fixture.lease_from(1, 2, &["q"]).await;
    assert_eq!(numbers(&leased.tasks), [4]);
    let due = Timestamp::from_micros(now.as_micros() + 30_000_000);
    assert_eq!(leased.next_due, Some((due, now)));
}

pub async fn a_recovery_promotes_due_tasks(fixture: TaskFixture) {
    fixture.add(&[task(1).after(10), task(2).after(20)]).await;
    fixture.f.pass(10_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").promoted, 1);
    assert_eq!(fixture.state(1).await, TaskState::Pending);
    assert_eq!(fixture.get(1).await.version, 1, "its time came by itself");
    assert_eq!(fixture.state(2).await, TaskState::Scheduled);
}

/// A task that was returned, then postponed, then moved to another priority.
pub async fn a_returned_task_is_leased_at_another_priority_after_a_recovery(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    for result in [AttemptResult::Return, AttemptResult::Snooze(Ttl::from_secs(10))] {
        let leased = fixture.lease(1, 1).await.remove(0);
        fixture.settle(&leased, result).await;
    }
    let (expected, priority) = (fixture.get(1).await.version, Priority::new(9).ok());
    fixture.change(1, update(TaskUpdate { expected, priority, ..TaskUpdate::default() })).await;
    fixture.f.pass(10_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").promoted, 1);
    assert_eq!(fixture.drain().await, [1]);
}
