//! Workers whose store answers some of their calls and refuses others.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{TaskId, TaskState};
use leasehold::testing::{Fault, FaultyStore};
use leasehold::{HandlerError, Leasehold, StoreErrorKind, TaskContext, TaskType, Worker};
use tokio::sync::Barrier;

use super::support::{faulty, until};
use super::worker::{add, endless, state, until_state};

/// Task whose lease outlasts the test.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Job(usize);

impl TaskType for Job {
    const QUEUE: &'static str = "jobs";
    const TTL: Duration = Duration::from_mins(10);
}

/// The lists that a worker reads after a failed request succeed, as on a server whose disk is full.
#[tokio::test]
async fn a_worker_asks_less_often_while_the_store_grants_no_leases() {
    let (store, leasehold, other) = faulty();
    add(&other, "later").await;
    store.from_now_on(Fault::LoseRequest);
    let _worker = endless(&leasehold, &Arc::default());
    until("it has tried once", async || store.task_calls().0 >= 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let requests = store.task_calls().0;
    assert!(requests < 15, "{requests} requests");
}

/// The settlement of the first task is refused before the second task is added.
#[tokio::test]
async fn a_refused_settlement_does_not_delay_the_others() {
    let (store, leasehold, other) = faulty();
    let refused = other.enqueue(&Job(0)).await.unwrap().id;
    store.refuse_settlements_of([refused]);
    let worker = leasehold.worker().handle(|_: TaskContext<Job>| async { Ok::<_, HandlerError>("done") });
    let _worker = worker.start().unwrap();
    until("its settlement is refused", async || store.task_calls().1 >= 3).await;
    let accepted = other.enqueue(&Job(1)).await.unwrap().id;
    until_state(&other, accepted, TaskState::Succeeded).await;
    assert_eq!(state(&other, refused).await, TaskState::Running);
    store.refuse_settlements_of([]);
    until_state(&other, refused, TaskState::Succeeded).await;
    assert!(other.tasks().unwrap().get(refused).await.unwrap().result.is_some(), "its result was kept");
}

/// Each retry sends the settlement once, and the delays grow.
#[tokio::test]
async fn a_settlement_that_is_always_refused_costs_few_calls() {
    let (store, leasehold, other) = faulty();
    let refused = other.enqueue(&Job(0)).await.unwrap().id;
    store.refuse_settlements_of([refused]);
    let worker = leasehold.worker().handle(|_: TaskContext<Job>| async { Ok::<_, HandlerError>("done") });
    let _worker = worker.start().unwrap();
    until("its settlement is refused", async || store.task_calls().1 >= 2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let settlements = store.task_calls().1;
    assert!(settlements <= 8, "{settlements} settlements");
}

/// The store accepts the second call, which must not replace the result by a failure.
#[tokio::test]
async fn a_settlement_that_was_refused_for_a_moment_keeps_its_result() {
    for kind in [StoreErrorKind::NotPermitted, StoreErrorKind::Broken] {
        let (store, leasehold, other) = faulty();
        let refused = other.enqueue(&Job(0)).await.unwrap().id;
        store.refuse_next_settlements(1, kind);
        let worker = leasehold.worker().handle(|_: TaskContext<Job>| async { Ok::<_, HandlerError>("done") });
        let _worker = worker.start().unwrap();
        until_state(&other, refused, TaskState::Succeeded).await;
        let result = other.tasks().unwrap().get(refused).await.unwrap().result;
        assert_eq!(result.unwrap().as_str(), "\"done\"");
    }
}

/// Number of the first tasks whose settlements are refused.
const REFUSED: usize = 60;

/// Starts a worker whose tasks end together. The store refuses the settlements of all but the last four.
async fn with_refused() -> (Arc<FaultyStore>, Leasehold, Vec<TaskId>, Worker) {
    let (store, leasehold, other) = faulty();
    let all: Vec<Job> = (0..REFUSED + 4).map(Job).collect();
    let ids: Vec<TaskId> = other.enqueue_all(&all).await.unwrap();
    store.refuse_settlements_of(ids[..REFUSED].iter().copied());
    let together = Arc::new(Barrier::new(REFUSED + 4));
    let worker =
        leasehold.worker().slots(64).handle_with(together, |task: TaskContext<Job>, together| async move {
            together.wait().await;
            Ok::<_, HandlerError>(task.payload.0)
        });
    (store, other, ids, worker.start().unwrap())
}

/// The attempts that the store accepts are behind many that it refuses.
#[tokio::test]
async fn settlements_behind_refused_ones_are_accepted_soon() {
    let (_store, other, ids, _worker) = with_refused().await;
    for id in &ids[REFUSED..] {
        until_state(&other, *id, TaskState::Succeeded).await;
    }
    assert_eq!(state(&other, ids[0]).await, TaskState::Running);
}

/// The worker stops before it has sent the settlements again that the store accepts.
#[tokio::test]
async fn a_worker_that_stops_keeps_the_results_that_the_store_accepts() {
    let (store, other, ids, worker) = with_refused().await;
    until("settlements are refused", async || store.task_calls().1 >= 1).await;
    worker.stop(Duration::ZERO).await;
    for id in &ids[REFUSED..] {
        assert_eq!(state(&other, *id).await, TaskState::Succeeded);
    }
}

/// Many tasks are returned when the worker stops, after the store has refused several settlements in a row.
#[tokio::test]
async fn a_worker_that_stops_returns_all_tasks_that_the_store_accepts() {
    const ENDED: usize = 12;
    const ALL: usize = 56;
    let (store, leasehold, other) = faulty();
    let jobs: Vec<Job> = (0..ALL).map(Job).collect();
    let ids: Vec<TaskId> = other.enqueue_all(&jobs).await.unwrap();
    let (accepted, refused): (Vec<_>, Vec<_>) =
        ids.iter().copied().enumerate().partition(|(number, _)| *number >= ENDED && number % 2 == 1);
    store.refuse_settlements_of(refused.into_iter().map(|(_, id)| id));
    let worker = leasehold.worker().slots(64).handle(|task: TaskContext<Job>| async move {
        if task.payload.0 >= ENDED {
            std::future::pending::<()>().await;
        }
        Ok::<_, HandlerError>(task.payload.0)
    });
    let worker = worker.start().unwrap();
    until("all run, and some are refused", async || {
        let running = other.tasks().unwrap().queue(Job::QUEUE).await.unwrap();
        running.counts.get(TaskState::Running) == ALL as u64 && store.task_calls().1 as usize >= ENDED
    })
    .await;
    worker.stop(Duration::ZERO).await;
    for (number, id) in accepted {
        assert_eq!(state(&other, id).await, TaskState::Pending, "task {number}");
    }
}

/// Many attempts end together and are refused. The worker goes on with a task that is not refused, and keeps the
/// results of the others.
#[tokio::test]
async fn no_result_is_dropped_while_the_store_refuses_settlements() {
    const TASKS: usize = 40;
    let (store, leasehold, other) = faulty();
    let all: Vec<Job> = (0..TASKS).map(Job).collect();
    let ids: Vec<TaskId> = other.enqueue_all(&all).await.unwrap();
    store.refuse_settlements_of(ids.iter().copied());
    let together = Arc::new(Barrier::new(TASKS));
    let worker =
        leasehold.worker().slots(40).handle_with(together, |task: TaskContext<Job>, together| async move {
            if task.payload.0 < TASKS {
                together.wait().await;
            }
            Ok::<_, HandlerError>(task.payload.0)
        });
    let worker = worker.start().unwrap();
    until("settlements are refused", async || store.task_calls().1 >= 20).await;
    let accepted = other.enqueue(&Job(TASKS)).await.unwrap().id;
    until_state(&other, accepted, TaskState::Succeeded).await;
    for id in &ids {
        assert_eq!(state(&other, *id).await, TaskState::Running);
    }
    store.refuse_settlements_of([]);
    for (number, id) in ids.into_iter().enumerate() {
        until_state(&other, id, TaskState::Succeeded).await;
        let result = other.tasks().unwrap().get(id).await.unwrap().result.unwrap();
        assert_eq!(result.as_str(), number.to_string());
    }
    worker.stop(Duration::from_secs(5)).await;
}

/// A worker that has to stop gives up a settlement that the store refuses.
#[tokio::test]
async fn a_worker_whose_settlement_is_refused_can_be_stopped() {
    let (store, leasehold, other) = faulty();
    let refused = other.enqueue(&Job(0)).await.unwrap().id;
    store.refuse_settlements_of([refused]);
    let worker = leasehold.worker().handle(|_: TaskContext<Job>| async { Ok::<_, HandlerError>("done") });
    let worker = worker.start().unwrap();
    until("its settlement is refused", async || store.task_calls().1 >= 1).await;
    let stopped = tokio::time::timeout(Duration::from_secs(20), worker.stop(Duration::ZERO)).await;
    assert!(stopped.is_ok());
}
