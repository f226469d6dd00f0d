//! Answers that get lost: whoever sends the same call again gets the same, and nothing is added or settled twice.

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

/// A proxy before the server, a store behind the proxy, and one that goes straight to the server.
struct Lab {
    proxy: Proxy,
    through: Arc<RedisStore>,
    straight: Arc<RedisStore>,
    clock: Clock,
}

async fn lab() -> Option<Lab> {
    let url = engine_at("redis")?;
    let address = url.strip_prefix("redis://").unwrap().parse().unwrap();
    let (proxy, prefix, clock) = (Proxy::before(address), prefix(), crate::engines::support::clock());
    let through = open(&format!("redis://{}", proxy.address()), &prefix, &clock).await;
    let straight = open(&url, &prefix, &clock).await;
    Some(Lab { proxy, through, straight, clock })
}

const TTL: Ttl = Ttl::from_secs(30);

#[tokio::test]
async fn an_enqueue_whose_answer_is_lost_adds_once() {
    let Some(lab) = lab().await else { return };
    let new = new_tasks(3);
    let added: Vec<_> = new.iter().map(|new| Enqueued::Added(new.id)).collect();
    lab.proxy.set(Fault::DropReplies(1));
    assert_eq!(tasks(&*lab.through).enqueue(&new).await.unwrap(), added);
    assert_eq!(tasks(&*lab.through).enqueue(&new).await.unwrap(), added);
    assert_eq!(count(&*lab.straight, TaskState::Pending).await, 3);
    // Two answers are lost: that is an error, and the tasks are there.
    lab.proxy.set(Fault::DropReplies(2));
    let more = [new_task()];
    let error = tasks(&*lab.through).enqueue(&more).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert_eq!(tasks(&*lab.through).enqueue(&more).await.unwrap(), [Enqueued::Added(more[0].id)]);
    assert_eq!(count(&*lab.straight, TaskState::Pending).await, 4);
}

#[tokio::test]
async fn a_settlement_whose_answer_is_lost_is_made_once() {
    let Some(lab) = lab().await else { return };
    tasks(&*lab.through).enqueue(&new_tasks(2)).await.unwrap();
    let leased = lease(&*lab.through, 2, TTL).await.tasks;
    lab.proxy.set(Fault::DropReplies(1));
    let settled = tasks(&*lab.through).settle(&[done(&leased[0])]).await.unwrap();
    assert_eq!(settled, [Settled::Now(TaskState::Succeeded)]);
    let again = Settle {
        id: leased[1].id,
        token: leased[1].token,
        verdict: AttemptResult::Retry(Message::new("no"), Some(Ttl::from_secs(5))),
    };
    // Both the reading and the writing of it may lose their answers.
    for replies in 1..=3 {
        lab.proxy.set(Fault::DropReplies(replies));
        let _ = tasks(&*lab.through).settle(std::slice::from_ref(&again)).await;
        lab.proxy.set(Fault::None);
        let settled = tasks(&*lab.through).settle(std::slice::from_ref(&again)).await.unwrap();
        assert_eq!(settled, [Settled::Now(TaskState::Scheduled)], "with {replies} lost");
    }
    let stored = tasks(&*lab.straight).get(leased[1].id).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.attempt, stored.events.len()), (3, 1, 1));
}

#[tokio::test]
async fn a_lease_whose_answer_is_lost_is_unknown_and_takes_no_more() {
    let Some(lab) = lab().await else { return };
    tasks(&*lab.through).enqueue(&new_tasks(2)).await.unwrap();
    lab.proxy.set(Fault::DropReplies(1));
    // The first task went to an answer that nobody got. The worker is told so, and asks the store which tasks it has.
    let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
    let ask = LeaseTasks::new(worker, vec![queue()], 1, TTL);
    let error = tasks(&*lab.through).lease(&ask).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(count(&*lab.straight, TaskState::Running).await, 1);
    let leased = lease(&*lab.through, 1, TTL).await.tasks;
    tasks(&*lab.through).settle(&[done(&leased[0])]).await.unwrap();
    lab.clock.advance(Duration::from_secs(31));
    assert_eq!(tasks(&*lab.straight).recover(100).await.unwrap().returned, 1);
    let second = lease(&*lab.through, 1, TTL).await.tasks;
    assert_eq!(second[0].attempt, 2);
    assert!(second[0].token > leased[0].token);
}

#[tokio::test]
async fn a_server_that_is_silent_is_an_error_in_time() {
    let Some(lab) = lab().await else { return };
    lab.proxy.set(Fault::BlackHole);
    let started = std::time::Instant::now();
    let error = tasks(&*lab.through).enqueue(&[new_task()]).await.unwrap_err();
    assert!(error.is_retryable());
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
