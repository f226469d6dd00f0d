//! Lost answers: a repeated call gets the same answer, and no task is added or settled twice.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    AttemptResult, Enqueued, LeaseTasks, Message, Settle, Settled, TaskState, Ttl, WorkerId,
};
use leasehold::store::Clock;
use leasehold::store::redis::RedisStore;

use super::support::{count, done, lease, new_task, new_tasks, queue, tasks};
use crate::engines::proxy::{Fault, Proxy};
use crate::engines::redis::support::{open, prefix};
use crate::engines::support::engine_at;

/// Proxy in front of the server, a store that uses the proxy, and a store that does not.
struct Setup {
    proxy: Proxy,
    proxied: Arc<RedisStore>,
    direct: Arc<RedisStore>,
    clock: Clock,
}

async fn setup() -> Setup {
    let url = engine_at("redis");
    let address = url.strip_prefix("redis://").unwrap().parse().unwrap();
    let (proxy, prefix, clock) = (Proxy::before(address), prefix(), crate::engines::support::clock());
    let proxied = open(&format!("redis://{}", proxy.address()), &prefix, &clock).await;
    let direct = open(&url, &prefix, &clock).await;
    Setup { proxy, proxied, direct, clock }
}

const TTL: Ttl = Ttl::from_secs(30);

#[tokio::test]
async fn an_enqueue_whose_answer_is_lost_adds_once() {
    let setup = setup().await;
    let new = new_tasks(3);
    let added: Vec<_> = new.iter().map(|new| Enqueued::Added(new.id)).collect();
    setup.proxy.set(Fault::DropReplies(1));
    assert_eq!(tasks(&*setup.proxied).enqueue(&new).await.unwrap(), added);
    assert_eq!(tasks(&*setup.proxied).enqueue(&new).await.unwrap(), added);
    assert_eq!(count(&*setup.direct, TaskState::Pending).await, 3);
    // Two lost answers are an error, although the task was added.
    setup.proxy.set(Fault::DropReplies(2));
    let more = [new_task()];
    let error = tasks(&*setup.proxied).enqueue(&more).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert_eq!(tasks(&*setup.proxied).enqueue(&more).await.unwrap(), [Enqueued::Added(more[0].id)]);
    assert_eq!(count(&*setup.direct, TaskState::Pending).await, 4);
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_is_made_once() {
    let setup = setup().await;
    tasks(&*setup.proxied).enqueue(&new_tasks(2)).await.unwrap();
    let leased = lease(&*setup.proxied, 2, TTL).await.tasks;
    setup.proxy.set(Fault::DropReplies(1));
    let settled = tasks(&*setup.proxied).settle(&[done(&leased[0])]).await.unwrap();
    assert_eq!(settled, [Settled::Now(TaskState::Succeeded)]);
    let again = Settle {
        id: leased[1].id,
        token: leased[1].token,
        result: AttemptResult::Retry(Message::new("no"), Some(Ttl::from_secs(5))),
    };
    // Both the read and the write may lose their answers.
    for replies in 1..=3 {
        setup.proxy.set(Fault::DropReplies(replies));
        let _ = tasks(&*setup.proxied).settle(std::slice::from_ref(&again)).await;
        setup.proxy.set(Fault::None);
        let settled = tasks(&*setup.proxied).settle(std::slice::from_ref(&again)).await.unwrap();
        assert_eq!(settled, [Settled::Now(TaskState::Scheduled)], "with {replies} lost");
    }
    let stored = tasks(&*setup.direct).get(leased[1].id).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.attempt, stored.events.len()), (3, 1, 1));
}

#[tokio::test]
async fn a_lease_whose_answer_is_lost_is_in_doubt_and_not_repeated() {
    let setup = setup().await;
    // The server knows the script then, and answers the next call at once.
    assert!(lease(&*setup.direct, 1, TTL).await.tasks.is_empty());
    tasks(&*setup.proxied).enqueue(&new_tasks(2)).await.unwrap();
    setup.proxy.set(Fault::DropReplies(1));
    // The answer with the first task is lost. The worker gets an error, and must query its tasks.
    let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
    let request = LeaseTasks::new(worker, vec![queue()], 1, TTL);
    let error = tasks(&*setup.proxied).lease(&request).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(count(&*setup.direct, TaskState::Running).await, 1);
    let leased = lease(&*setup.proxied, 1, TTL).await.tasks;
    tasks(&*setup.proxied).settle(&[done(&leased[0])]).await.unwrap();
    setup.clock.advance(Duration::from_secs(31));
    assert_eq!(tasks(&*setup.direct).recover(100).await.unwrap().returned, 1);
    let second = lease(&*setup.proxied, 1, TTL).await.tasks;
    assert_eq!(second[0].attempt, 2);
    assert!(second[0].token > leased[0].token);
}

#[tokio::test]
async fn a_silent_server_is_an_error_in_time() {
    let setup = setup().await;
    setup.proxy.set(Fault::BlackHole);
    let started = std::time::Instant::now();
    let error = tasks(&*setup.proxied).enqueue(&[new_task()]).await.unwrap_err();
    assert!(error.is_retryable());
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
