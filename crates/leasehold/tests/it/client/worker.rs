//! Workers: handlers, results, cancellation, shutdown.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::model::{Holder, Payload, Progress, RetryPolicy, TaskEventKind, TaskId, TaskState, Ttl};
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use super::support::{TTL, memory, name, until};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Say {
    pub(super) text: String,
}

impl TaskType for Say {
    const QUEUE: &'static str = "say";
    const TTL: Duration = TTL;
    const RETRIES: RetryPolicy =
        RetryPolicy { attempts: 2, initial_delay: Ttl::from_millis(1), max_delay: Ttl::from_millis(1) };
}

pub(super) async fn add(leasehold: &Leasehold, text: &str) -> TaskId {
    leasehold.enqueue(&Say { text: text.to_owned() }).await.unwrap().id
}

pub(super) async fn state(leasehold: &Leasehold, id: TaskId) -> TaskState {
    leasehold.tasks().unwrap().get(id).await.unwrap().state
}

pub(super) async fn until_state(leasehold: &Leasehold, id: TaskId, wanted: TaskState) {
    until(&format!("task {id} is {wanted}"), async || state(leasehold, id).await == wanted).await;
}

/// Starts a worker whose handlers run until they are cancelled, and counts the active handlers.
pub(super) fn endless(leasehold: &Leasehold, active: &Arc<AtomicU32>) -> Worker {
    struct Active(Arc<AtomicU32>);
    impl Drop for Active {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let worker = leasehold.worker().handle_with(active.clone(), |_: TaskContext<Say>, active| async move {
        active.fetch_add(1, Ordering::SeqCst);
        let _active = Active(active);
        std::future::pending::<Result<(), HandlerError>>().await
    });
    worker.start().unwrap()
}

#[tokio::test]
async fn a_handler_gets_the_payload_and_its_result_is_stored() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|task: TaskContext<Say>| async move {
        assert_eq!((task.attempt(), task.is_last_attempt()), (1, false));
        assert!(task.token().get() > 0);
        Ok::<_, HandlerError>(task.payload.text.to_uppercase())
    });
    let worker = worker.start().unwrap();
    let id = add(&leasehold, "hello").await;
    until_state(&leasehold, id, TaskState::Succeeded).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!(task.result, Payload::new("\"HELLO\"").ok());
    assert_eq!(task.worker, Some(worker.id()));
    worker.stop(Duration::from_secs(5)).await;
    assert!(leasehold.tasks().unwrap().workers().await.unwrap().is_empty(), "it has deregistered");
}

#[tokio::test]
async fn the_error_of_a_handler_decides_how_the_task_continues() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|task: TaskContext<Say>| async move {
        match (task.payload.text.as_str(), task.attempt()) {
            ("error", 1) => Err(std::io::Error::other("the disk is full").into()),
            ("later", 1) if task.task().events.is_empty() => {
                Err(HandlerError::snooze(Duration::from_millis(5)))
            }
            ("never", _) => Err(HandlerError::fail("no such video")),
            ("always", _) => Err(HandlerError::retry_in(Duration::from_millis(1), "not yet")),
            ("panic", 1) => panic!("oh {}", "no"),
            _ => Ok(()),
        }
    });
    let _worker = worker.start().unwrap();
    for (text, wanted, attempts, events) in [
        ("error", TaskState::Succeeded, 2, 1),
        ("later", TaskState::Succeeded, 1, 1),
        ("never", TaskState::Failed, 1, 1),
        ("always", TaskState::Failed, 2, 2),
        ("panic", TaskState::Succeeded, 2, 1),
    ] {
        let id = add(&leasehold, text).await;
        until_state(&leasehold, id, wanted).await;
        let task = leasehold.tasks().unwrap().get(id).await.unwrap();
        assert_eq!((task.attempt, task.events.len()), (attempts, events), "{text}");
        if text == "panic" {
            assert_eq!(task.events[0].why.as_ref().unwrap().as_str(), "the handler panicked: oh no");
        }
    }
}

#[tokio::test]
async fn an_unreadable_payload_fails_its_task_and_the_worker_continues() {
    let leasehold = memory().await;
    let worker =
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap();
    let odd = leasehold.enqueue_to("say", Payload::new("{\"txt\": 1}").unwrap()).await.unwrap().id;
    let good = add(&leasehold, "hello").await;
    until_state(&leasehold, good, TaskState::Succeeded).await;
    until_state(&leasehold, odd, TaskState::Failed).await;
    let error = leasehold.tasks().unwrap().get(odd).await.unwrap().error.unwrap();
    assert!(
        error.as_str().contains("cannot be read as") && error.as_str().contains("missing field `text`"),
        "{error}"
    );
    worker.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn the_number_of_running_tasks_is_limited() {
    let leasehold = memory().await;
    let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let both = (now.clone(), most.clone());
    let worker =
        leasehold.worker().slots(3).handle_with(both, |_: TaskContext<Say>, (now, most)| async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let _worker = worker.start().unwrap();
    let all: Vec<Say> = (0..60).map(|number| Say { text: number.to_string() }).collect();
    let ids = leasehold.enqueue_all(&all).await.unwrap();
    for id in ids {
        until_state(&leasehold, id, TaskState::Succeeded).await;
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn progress_is_visible_while_a_task_runs() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|task: TaskContext<Say>| async move {
        task.progress(Progress::of(3, 10).note("halfway, nearly"));
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let _worker = worker.start().unwrap();
    let id = add(&leasehold, "long").await;
    let progress = async || leasehold.tasks().unwrap().get(id).await.unwrap().progress;
    until("progress", async || progress().await.is_some()).await;
    assert_eq!(progress().await.unwrap().to_string(), "30 % halfway, nearly");
}

/// Each ttl has heartbeats of its own: those of the other queue must not be sent instead.
#[tokio::test]
async fn progress_is_visible_soon_beside_a_queue_with_another_ttl() {
    let leasehold = memory().await;
    let worker = leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) });
    let report = |task: TaskContext<Payload>| async move {
        task.progress(Progress::of(1, 2));
        std::future::pending::<Result<(), HandlerError>>().await
    };
    let _worker = worker.handle_queue("slow", Duration::from_mins(10), report).start().unwrap();
    for number in 0..6 {
        let id = leasehold.enqueue_to("slow", Payload::default()).await.unwrap().id;
        let progress = async || leasehold.tasks().unwrap().get(id).await.unwrap().progress;
        until(&format!("progress of task {number}"), async || progress().await.is_some()).await;
    }
}

#[tokio::test]
async fn a_cancelled_task_is_aborted() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let _worker = endless(&leasehold, &active);
    let id = add(&leasehold, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    leasehold.tasks().unwrap().cancel(id, Holder::new("ada").unwrap(), None).await.unwrap();
    until_state(&leasehold, id, TaskState::Aborted).await;
    assert_eq!(active.load(Ordering::SeqCst), 0, "its handler was dropped before the task was aborted");
}

#[tokio::test]
async fn a_stopping_worker_finishes_its_running_tasks() {
    let leasehold = memory().await;
    let begun = Arc::new(AtomicU32::new(0));
    let worker =
        leasehold.worker().slots(1).handle_with(begun.clone(), |task: TaskContext<Say>, begun| async move {
            begun.fetch_add(1, Ordering::SeqCst);
            task.worker_stopping().await;
            Ok::<_, HandlerError>(())
        });
    let worker = worker.prefetch(5).start().unwrap();
    let (first, second) = (add(&leasehold, "one").await, add(&leasehold, "two").await);
    until("one runs", async || begun.load(Ordering::SeqCst) == 1).await;
    worker.stop(Duration::from_secs(10)).await;
    assert_eq!(state(&leasehold, first).await, TaskState::Succeeded);
    let task = leasehold.tasks().unwrap().get(second).await.unwrap();
    assert_eq!(
        (task.state, task.attempt),
        (TaskState::Pending, 0),
        "the task that was not started was returned"
    );
}

#[tokio::test]
async fn tasks_not_done_within_the_grace_period_are_returned() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let worker = endless(&leasehold, &active);
    let id = add(&leasehold, "long").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    worker.stop(Duration::from_millis(20)).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.state, task.attempt, active.load(Ordering::SeqCst)), (TaskState::Pending, 0, 0));
    assert_eq!(task.events[0].kind, TaskEventKind::Returned);
    drop(endless(&leasehold, &active));
    until("returned by dropping the worker", async || state(&leasehold, id).await == TaskState::Pending)
        .await;
}

#[tokio::test]
async fn a_task_runs_when_it_is_due_and_not_at_the_next_poll() {
    let leasehold = memory().await;
    let _worker =
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap();
    let delay = Duration::from_millis(150);
    let id = leasehold.enqueue(&Say { text: "later".to_owned() }).delay(delay).await.unwrap().id;
    until_state(&leasehold, id, TaskState::Succeeded).await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    let late = task.leased_at.unwrap().since(task.run_at);
    assert!(late < Duration::from_millis(500), "{late:?} late");
}

#[tokio::test]
async fn a_task_holds_its_lock_while_it_runs() {
    let leasehold = memory().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = (leasehold.clone(), order.clone());
    let worker =
        leasehold.worker().handle_with(seen, |task: TaskContext<Say>, (leasehold, order)| async move {
            let status = leasehold.locks().status(&name("gpu")).await?;
            let is_held = status.holders.iter().any(|holder| Some(holder.token) == task.lock_token());
            assert_eq!(is_held, task.task().lock.is_some());
            order.lock().unwrap().push(task.payload.text.clone());
            Ok::<_, HandlerError>(())
        });
    // A holder that is not a task has the lock: the task waits, and other tasks do not.
    let guard = leasehold.lock("gpu").acquire().await.unwrap();
    let _worker = worker.start().unwrap();
    let locked = leasehold.enqueue(&Say { text: "locked".to_owned() }).lock("gpu").await.unwrap().id;
    let free = add(&leasehold, "free").await;
    until_state(&leasehold, free, TaskState::Succeeded).await;
    until_state(&leasehold, locked, TaskState::Running).await;
    guard.release().await.unwrap();
    until_state(&leasehold, locked, TaskState::Succeeded).await;
    assert_eq!(*order.lock().unwrap(), ["free", "locked"]);
    let task = leasehold.tasks().unwrap().get(locked).await.unwrap();
    assert_eq!(task.attempt, 1, "waiting for the lock does not count as an attempt");
}

#[tokio::test]
async fn a_running_worker_is_listed() {
    let leasehold = memory().await;
    let active = Arc::new(AtomicU32::new(0));
    let worker = endless(&leasehold, &active);
    add(&leasehold, "long").await;
    let workers = async || leasehold.tasks().unwrap().workers().await.unwrap();
    until("it is listed as busy", async || {
        workers().await.first().is_some_and(|worker| worker.info.busy == 1)
    })
    .await;
    let status = workers().await.remove(0);
    assert_eq!((status.info.id, status.info.pid, status.info.slots), (worker.id(), std::process::id(), 10));
    assert_eq!(status.info.version, env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn invalid_settings_are_rejected_at_the_start() {
    let leasehold = memory().await;
    let handler = |_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) };
    let message =
        |started: leasehold::Result<Worker>| started.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message(leasehold.worker().start()).contains("nothing to do"));
    assert!(message(leasehold.worker().slots(0).handle(handler).start()).contains("1 to 10000"));
    assert!(message(leasehold.worker().handle(handler).handle(handler).start()).contains("two handlers"));
    let short = leasehold.worker().handle_queue("q", Duration::ZERO, |_| async { Ok::<_, HandlerError>(()) });
    assert!(message(short.start()).contains("too short"));
}

#[tokio::test]
async fn a_handler_that_exceeds_its_maximum_run_time_is_retried() {
    let (leasehold, active) = (memory().await, Arc::new(AtomicU32::new(0)));
    let worker = leasehold.worker().max_runtime(Duration::from_millis(100));
    let worker = worker.handle_with(active.clone(), |_: TaskContext<Say>, active| async move {
        active.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let _worker = worker.start().unwrap();
    let id = add(&leasehold, "endless").await;
    until_state(&leasehold, id, TaskState::Failed).await;
    assert_eq!(active.load(Ordering::SeqCst), 2, "each attempt was started");
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!(task.error.unwrap().to_string(), "timeout: it ran for 100ms");
}

#[tokio::test]
async fn an_attempt_that_exceeds_the_timeout_of_its_task_has_failed() {
    let leasehold = memory().await;
    // The worker's own limit is longer, so the task's counts.
    let worker = leasehold.worker().max_runtime(Duration::from_mins(1));
    let worker = worker.handle(|context: TaskContext<Say>| async move {
        match context.payload.text.as_str() {
            "endless" => std::future::pending::<Result<(), HandlerError>>().await,
            _ => Ok(()),
        }
    });
    let _worker = worker.start().unwrap();
    let say = |text: &str| Say { text: text.to_owned() };
    let short = Duration::from_millis(100);
    let endless = leasehold.enqueue(&say("endless")).timeout(short).await.unwrap().id;
    let quick = leasehold.enqueue(&say("quick")).timeout(Duration::from_mins(1)).await.unwrap().id;
    until_state(&leasehold, quick, TaskState::Succeeded).await;
    until_state(&leasehold, endless, TaskState::Failed).await;
    let task = leasehold.tasks().unwrap().get(endless).await.unwrap();
    assert_eq!(task.error.unwrap().to_string(), "timeout: it ran for 100ms");
    let error = leasehold.enqueue(&say("never")).timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), "INVALID");
}

/// The run time counts from the start of the handler, not while the task waits for its lock.
#[tokio::test]
async fn waiting_for_a_lock_does_not_count_as_run_time() {
    let leasehold = memory().await;
    let worker = leasehold.worker().max_runtime(Duration::from_millis(200));
    let worker = worker.handle(|_: TaskContext<Say>| async move { Ok::<_, HandlerError>(()) });
    let guard = leasehold.lock("lock").acquire().await.unwrap();
    let _worker = worker.start().unwrap();
    let id = leasehold.enqueue(&Say { text: "a".to_owned() }).lock("lock").await.unwrap().id;
    until_state(&leasehold, id, TaskState::Running).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    guard.release().await.unwrap();
    until_state(&leasehold, id, TaskState::Succeeded).await;
}

#[tokio::test]
async fn an_interval_or_a_run_time_out_of_bounds_is_rejected() {
    let leasehold = memory().await;
    let plain = || leasehold.worker().handle(|_: TaskContext<Say>| async move { Ok::<_, HandlerError>(()) });
    for every in [Duration::ZERO, Duration::from_millis(9), Duration::from_hours(25)] {
        let error = plain().recover_every(every).start().err().unwrap();
        assert!(error.to_string().contains("out of bounds: 10ms to 1d"), "{error}");
    }
    assert!(plain().recover_every(Duration::from_mins(30)).start().is_ok());
    assert!(plain().max_runtime(Duration::ZERO).start().is_err());
}
