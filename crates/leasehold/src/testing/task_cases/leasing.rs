//! Assignment of tasks to workers, and its order.

use std::collections::BTreeSet;

use crate::model::{LeaseTasks, Payload, TaskState, Ttl};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, numbers, queue, task, worker};

pub async fn a_leased_task_is_running_and_knows_by_whom(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(7, 1).await;
    let [leased] = leased.as_slice() else { panic!("one task: {leased:?}") };
    assert_eq!((leased.state, leased.attempt, leased.version), (TaskState::Running, 1, 2));
    assert_eq!(leased.worker, Some(worker(7)));
    assert_eq!(leased.leased_at, Some(shop.f.clock.now()));
    assert_eq!(leased.lease_expires_at, Some(shop.f.clock.now().plus(Ttl::from_secs(30))));
    assert_eq!(leased.payload, task(1).payload);
    assert_eq!(*leased, shop.get(1).await);
}

pub async fn a_task_goes_to_one_worker(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    assert_eq!(shop.lease(1, 10).await.len(), 1);
    assert_eq!(shop.lease(2, 10).await.len(), 0);
}

pub async fn of_sixteen_workers_at_once_each_task_goes_to_one(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&(1..=100).map(task).collect::<Vec<_>>()).await;
    let asks = (0..16).map(|who| {
        let store = if who % 2 == 0 { shop.f.one.clone() } else { shop.f.two.clone() };
        tokio::spawn(async move {
            let ask = LeaseTasks::new(worker(who), vec![queue("q")], 10, Ttl::from_secs(30));
            store.tasks().expect("tasks").lease(&ask).await.expect("leased").tasks
        })
    });
    let mut got = Vec::new();
    for ask in asks.collect::<Vec<_>>() {
        got.extend(numbers(&ask.await.expect("no panic")));
    }
    // Some workers may have received no task because of concurrent leases; the remaining tasks are
    // still available.
    got.extend(shop.drain().await);
    assert_eq!(got.len(), 100);
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>().len(), 100);
}

/// After a lease, an engine must not assume that no other task arrives at the same time.
pub async fn what_comes_at_the_moment_of_a_lease_is_not_passed_over(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(8)]).await;
    assert_eq!(numbers(&shop.lease(1, 1).await), [8]);
    shop.add(&[task(2)]).await;
    shop.f.pass(1);
    assert_eq!(numbers(&shop.lease(1, 1).await), [2]);
}

pub async fn tasks_are_leased_in_the_order_they_came(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2)]).await;
    shop.f.pass(1);
    shop.add(&[task(3)]).await;
    assert_eq!(shop.lease(1, 2).await.len(), 2);
    assert_eq!(shop.drain().await, [3]);
}

pub async fn a_batch_keeps_its_order(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&(1..=20).map(task).collect::<Vec<_>>()).await;
    assert_eq!(shop.drain().await, (1..=20).collect::<Vec<_>>());
}

pub async fn a_higher_priority_is_leased_first(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2).with_priority(5), task(3).with_priority(-5), task(4).with_priority(5)]).await;
    assert_eq!(shop.drain().await, [2, 4, 1, 3]);
}

pub async fn one_that_waits_long_is_leased_before_a_higher_priority_that_came_late(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    shop.f.pass(29_000);
    shop.add(&[task(2).with_priority(1)]).await;
    shop.f.pass(2_000);
    shop.add(&[task(3).with_priority(1)]).await;
    assert_eq!(shop.drain().await, [2, 1, 3]);
}

pub async fn a_worker_gets_only_from_its_queues(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2).in_queue("other"), task(3).in_queue("third")]).await;
    assert_eq!(numbers(&shop.lease_from(1, 10, &["other"]).await.tasks), [2]);
    assert_eq!(numbers(&shop.lease_from(1, 10, &["q", "third", "unknown"]).await.tasks), [1, 3]);
    assert_eq!(shop.lease_from(1, 10, &[]).await.tasks, []);
}

pub async fn several_queues_are_one_line(f: Fixture) {
    let shop = Shop::from(f);
    for (number, name) in [(1, "b"), (2, "a"), (3, "b"), (4, "a")] {
        shop.add(&[task(number).in_queue(name)]).await;
        shop.f.pass(1);
    }
    shop.add(&[task(5).in_queue("a").with_priority(1)]).await;
    assert_eq!(numbers(&shop.lease_from(1, 3, &["a", "b"]).await.tasks), [5, 1, 2]);
    assert_eq!(numbers(&shop.lease_from(1, 3, &["b", "a"]).await.tasks), [3, 4]);
}

pub async fn every_lease_raises_the_token(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let mut last = shop.get(1).await.token;
    for _ in 0..3 {
        let leased = shop.lease(1, 1).await.remove(0);
        assert!(leased.token > last);
        assert!(leased.token.get() >= shop.f.clock.now().as_micros());
        last = leased.token;
        shop.settle(&leased, crate::model::AttemptResult::Return).await;
    }
}

/// Independently of the requested number: over a slow connection a large answer would arrive too
/// late to be useful.
pub async fn an_answer_is_full_after_a_mebibyte_of_payloads(f: Fixture) {
    let shop = Shop::from(f);
    if shop.f.one.capabilities().engine == "github" {
        // No issue is large enough for that.
        return;
    }
    let large = |number, kibibytes: usize| {
        let mut new = task(number);
        let text = "x".repeat((kibibytes << 10) - 2);
        new.payload = Payload::of(&text).expect("a good value in a test");
        new
    };
    for (number, kibibytes) in [(1, 400), (2, 400), (3, 224), (4, 1), (5, 1000), (6, 23)] {
        shop.add(&[large(number, kibibytes).in_queue(if number % 2 == 0 { "q" } else { "p" })]).await;
        shop.f.pass(1);
    }
    shop.add(&[task(7).after(20)]).await;
    let lease = async || {
        let leased = shop.lease_from(1, 100, &["q", "p"]).await;
        (numbers(&leased.tasks), leased.next_due.is_some())
    };
    assert_eq!(lease().await, (vec![1, 2, 3], false), "a mebibyte is enough");
    assert_eq!(lease().await, (vec![4, 5, 6], false), "what makes it full is part of it");
    assert_eq!(lease().await, (vec![], true));
    shop.f.pass(20_000);
    let leased = shop.lease_from(1, 100, &["q"]).await;
    assert_eq!((numbers(&leased.tasks), leased.next_due), (vec![7], None));
}

pub async fn an_enqueue_wakes_a_worker_that_waits(f: Fixture) {
    let shop = Shop::from(f);
    if !shop.f.one.capabilities().wakes {
        return;
    }
    // The worker is on the client that adds the task: other processes may have to poll.
    let mut arrivals = shop.f.one.tasks().expect("tasks").arrivals(&[queue("q")]);
    let waiting = tokio::spawn(async move { arrivals.next(Some(std::time::Duration::from_secs(20))).await });
    tokio::task::yield_now().await;
    shop.f.one.tasks().expect("tasks").enqueue(&[task(1)]).await.expect("added");
    let woken = tokio::time::timeout(std::time::Duration::from_millis(900), waiting).await;
    assert!(woken.is_ok(), "it was not woken before its poll");
}
