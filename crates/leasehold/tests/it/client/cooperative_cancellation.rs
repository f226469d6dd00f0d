//! Workers with cooperative cancellation: a task is settled when its handler has ended, and not
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{ForceRelease, Holder, LockOp, Reason, RetryPolicy, TaskState};
use leasehold::{HandlerError, Leasehold, TaskContext, Worker};
use tokio::sync::Notify;

use super::support::{memory, name, until};
use super::worker::{Say, add, state, until_state};

/// Signals between the test and the handler.
#[derive(Clone, Default)]
struct Signals {
    begun: Arc<AtomicU32>,
    /// Whether the handler has received its cancellation.
    cancelled: Arc<AtomicBool>,
    /// Notified when the handler may end.
    may_end: Arc<Notify>,
}

/// Starts a worker whose cancelled handlers wait for `may_end`, and then succeed or fail.
fn cooperative(leasehold: &Leasehold, signals: &Signals, succeeds: bool) -> Worker {
    let worker =
        leasehold.worker().handle_with(signals.clone(), move |task: TaskContext<Say>, signals| async move {
            signals.begun.fetch_add(1, Ordering::SeqCst);
            task.lost().await;
            signals.cancelled.store(true, Ordering::SeqCst);
            signals.may_end.notified().await;
            if succeeds { Ok("done") } else { Err(HandlerError::retry("stopped")) }
        });
    worker.cooperative_cancellation().start().unwrap()
}

async fn begun(signals: &Signals) {
    until("it runs", async || signals.begun.load(Ordering::SeqCst) > 0).await;
}

async fn cancelled(signals: &Signals) {
    until("it is cancelled", async || signals.cancelled.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn a_task_is_aborted_only_when_its_handler_has_ended() {
    let (leasehold, signals) = (memory().await, Signals::default());
    let _worker = cooperative(&leasehold, &signals, false);
    let id = add(&leasehold, "long").await;
    begun(&signals).await;
    leasehold.tasks().unwrap().cancel(id, Holder::new("ada").unwrap(), None).await.unwrap();
    cancelled(&signals).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Running);
    signals.may_end.notify_one();
    until_state(&leasehold, id, TaskState::Aborted).await;
}

#[tokio::test]
async fn a_cancelled_handler_that_succeeds_has_succeeded() {
    let (leasehold, signals) = (memory().await, Signals::default());
    signals.may_end.notify_one();
    let worker = cooperative(&leasehold, &signals, true);
    let id = add(&leasehold, "long").await;
    begun(&signals).await;
    worker.stop(Duration::from_millis(1)).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Succeeded);
}

#[tokio::test]
async fn a_task_that_is_not_done_when_the_worker_stops_is_returned() {
    let (leasehold, signals) = (memory().await, Signals::default());
    signals.may_end.notify_one();
    let worker = cooperative(&leasehold, &signals, false);
    let id = add(&leasehold, "long").await;
    begun(&signals).await;
    worker.stop(Duration::from_millis(1)).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.state, task.attempt), (TaskState::Pending, 0));
}

#[tokio::test]
async fn a_forced_release_of_the_lock_cancels_the_handler() {
    let (leasehold, signals) = (memory().await, Signals::default());
    let _worker = cooperative(&leasehold, &signals, false);
    let id = leasehold.enqueue(&Say { text: "long".to_owned() }).lock("gpu").await.unwrap().id;
    begun(&signals).await;
    let held = leasehold.locks().status(&name("gpu")).await.unwrap().token;
    let (by, why) = (Holder::new("ada").unwrap(), Reason::new("mine").unwrap());
    leasehold.locks().force_release(&name("gpu"), held, by, why).await.unwrap();
    cancelled(&signals).await;
    assert_eq!(state(&leasehold, id).await, TaskState::Running, "its handler has not ended");
    signals.may_end.notify_one();
    until("it comes back", async || signals.begun.load(Ordering::SeqCst) > 1).await;
    assert_eq!(
        leasehold.tasks().unwrap().get(id).await.unwrap().attempt,
        1,
        "it did not count as an attempt"
    );
}

#[tokio::test]
async fn a_task_with_one_attempt_that_loses_its_lock_does_not_begin_again() {
    let (leasehold, signals) = (memory().await, Signals::default());
    let _worker = cooperative(&leasehold, &signals, false);
    let once = RetryPolicy { attempts: 1, ..RetryPolicy::DEFAULT };
    let task = leasehold.enqueue(&Say { text: "long".to_owned() }).lock("gpu").retries(once);
    let id = task.await.unwrap().id;
    begun(&signals).await;
    let held = leasehold.locks().status(&name("gpu")).await.unwrap().token;
    let (by, why) = (Holder::new("ada").unwrap(), Reason::new("mine").unwrap());
    leasehold.locks().force_release(&name("gpu"), held, by, why).await.unwrap();
    cancelled(&signals).await;
    signals.may_end.notify_one();
    until_state(&leasehold, id, TaskState::Failed).await;
    assert_eq!(signals.begun.load(Ordering::SeqCst), 1);
}

/// The store notifies no holder of such a release, so that only the release by the worker reveals the loss.
#[tokio::test]
async fn a_handler_that_succeeds_before_the_loss_of_its_lock_is_known_has_succeeded() {
    let (leasehold, begun) = (memory().await, Arc::new(AtomicU32::new(0)));
    let seen = (leasehold.clone(), begun.clone());
    let worker =
        leasehold.worker().handle_with(seen, |task: TaskContext<Say>, (leasehold, begun)| async move {
            begun.fetch_add(1, Ordering::SeqCst);
            let token = task.lock_token().expect("the task has a lock");
            let (by, reason) = (Holder::new("ada")?, Reason::new("mine")?);
            let force = LockOp::ForceRelease(ForceRelease { token, by, reason });
            leasehold.store().locks().apply(&name("gpu"), &force).await?;
            Ok::<_, HandlerError>("done")
        });
    let _worker = worker.cooperative_cancellation().start().unwrap();
    let id = leasehold.enqueue(&Say { text: "short".to_owned() }).lock("gpu").await.unwrap().id;
    until_state(&leasehold, id, TaskState::Succeeded).await;
    assert_eq!(begun.load(Ordering::SeqCst), 1, "it did not run again");
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
    until_state(&leasehold, id, TaskState::Succeeded).await;
}
