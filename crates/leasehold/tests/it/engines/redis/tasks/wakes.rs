//! Wake-ups between processes: one for each task, and only for those who wait.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::Ttl;
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;

use super::support::{lease, new_task, new_tasks, queue, tasks};
use crate::engines::redis::private::Server;
use crate::engines::redis::support::options;

const TTL: Ttl = Ttl::from_secs(30);

#[tokio::test]
async fn a_task_wakes_one_of_those_who_wait_elsewhere() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, workers) = (store().await, [store().await, store().await, store().await]);
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(server.calls("publish").await, 0, "nobody waits");
    lease(&*adder, 1, TTL).await;
    let mut waiting = Vec::new();
    for worker in &workers {
        waiting.push(worker.tasks().unwrap().arrivals(&[queue()]));
    }
    let all_hear = async {
        let heard = || server.says::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]);
        while heard().await.unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all_hear).await.expect("all listen");
    for worker in &workers {
        assert!(lease(&**worker, 1, TTL).await.tasks.is_empty());
    }
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(server.calls("publish").await, 1, "one task wakes one");
    // The longest waiting is the one, and nobody else has to ask.
    waiting[0].next(None).await;
    assert_eq!(lease(&*workers[0], 1, TTL).await.tasks.len(), 1);
    tasks(&*adder).enqueue(&new_tasks(20)).await.unwrap();
    // The one that has just asked waits again, as far as the store knows.
    assert_eq!(server.calls("publish").await, 4, "many tasks wake all who wait, each once");
    tasks(&*adder).enqueue(&new_tasks(20)).await.unwrap();
    assert_eq!(server.calls("publish").await, 4, "until they have asked again");
}

#[tokio::test]
async fn who_is_gone_is_passed_over() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, dead, alive) = (store().await, store().await, store().await);
    for worker in [&dead, &alive] {
        let arrivals = worker.tasks().unwrap().arrivals(&[queue()]);
        lease(&**worker, 1, TTL).await;
        drop(arrivals);
    }
    let hears = async || server.says::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]).await.unwrap().len();
    let until = async |count| {
        while hears().await != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until(2)).await.expect("both listen");
    drop(dead);
    tokio::time::timeout(Duration::from_secs(20), until(1)).await.expect("one is gone");
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    assert_eq!(server.calls("publish").await, 2, "the first did not hear it, so the next was rung");
}

#[tokio::test]
async fn who_waits_no_longer_passes_it_on() {
    let Some(server) = Server::start(&[]).await else { return };
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, busy, idle) = (store().await, store().await, store().await);
    let no_longer = busy.tasks().unwrap().arrivals(&[queue()]);
    let mut waiting = idle.tasks().unwrap().arrivals(&[queue()]);
    let both_hear = async {
        while server.says::<Vec<String>>(&["PUBSUB", "CHANNELS", "p:*"]).await.unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), both_hear).await.expect("both listen");
    lease(&*busy, 1, TTL).await;
    lease(&*idle, 1, TTL).await;
    drop(no_longer);
    tasks(&*adder).enqueue(&[new_task()]).await.unwrap();
    waiting.next(None).await;
    let passed_on = async {
        while server.calls("publish").await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), passed_on).await.expect("it is passed on");
}
