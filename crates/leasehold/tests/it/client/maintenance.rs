//! Maintenance in a process without a worker, and a worker whose grace period ends early.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{LeaseTasks, Payload, QueueName, TaskState, Ttl, WorkerId};
use leasehold::testing::Fault;
use leasehold::{HandlerError, TaskContext, TaskType};

use super::support::{faulty, memory, until};
use super::worker::{Say, add, endless, state, until_state};
use super::workflows::fixture::Active;

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

/// The request for further tasks never returns. The lease of the running task outlasts the test.
#[tokio::test]
async fn a_worker_stops_its_handlers_although_the_store_is_silent() {
    let (store, leasehold, other) = faulty();
    let active = Arc::new(AtomicU32::new(0));
    let seen = active.clone();
    let handle = move |_: TaskContext<Payload>| {
        let active = Active::enter(&seen);
        async move {
            let _active = active;
            std::future::pending::<Result<(), HandlerError>>().await
        }
    };
    let worker = leasehold.worker().handle_queue(Say::QUEUE, Duration::from_mins(10), handle);
    let worker = worker.start().unwrap();
    add(&other, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    store.from_now_on(Fault::Hang);
    let requests = store.task_calls().0;
    add(&other, "another").await;
    until("the worker asks for it", async || store.task_calls().0 > requests).await;
    let stopping = tokio::spawn(worker.stop(Duration::from_millis(50)));
    until("its handler has ended", async || active.load(Ordering::SeqCst) == 0).await;
    stopping.abort();
}
