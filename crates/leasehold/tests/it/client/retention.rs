//! Retention of finished tasks: by the record of their queue, in whichever process purges them.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    FinishedFilter, Holder, Payload, QueueName, Retention, TaskId, TaskState, Timestamp, Ttl,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListTasks};
use leasehold::{HandlerError, Leasehold, TaskContext};

use super::support::until;
use super::worker::{Say, add, until_state};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

fn manual() -> (Leasehold, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    (Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap(), clock)
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn hours(hours: u64) -> Ttl {
    Ttl::from_secs(hours * 3600)
}

/// Adds a task and cancels it.
async fn aborted(leasehold: &Leasehold, to: &str) -> TaskId {
    let id = leasehold.enqueue_to(to, Payload::default()).await.unwrap().id;
    leasehold.tasks().unwrap().cancel(id, Holder::new("ada").unwrap(), None).await.unwrap();
    id
}

async fn is_known(leasehold: &Leasehold, id: TaskId) -> bool {
    leasehold.tasks().unwrap().get(id).await.is_ok()
}

#[tokio::test]
async fn the_record_of_a_queue_sets_the_retention_of_its_tasks() {
    let (leasehold, clock) = manual();
    let tasks = leasehold.tasks().unwrap();
    assert_eq!(tasks.retention(&queue("mail")).await.unwrap(), Retention::DEFAULT);
    let (mail, logs, plain) = (
        aborted(&leasehold, "mail").await,
        aborted(&leasehold, "logs").await,
        aborted(&leasehold, "x").await,
    );
    let short = Retention { aborted: Some(hours(1)), ..Retention::all(None) };
    tasks.set_retention(Some(&queue("mail")), Some(short)).await.unwrap();
    tasks.set_retention(Some(&queue("logs")), Some(Retention::all(None))).await.unwrap();
    clock.advance(2 * HOUR);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert!(!is_known(&leasehold, mail).await && is_known(&leasehold, logs).await);
    clock.advance(8 * DAY);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert!(is_known(&leasehold, logs).await && !is_known(&leasehold, plain).await);
    // Without a record, the default applies to the queue.
    assert_eq!(tasks.set_retention(Some(&queue("logs")), None).await.unwrap(), Retention::DEFAULT);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert!(!is_known(&leasehold, logs).await);
}

#[tokio::test]
async fn each_state_has_its_own_retention() {
    let (leasehold, clock) = manual();
    let tasks = leasehold.tasks().unwrap();
    let keep = Retention { succeeded: Some(hours(1)), failed: None, aborted: Some(hours(48)) };
    let handle = |task: TaskContext<Say>| async move {
        if task.payload.text == "bad" { Err(HandlerError::fail("no")) } else { Ok(()) }
    };
    let worker = leasehold.worker().handle(handle).retention(keep).start().unwrap();
    let (good, bad) = (add(&leasehold, "good").await, add(&leasehold, "bad").await);
    until_state(&leasehold, good, TaskState::Succeeded).await;
    until_state(&leasehold, bad, TaskState::Failed).await;
    // The worker writes its retention for all processes that purge.
    until("the record", async || tasks.retention(&queue("say")).await.unwrap() == keep).await;
    worker.stop(Duration::ZERO).await;
    let gone = aborted(&leasehold, "say").await;
    clock.advance(2 * HOUR);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert!(!is_known(&leasehold, good).await);
    clock.advance(30 * DAY);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert!(!is_known(&leasehold, gone).await && is_known(&leasehold, bad).await);
}

/// The default applies to every queue without a record, and a worker without a retention changes no
/// record.
#[tokio::test]
async fn tasks_that_one_process_keeps_are_not_purged_by_another() {
    let (leasehold, clock) = manual();
    let tasks = leasehold.tasks().unwrap();
    let handle = |_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) };
    let keeps = leasehold.worker().handle(handle).keep_finished(None).start().unwrap();
    until("the record", async || tasks.retention(&queue("say")).await.unwrap() == Retention::all(None)).await;
    keeps.stop(Duration::ZERO).await;
    let other = leasehold.worker().handle(handle).start().unwrap();
    let id = add(&leasehold, "good").await;
    until_state(&leasehold, id, TaskState::Succeeded).await;
    other.stop(Duration::ZERO).await;
    tasks.set_retention(None, Some(Retention::all(Some(hours(1))))).await.unwrap();
    assert_eq!(tasks.default_retention().await.unwrap(), Retention::all(Some(hours(1))));
    clock.advance(100 * DAY);
    assert_eq!(tasks.apply_retention().await.unwrap(), 0);
    assert!(is_known(&leasehold, id).await);
}

/// An event that is delivered again after ten days starts no execution, although its execution was
/// archived.
#[tokio::test]
async fn archived_executions_are_kept_for_a_month() {
    let (leasehold, clock) = manual();
    let tasks = leasehold.tasks().unwrap();
    tasks.set_retention(None, Some(Retention::all(Some(hours(1))))).await.unwrap();
    let start = async || {
        let started = leasehold.workflow("deploy").key("event-1").start("v1").await.unwrap();
        started.execution().unwrap().id
    };
    let first = start().await;
    let workflows = leasehold.workflows().unwrap();
    workflows.abort(first, Holder::new("ada").unwrap(), None).await.unwrap();
    let filter =
        FinishedFilter { queue: None, state: None, before: clock.now().plus(Ttl::from_secs(1)), limit: 10 };
    assert_eq!(tasks.archive(&filter).await.unwrap(), 1);
    clock.advance(10 * DAY);
    assert_eq!(tasks.apply_retention().await.unwrap(), 0);
    assert_eq!(start().await, first);
    // An operator cannot purge it either, neither by its queue nor with all queues.
    let other = aborted(&leasehold, "mail").await;
    for queue in [Some(queue("workflow/deploy")), None] {
        let all =
            FinishedFilter { queue, state: None, before: clock.now().plus(Ttl::from_secs(1)), limit: 10 };
        tasks.purge(&all).await.unwrap();
    }
    assert!(!is_known(&leasehold, other).await);
    assert_eq!(start().await, first);
    clock.advance(21 * DAY);
    assert_eq!(tasks.apply_retention().await.unwrap(), 1);
    assert_ne!(start().await, first);
    let all = ListTasks::default().archived(true);
    assert_eq!(tasks.list(&all).await.unwrap().items.len(), 1);
}
