//! Maintenance in a process without a worker, and a worker whose grace period ends early.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{LeaseTasks, QueueName, TaskState, Ttl, WorkerId};

use super::support::{memory, until};
use super::worker::{Say, add, endless, state, until_state};

#[tokio::test]
async fn maintenance_adds_tasks_of_ticks_and_recovers_tasks_of_dead_workers() {
    let leasehold = memory().await;
    let id = add(&leasehold, "lost").await;
    let request = LeaseTasks::new(
        WorkerId::from_uuid(uuid::Uuid::from_u128(7)),
        vec![QueueName::new("say").unwrap()],
        1,
        Ttl::from_millis(50),
    );
    let store = leasehold.store();
    assert_eq!(store.tasks().unwrap().lease(&request).await.unwrap().tasks.len(), 1);
    leasehold.schedule("nightly", "* * * * * *", &Say { text: "tick".to_owned() }).await.unwrap();
    let maintenance = leasehold.maintain_tasks(Duration::from_millis(20)).unwrap();
    until("recovered", async || state(&leasehold, id).await == TaskState::Pending).await;
    let queues = async || leasehold.tasks().unwrap().queues().await.unwrap();
    until("a tick", async || queues().await[0].counts.get(TaskState::Pending) >= 2).await;
    drop(maintenance);
}

#[tokio::test]
async fn a_worker_whose_grace_ends_early_returns_its_tasks() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let worker = endless(&leasehold, &active);
    let id = add(&leasehold, "a").await;
    until_state(&leasehold, id, TaskState::Running).await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    let (end_grace, grace_over) = tokio::sync::oneshot::channel::<()>();
    let stopping = tokio::spawn(worker.stop_when(async { drop(grace_over.await) }));
    tokio::task::yield_now().await;
    assert_eq!(active.load(Ordering::SeqCst), 1, "the grace period is not over");
    drop(end_grace);
    stopping.await.unwrap();
    assert_eq!((active.load(Ordering::SeqCst), state(&leasehold, id).await), (0, TaskState::Pending));
}
