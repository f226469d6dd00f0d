//! Workers whose handlers end by themselves: the task is settled when they have, and not before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{Holder, Reason, TaskState};
use leasehold::{HandlerError, Leasehold, TaskContext, Worker};
use tokio::sync::Notify;

use super::support::{memory, name, until};
use super::worker::{Say, add, state, until_it_is};

/// What the test and the handler tell each other.
#[derive(Clone, Default)]
struct Stage {
    begun: Arc<AtomicU32>,
    /// The handler has been told to stop…
    told: Arc<AtomicBool>,
    /// …and may do so.
    may_end: Arc<Notify>,
}

/// A patient worker whose handlers, told to stop, take their time, and then end as `well` says.
fn patient(leasehold: &Leasehold, stage: &Stage, well: bool) -> Worker {
    let worker =
        leasehold.worker().handle_with(stage.clone(), move |task: TaskContext<Say>, stage| async move {
            stage.begun.fetch_add(1, Ordering::SeqCst);
            task.lost().await;
            stage.told.store(true, Ordering::SeqCst);
            stage.may_end.notified().await;
            if well { Ok("all the same") } else { Err(HandlerError::retry("stopped")) }
        });
    worker.patient().start().unwrap()
}

async fn begun(stage: &Stage) {
    until("it runs", async || stage.begun.load(Ordering::SeqCst) > 0).await;
}

async fn told(stage: &Stage) {
    until("it is told", async || stage.told.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn a_task_is_stopped_only_when_its_handler_has_ended() {
    let (leasehold, stage) = (memory().await, Stage::default());
    let _worker = patient(&leasehold, &stage, false);
    let id = add(&leasehold, "long").await;
    begun(&stage).await;
    leasehold.tasks().unwrap().cancel(id, Holder::new("ada").unwrap(), None).await.unwrap();
    told(&stage).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Running);
    stage.may_end.notify_one();
    until_it_is(&leasehold, id, TaskState::Aborted).await;
}

#[tokio::test]
async fn a_handler_that_ends_well_all_the_same_has_succeeded() {
    let (leasehold, stage) = (memory().await, Stage::default());
    stage.may_end.notify_one();
    let worker = patient(&leasehold, &stage, true);
    let id = add(&leasehold, "long").await;
    begun(&stage).await;
    worker.stop(Duration::from_millis(1)).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Succeeded);
}

#[tokio::test]
async fn what_is_not_done_when_the_worker_ends_is_given_back() {
    let (leasehold, stage) = (memory().await, Stage::default());
    stage.may_end.notify_one();
    let worker = patient(&leasehold, &stage, false);
    let id = add(&leasehold, "long").await;
    begun(&stage).await;
    worker.stop(Duration::from_millis(1)).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Pending, 0));
}

#[tokio::test]
async fn a_lock_that_is_taken_by_force_is_told_to_the_handler() {
    let (leasehold, stage) = (memory().await, Stage::default());
    let _worker = patient(&leasehold, &stage, false);
    let id = leasehold.enqueue(&Say { text: "long".to_owned() }).lock("gpu").await.unwrap().id;
    begun(&stage).await;
    let held = leasehold.status(&name("gpu")).await.unwrap().token;
    let (by, why) = (Holder::new("ada").unwrap(), Reason::new("mine").unwrap());
    leasehold.force_release(&name("gpu"), held, by, why).await.unwrap();
    told(&stage).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Running, "its handler has not ended");
    stage.may_end.notify_one();
    until("it comes back", async || stage.begun.load(Ordering::SeqCst) > 1).await;
    assert_eq!(leasehold.tasks().unwrap().get(id).await.unwrap().attempt, 1, "that was no attempt");
}

#[tokio::test]
async fn a_handler_sees_its_lease_being_renewed() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|task: TaskContext<Say>| async move {
        let first = task.valid_until();
        let second = task.renewed(first).await;
        assert!(second > first);
        assert_eq!(task.renewed(first).await, task.valid_until(), "no renewal is missed");
        Ok::<_, HandlerError>(())
    });
    let _worker = worker.start().unwrap();
    let id = add(&leasehold, "long").await;
    until_it_is(&leasehold, id, TaskState::Succeeded).await;
}
