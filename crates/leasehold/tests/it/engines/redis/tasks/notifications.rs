//! Notifications between processes: one for each task, and only to waiting stores.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::Ttl;
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;

use super::support::{lease, new_task, new_tasks, queue, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::options;

const TTL: Ttl = Ttl::from_secs(30);

#[tokio::test]
async fn a_task_notifies_one_waiting_store() {
    let server = Server::start(&[]).await;
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, workers) = (store().await, [store().await, store().await, store().await]);
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(server.calls("publish").await, 0, "no store waits");
    lease(&*adder, 1, TTL).await;
    let mut waiting = Vec::new();
    for worker in &workers {
        waiting.push(worker.tasks().unwrap().subscribe_queues(&[queue()]));
    }
    let all_subscribed = async {
        let channels = || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]);
        while channels().await.unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all_subscribed).await.expect("all listen");
    for worker in &workers {
        assert!(lease(&**worker, 1, TTL).await.tasks.is_empty());
    }
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(server.calls("publish").await, 1, "one task notifies one store");
    // The longest waiting store is notified, and no other store queries.
    waiting[0].next(None).await;
    assert_eq!(lease(&*workers[0], 1, TTL).await.tasks.len(), 1);
    tasks(&*adder).enqueue(&new_tasks(20)).await.unwrap();
    // The store that has just leased is registered as waiting again.
    assert_eq!(server.calls("publish").await, 4, "many tasks notify each waiting store once");
    tasks(&*adder).enqueue(&new_tasks(20)).await.unwrap();
    assert_eq!(server.calls("publish").await, 4, "no store is notified again before its next lease call");
}

#[tokio::test]
async fn a_dead_store_is_skipped() {
    let server = Server::start(&[]).await;
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, dead, alive) = (store().await, store().await, store().await);
    for worker in [&dead, &alive] {
        let arrivals = worker.tasks().unwrap().subscribe_queues(&[queue()]);
        lease(&**worker, 1, TTL).await;
        drop(arrivals);
    }
    let subscriptions =
        async || server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]).await.unwrap().len();
    let until = async |count| {
        while subscriptions().await != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until(2)).await.expect("both listen");
    drop(dead);
    tokio::time::timeout(Duration::from_secs(20), until(1)).await.expect("one store is closed");
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(
        server.calls("publish").await,
        2,
        "the first store did not receive it, so the next one was notified"
    );
}

#[tokio::test]
async fn a_store_without_waiting_workers_forwards_the_notification() {
    let server = Server::start(&[]).await;
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, busy, idle) = (store().await, store().await, store().await);
    let not_waiting = busy.tasks().unwrap().subscribe_queues(&[queue()]);
    let mut waiting = idle.tasks().unwrap().subscribe_queues(&[queue()]);
    let both_subscribed = async {
        while server.command::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), both_subscribed).await.expect("both listen");
    lease(&*busy, 1, TTL).await;
    lease(&*idle, 1, TTL).await;
    drop(not_waiting);
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    waiting.next(None).await;
    let forwarded = async {
        while server.calls("publish").await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), forwarded).await.expect("the notification is forwarded");
}
