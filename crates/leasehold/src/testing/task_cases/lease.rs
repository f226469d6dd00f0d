//! Assignment of tasks to workers, and its order.

use std::collections::BTreeSet;

use crate::model::{AttemptResult, LeaseTasks, NewTask, Payload, TaskState, Ttl};
use crate::testing::task_fixture::{TaskFixture, numbers, queue, task, why, worker};

pub async fn a_leased_task_is_running_and_names_its_worker(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(7, 1).await;
    let [leased] = leased.as_slice() else { panic!("one task: {leased:?}") };
    assert_eq!((leased.state, leased.attempt, leased.version), (TaskState::Running, 1, 2));
    assert_eq!(leased.worker, Some(worker(7)));
    assert_eq!(leased.leased_at, Some(fixture.f.clock.now()));
    assert_eq!(leased.lease_expires_at, Some(fixture.f.clock.now().plus(Ttl::from_secs(30))));
    assert_eq!(leased.payload, task(1).payload);
    assert_eq!(*leased, fixture.get(1).await);
}

pub async fn a_task_goes_to_one_worker(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    assert_eq!(fixture.lease(1, 10).await.len(), 1);
    assert_eq!(fixture.lease(2, 10).await.len(), 0);
}

pub async fn of_sixteen_concurrent_workers_each_task_goes_to_one(fixture: TaskFixture) {
    fixture.add(&(1..=100).map(task).collect::<Vec<_>>()).await;
    let asks = (0..16).map(|who| {
        let store = if who % 2 == 0 { fixture.f.one.clone() } else { fixture.f.two.clone() };
        tokio::spawn(async move {
            let request = LeaseTasks::new(worker(who), vec![queue("q")], 10, Ttl::from_secs(30));
            store.tasks().expect("tasks").lease(&request).await.expect("leased").tasks
        })
    });
    let mut got = Vec::new();
    for request in asks.collect::<Vec<_>>() {
        got.extend(numbers(&request.await.expect("no panic")));
    }
    // Some workers may have received no task because of concurrent leases; the remaining tasks are
    // still available.
    got.extend(fixture.drain().await);
    assert_eq!(got.len(), 100);
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>().len(), 100);
}

/// After a lease, an engine must not assume that no other task arrives at the same time.
pub async fn a_task_added_during_a_lease_is_not_skipped(fixture: TaskFixture) {
    fixture.add(&[task(8)]).await;
    assert_eq!(numbers(&fixture.lease(1, 1).await), [8]);
    fixture.add(&[task(2)]).await;
    fixture.f.pass(1);
    assert_eq!(numbers(&fixture.lease(1, 1).await), [2]);
}

pub async fn tasks_are_leased_in_order_of_arrival(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    fixture.f.pass(1);
    fixture.add(&[task(3)]).await;
    assert_eq!(fixture.lease(1, 2).await.len(), 2);
    assert_eq!(fixture.drain().await, [3]);
}

pub async fn a_batch_keeps_its_order(fixture: TaskFixture) {
    fixture.add(&(1..=20).map(task).collect::<Vec<_>>()).await;
    assert_eq!(fixture.drain().await, (1..=20).collect::<Vec<_>>());
}

pub async fn a_higher_priority_is_leased_first(fixture: TaskFixture) {
    fixture
        .add(&[task(1), task(2).with_priority(5), task(3).with_priority(-5), task(4).with_priority(5)])
        .await;
    assert_eq!(fixture.drain().await, [2, 4, 1, 3]);
}

pub async fn a_long_waiting_task_is_leased_before_a_later_higher_priority(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    fixture.f.pass(29_000);
    fixture.add(&[task(2).with_priority(1)]).await;
    fixture.f.pass(2_000);
    fixture.add(&[task(3).with_priority(1)]).await;
    assert_eq!(fixture.drain().await, [2, 1, 3]);
}

pub async fn a_worker_gets_tasks_of_its_queues_only(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2).in_queue("other"), task(3).in_queue("third")]).await;
    for queues in [&["q"][..], &["q", "other"][..]] {
        assert_eq!(fixture.lease_from(1, 0, queues).await.tasks, [], "a request for no task leases none");
    }
    assert_eq!(numbers(&fixture.lease_from(1, 10, &["other"]).await.tasks), [2]);
    assert_eq!(numbers(&fixture.lease_from(1, 10, &["q", "third", "unknown"]).await.tasks), [1, 3]);
    assert_eq!(fixture.lease_from(1, 10, &[]).await.tasks, []);
}

pub async fn tasks_of_several_queues_are_leased_in_one_order(fixture: TaskFixture) {
    for (number, name) in [(1, "b"), (2, "a"), (3, "b"), (4, "a")] {
        fixture.add(&[task(number).in_queue(name)]).await;
        fixture.f.pass(1);
    }
    fixture.add(&[task(5).in_queue("a").with_priority(1)]).await;
    assert_eq!(numbers(&fixture.lease_from(1, 3, &["a", "b"]).await.tasks), [5, 1, 2]);
    assert_eq!(numbers(&fixture.lease_from(1, 3, &["b", "a"]).await.tasks), [3, 4]);
}

/// Tasks with and without a timeout are added in one call, leased, retried and read.
pub async fn a_task_keeps_its_timeout(fixture: TaskFixture) {
    let timeout = Some(Ttl::from_millis(1_500));
    fixture.add(&[NewTask { timeout, ..task(1) }, task(2)]).await;
    let leased = fixture.lease(1, 2).await;
    let timeouts: Vec<_> = leased.iter().map(|task| task.timeout).collect();
    assert_eq!(timeouts, [timeout, None]);
    for task in &leased {
        fixture.settle(task, AttemptResult::Retry(why(), None)).await;
    }
    assert_eq!((fixture.get(1).await.timeout, fixture.get(2).await.timeout), (timeout, None));
}

pub async fn every_lease_raises_the_token(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let mut last = fixture.get(1).await.token;
    for _ in 0..3 {
        let leased = fixture.lease(1, 1).await.remove(0);
        assert!(leased.token > last);
        assert!(leased.token.get() >= fixture.f.clock.now().as_micros());
        last = leased.token;
        fixture.settle(&leased, crate::model::AttemptResult::Return).await;
    }
}

/// Independently of the requested number: over a slow connection a large answer would arrive too
/// late to be useful.
pub async fn a_lease_returns_at_most_a_mebibyte_of_payloads(fixture: TaskFixture) {
    let large = |number, kibibytes: usize| {
        let mut new = task(number);
        let text = "x".repeat((kibibytes << 10) - 2);
        new.payload = Payload::of(&text).expect("a good value in a test");
        new
    };
    for (number, kibibytes) in [(1, 400), (2, 400), (3, 224), (4, 1), (5, 1000), (6, 23)] {
        fixture.add(&[large(number, kibibytes).in_queue(if number % 2 == 0 { "q" } else { "p" })]).await;
        fixture.f.pass(1);
    }
    fixture.add(&[task(7).after(20)]).await;
    let lease = async || {
        let leased = fixture.lease_from(1, 100, &["q", "p"]).await;
        (numbers(&leased.tasks), leased.next_due.is_some())
    };
    assert_eq!(lease().await, (vec![1, 2, 3], false), "a mebibyte is enough");
    assert_eq!(lease().await, (vec![4, 5, 6], false), "what makes it full is part of it");
    assert_eq!(lease().await, (vec![], true));
    fixture.f.pass(20_000);
    let leased = fixture.lease_from(1, 100, &["q"]).await;
    assert_eq!((numbers(&leased.tasks), leased.next_due), (vec![7], None));
}

pub async fn an_enqueue_wakes_a_waiting_worker(fixture: TaskFixture) {
    // The worker is on the client that adds the task: other processes may have to poll.
    let mut arrivals = fixture.f.one.tasks().expect("tasks").subscribe_queues(&[queue("q")]);
    let waiting = tokio::spawn(async move { arrivals.next(Some(std::time::Duration::from_secs(20))).await });
    tokio::task::yield_now().await;
    fixture.f.one.tasks().expect("tasks").enqueue(&[task(1)]).await.expect("added");
    let woken = tokio::time::timeout(std::time::Duration::from_millis(900), waiting).await;
    assert!(woken.is_ok(), "it was not woken before its poll");
}
