//! What is looked after in a process without a worker, and a worker that is ended in a hurry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{LeaseTasks, QueueName, TaskState, Ttl, WorkerId};

use super::support::{memory, until};
use super::worker::{Say, add, endless, state, until_it_is};

#[tokio::test]
async fn a_caretaker_makes_tasks_of_ticks_and_recovers_what_dead_workers_had() {
    let leasehold = memory().await;
    let id = add(&leasehold, "lost").await;
    let ask = LeaseTasks::new(
        WorkerId::from_uuid(uuid::Uuid::from_u128(7)),
        vec![QueueName::new("say").unwrap()],
        1,
        Ttl::from_millis(50),
    );
    let store = leasehold.store();
    assert_eq!(store.tasks().unwrap().lease(&ask).await.unwrap().tasks.len(), 1);
    leasehold.schedule("nightly", "* * * * * *", &Say { text: "tick".to_owned() }).await.unwrap();
    let caretaker = leasehold.caretaker(Duration::from_millis(20)).unwrap();
    until("recovered", async || state(&leasehold, id).await == TaskState::Pending).await;
    let queues = async || leasehold.tasks().unwrap().queues().await.unwrap();
    until("a tick", async || queues().await[0].counts.get(TaskState::Pending) >= 2).await;
    drop(caretaker);
}

#[tokio::test]
async fn a_worker_that_is_ended_in_a_hurry_gives_back_what_it_has() {
    let leasehold = memory().await;
    let at_it = Arc::new(AtomicU32::new(0));
    let worker = endless(&leasehold, &at_it);
    let id = add(&leasehold, "a").await;
    until_it_is(&leasehold, id, TaskState::Running).await;
    until("it runs", async || at_it.load(Ordering::SeqCst) == 1).await;
    let (hurry, hurried) = tokio::sync::oneshot::channel::<()>();
    let stopping = tokio::spawn(worker.stop_when(async { drop(hurried.await) }));
    tokio::task::yield_now().await;
    assert_eq!(at_it.load(Ordering::SeqCst), 1, "it has all the time there is");
    drop(hurry);
    stopping.await.unwrap();
    assert_eq!((at_it.load(Ordering::SeqCst), state(&leasehold, id).await), (0, TaskState::Pending));
}
