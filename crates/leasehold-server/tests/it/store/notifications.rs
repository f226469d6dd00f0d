//! One poll notifies all waiters and workers of a client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{NewTask, Payload, QueueName, TaskId};
use leasehold::store::memory::MemoryStore;
use leasehold::testing::{Fault, FaultyStore};
use leasehold::{Leasehold, Strategy};
use uuid::Uuid;

use super::support::{Served, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_woken_long_before_it_polls() {
    let served = Served::on_memory();
    let one = Leasehold::connect(&served.url()).await.unwrap();
    let two = Leasehold::connect(&served.url()).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..10 {
        let held = one.lock("lock").acquire().await.unwrap();
        let patient = Strategy::Wait(Some(Duration::from_secs(20)));
        let waiting = tokio::spawn(two.lock("lock").strategy(patient).acquire());
        while one.locks().status("lock").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let released = Instant::now();
        held.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        took.push(released.elapsed());
        guard.release().await.unwrap();
    }
    took.sort_unstable();
    assert!(took[5] < Duration::from_millis(250), "a poll is a second apart: {took:?}");
}

/// The server gets no answer from its store, so that it does not know whether the lease was released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_notified_of_a_release_whose_answer_was_lost() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()));
    let served = Served::over(store.clone());
    let one = Leasehold::connect(&served.url()).await.unwrap();
    let two = Leasehold::connect(&served.url()).await.unwrap();
    let guard = one.lock("lock").ttl(Duration::from_mins(30)).acquire().await.unwrap();
    // Until the guard has subscribed. On a busy machine it may not have; then it reads the lock afterwards.
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.plan([Fault::LoseAnswer]);
    two.locks().release("lock", guard.lease_id(), guard.token()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.expect("the holder learns it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_share_few_connections() {
    let served = Served::on_memory();
    let proxy = super::proxy::Proxy::before(served.address);
    let leasehold = Leasehold::connect(&format!("http://{}", proxy.address())).await.unwrap();
    let held = leasehold.lock("lock").acquire().await.unwrap();
    let patient = || Strategy::Wait(Some(Duration::from_mins(1)));
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..50 {
        waiting.spawn(leasehold.lock("lock").strategy(patient()).acquire());
    }
    while leasehold.locks().status("lock").await.unwrap().waiters.len() < 50 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // All callers have sent their requests on separate connections; from here on they share.
    let before = proxy.counts().connections;
    held.release().await.unwrap();
    while let Some(guard) = waiting.join_next().await {
        guard.unwrap().unwrap().release().await.unwrap();
    }
    let more = proxy.counts().connections - before;
    assert!(more < 25, "{more} connections more for 50 hand-overs");
}

#[tokio::test]
async fn a_worker_is_woken_when_something_arrives() {
    let served = Served::on_memory();
    let (one, two) = (open(&served.url()).await, open(&served.url()).await);
    let queue = QueueName::new("q").unwrap();
    let mut quick = 0;
    for _ in 0..5 {
        let mut arrivals = one.tasks().unwrap().subscribe_queues(std::slice::from_ref(&queue));
        let waiting = tokio::spawn(async move {
            let since = Instant::now();
            arrivals.next(None).await;
            since.elapsed()
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let id = TaskId::from_uuid(Uuid::now_v7());
        let new = NewTask::new(id, queue.clone(), Payload::default());
        two.tasks().unwrap().enqueue(&[new]).await.unwrap();
        quick += usize::from(waiting.await.unwrap() < Duration::from_millis(600));
    }
    assert!(quick >= 3, "a poll is a second apart: {quick} of 5 were woken");
}
