//! Restarts of the server while workers run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{NewTask, Settled, TaskId, TaskState, Ttl, WorkerId};
use leasehold::store::Store;
use leasehold::store::redis::RedisStore;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::support::{done, new_tasks, queue, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::options;

/// Works until no task is left, and retries after errors. Returns the accepted settlements.
async fn work(store: Arc<RedisStore>) -> Vec<TaskId> {
    let mut settled = Vec::new();
    loop {
        match round(&store).await {
            Ok(Some(more)) => settled.extend(more),
            Ok(None) => return settled,
            Err(error) => {
                assert!(error.is_retryable(), "{error}: {error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn round(store: &RedisStore) -> leasehold::Result<Option<Vec<TaskId>>> {
    let tasks = store.tasks().unwrap();
    let request = leasehold::model::LeaseTasks::new(
        WorkerId::from_uuid(Uuid::now_v7()),
        vec![queue()],
        5,
        Ttl::from_millis(1500),
    );
    let leased = tasks.lease(&request).await?.tasks;
    if leased.is_empty() {
        tasks.recover(100).await?;
        let open = tasks.queues().await?.iter().any(|queue| queue.counts.open() > 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
        return Ok(open.then(Vec::new));
    }
    let settles: Vec<_> = leased.iter().map(done).collect();
    // A settlement is repeated until it is answered.
    let answers = loop {
        match tasks.settle(&settles).await {
            Ok(answers) => break answers,
            Err(error) => assert!(error.is_retryable(), "{error}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let accepted = leased.iter().zip(answers).filter(|(_, answer)| *answer != Settled::Lost);
    Ok(Some(accepted.map(|(task, _)| task.id).collect()))
}

/// Enqueues tasks, and repeats the call until it succeeds.
async fn add(store: &RedisStore, new: &[NewTask]) {
    while let Err(error) = tasks(store).enqueue(new).await {
        assert!(error.is_retryable(), "{error}: {error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_aof_workers_continue_after_restarts_and_lose_nothing() {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut server = Server::start(&settings).await;
    let store = || async { Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap()) };
    let (adder, one, two) = (store().await, store().await, store().await);
    let new = new_tasks(600);
    add(&adder, &new[..200]).await;
    let mut workers = JoinSet::new();
    workers.spawn(work(one));
    workers.spawn(work(two));
    let rest = new[200..].to_vec();
    let more = tokio::spawn(async move {
        for some in rest.chunks(20) {
            add(&adder, some).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        adder
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.kill();
        server.restart().await;
    }
    let adder = more.await.unwrap();
    // The other workers may have stopped early, when no task was left for a moment.
    workers.spawn(work(adder.clone()));
    let mut settled: BTreeMap<TaskId, u32> = BTreeMap::new();
    for id in workers.join_all().await.concat() {
        *settled.entry(id).or_default() += 1;
    }
    assert!(settled.values().all(|count| *count == 1), "settled twice");
    for new in &new {
        let task = tasks(&*adder).get(new.id).await.unwrap().expect("an acknowledged task is stored");
        assert_eq!(task.state, TaskState::Succeeded);
        // One change for each lease, one for each recovery, and one for the settlement.
        assert_eq!(task.version, u64::from(task.attempt) * 2 + 1);
    }
    let queues = tasks(&*adder).queues().await.unwrap();
    assert_eq!((queues[0].counts.get(TaskState::Succeeded), queues[0].counts.open()), (600, 0));
}
