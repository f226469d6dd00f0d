//! Scheduled tasks.

use crate::model::{TaskState, Timestamp, When};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, numbers, task};

pub async fn a_task_does_not_run_before_its_time(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).after(60)]).await;
    assert_eq!(shop.state(1).await, TaskState::Scheduled);
    shop.f.pass(59_999);
    assert_eq!(shop.drain().await, [0; 0]);
    shop.f.pass(1);
    assert_eq!(shop.drain().await, [1]);
}

pub async fn a_time_in_the_past_is_now(f: Fixture) {
    let shop = Shop::from(f);
    let mut new = task(1);
    new.when = When::At(Timestamp::from_micros(5));
    shop.add(&[new]).await;
    assert_eq!(shop.state(1).await, TaskState::Pending);
    assert_eq!(shop.drain().await, [1]);
}

pub async fn what_is_overdue_runs_in_the_order_of_its_time(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).after(30), task(2).after(10), task(3).after(20)]).await;
    shop.f.pass(86_400_000);
    assert_eq!(shop.drain().await, [2, 3, 1]);
}

pub async fn a_future_task_of_high_priority_is_in_nobodys_way(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_priority(1000).after(3600), task(2)]).await;
    assert_eq!(shop.drain().await, [2]);
}

pub async fn an_idle_worker_learns_when_the_next_task_is_due(f: Fixture) {
    let shop = Shop::from(f);
    let now = shop.f.clock.now();
    assert_eq!(shop.lease_from(1, 1, &["q"]).await.next_due, None);
    shop.add(&[task(1).after(60), task(2).after(30), task(3).after(10).in_queue("other"), task(4)]).await;
    let leased = shop.lease_from(1, 2, &["q"]).await;
    assert_eq!(numbers(&leased.tasks), [4]);
    let due = Timestamp::from_micros(now.as_micros() + 30_000_000);
    assert_eq!(leased.next_due, Some((due, now)));
}

pub async fn a_recovery_puts_in_line_what_is_due(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).after(10), task(2).after(20)]).await;
    shop.f.pass(10_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").promoted, 1);
    assert_eq!(shop.state(1).await, TaskState::Pending);
    assert_eq!(shop.get(1).await.version, 1, "its time came by itself");
    assert_eq!(shop.state(2).await, TaskState::Scheduled);
}
