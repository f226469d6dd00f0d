//! Ends of executions: success, failure, timeout, abort, loss, shutdown of the worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::model::{ExecutionInput, LockName, TaskState, Ttl};
use leasehold::{HandlerError, OnLocked, StartResult, TaskContext};
use tokio::sync::Notify;

use super::fixture::{Lab, TTL, ada, deploy, reason, runner, runner_with};
use crate::client::support::until;

fn lock() -> LockName {
    deploy().lock()
}

pub(crate) async fn an_execution_holds_the_lock_under_its_own_name_until_it_is_done(lab: Lab) {
    let (worker, active) = runner(&lab.one);
    let running = lab.started(lab.deploy(), "hang").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    let status = lab.two.locks().status(&lock()).await.unwrap();
    assert_eq!(status.holder, Some(running.id.holder()));
    let held = lab.two.workflows().unwrap().lock(&deploy()).await.unwrap();
    assert_eq!((held.is_locked, held.is_stale, held.execution_id), (true, false, Some(running.id)));
    assert_eq!((held.holder, held.token), (Some(running.id.holder()), status.token));
    assert!(held.locked_since.is_some() && held.expires_at > held.locked_since);
    lab.two.workflows().unwrap().abort(running.id, ada(), Some(reason())).await.unwrap();
    let aborted = lab.until(running.id, TaskState::Aborted).await;
    assert_eq!(aborted.reason.as_deref(), Some("the wrong branch (by ada)"));

    let done = lab.started(lab.deploy(), "ok").await;
    let done = lab.until(done.id, TaskState::Succeeded).await;
    assert_eq!(done.result.unwrap().read::<String>().unwrap(), done.id.to_string());
    until("the lock is free", async || !lab.two.locks().status(&lock()).await.unwrap().is_locked).await;
    worker.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn a_failed_handler_fails_the_execution_at_once(lab: Lab) {
    let (worker, _) = runner(&lab.one);
    let started = lab.started(lab.deploy(), "fail").await;
    let failed = lab.until(started.id, TaskState::Failed).await;
    assert_eq!(failed.reason.as_deref(), Some("no such host"));
    let wrong = match lab.deploy().start(&17).await.unwrap() {
        StartResult::Started(execution) => lab.until(execution.id, TaskState::Failed).await,
        other => panic!("{other:?}"),
    };
    assert!(wrong.reason.unwrap().contains("cannot be read as"), "an input of another type");
    worker.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn text_that_is_not_json_reaches_a_raw_handler_unchanged(lab: Lab) {
    let worker =
        lab.one.worker().workflow_raw("deploy", TTL, |run: TaskContext<ExecutionInput>| async move {
            Ok::<_, HandlerError>(String::from_utf8_lossy(run.payload.bytes()).into_owned())
        });
    let worker = worker.start().unwrap();
    for text in ["a=1&b=%20", "{\"a\":  1.0 }\n"] {
        let start = lab.deploy().on_locked(OnLocked::Queue(5)).start_raw(text.as_bytes()).await.unwrap();
        let done = lab.until(start.execution().unwrap().id, TaskState::Succeeded).await;
        assert_eq!(done.result.unwrap().read::<String>().unwrap(), text);
    }
    worker.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn an_execution_that_exceeds_its_run_time_is_aborted_and_the_next_one_runs(lab: Lab) {
    let (worker, _) = runner(&lab.one);
    let slow = lab.deploy().key("k").max_runtime(Duration::from_millis(50));
    let slow = lab.started(slow, "hang").await;
    let next = lab.deploy().on_locked(OnLocked::Queue(1)).start("ok").await.unwrap();
    let aborted = lab.until(slow.id, TaskState::Aborted).await;
    assert_eq!(aborted.reason.as_deref(), Some("timeout: it ran for 50ms"));
    lab.until(next.execution().unwrap().id, TaskState::Succeeded).await;
    assert_eq!(lab.duplicate(lab.deploy().key("k"), "hang").await.id, slow.id, "aborted is not failed");
    worker.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn an_aborted_execution_keeps_its_lock_until_its_handler_has_ended(lab: Lab) {
    // Long enough for renewals in time on a busy machine.
    let ttl = TTL * 3;
    let (cancelled, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify, wait) = (cancelled.clone(), may_end.clone());
    let worker = lab.one.worker().cooperative_cancellation().workflow_raw(
        "deploy",
        ttl,
        move |run: TaskContext<ExecutionInput>| {
            let (notify, wait) = (notify.clone(), wait.clone());
            async move {
                run.lost().await;
                notify.notify_one();
                wait.notified().await;
                Err::<(), _>(HandlerError::fail("killed"))
            }
        },
    );
    let worker = worker.start().unwrap();
    let running = lab.started(lab.deploy(), "v1").await;
    until("it has the lock", async || lab.two.locks().status(&lock()).await.unwrap().is_locked).await;
    let requested = lab.two.workflows().unwrap().abort(running.id, ada(), Some(reason())).await.unwrap();
    assert_eq!((requested.state, requested.cancel_requested_by), (TaskState::Running, Some(ada())));
    cancelled.notified().await;
    tokio::time::sleep(ttl + ttl / 2).await;
    assert_eq!(lab.locked(lab.deploy(), "v2").await.0, Some(running.id), "longer than its ttl");
    assert_eq!(lab.two.locks().status(&lock()).await.unwrap().holder, Some(running.id.holder()));
    may_end.notify_one();
    let aborted = lab.until(running.id, TaskState::Aborted).await;
    assert_eq!(aborted.reason.as_deref(), Some("the wrong branch (by ada)"));
    lab.started(lab.deploy(), "v2").await;
    may_end.notify_one();
    worker.stop(Duration::ZERO).await;
}

pub(crate) async fn a_stopping_worker_aborts_its_execution_and_has_prefetched_none(lab: Lab) {
    let worker = lab.one.worker().slots(1).prefetch(5);
    let worker = worker.workflow("deploy", TTL, async |_: TaskContext<String>| {
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let worker = worker.workflow("other", TTL, async |_: TaskContext<String>| Ok::<_, HandlerError>(()));
    let worker = worker.start().unwrap();
    let running = lab.started(lab.deploy().key("k"), "v1").await;
    lab.until(running.id, TaskState::Running).await;
    until("it has the lock", async || lab.two.locks().status(&lock()).await.unwrap().is_locked).await;
    let start = lab.one.workflow("other").start("v1").await.unwrap();
    // An execution has one attempt, so it is leased only when it can be started.
    let next = start.execution().unwrap().id;
    worker.stop(Duration::from_millis(50)).await;
    let aborted = lab.get(running.id).await;
    assert_eq!(aborted.state, TaskState::Aborted);
    assert!(aborted.reason.unwrap().starts_with("shutdown"));
    assert_eq!(lab.get(next).await.state, TaskState::Pending);
    lab.started(lab.deploy().key("l"), "v1").await;
}

pub(crate) async fn an_execution_keeps_its_position_while_another_holder_has_the_lock(lab: Lab) {
    let (worker, active) = runner(&lab.one);
    let guard = lab.two.lock(lock()).holder("bob").acquire().await.unwrap();
    let start = lab.deploy().on_locked(OnLocked::Queue(1)).start("ok").await.unwrap();
    let waits = start.execution().unwrap().id;
    until("it waits for the lock", async || {
        !lab.two.locks().status(&lock()).await.unwrap().waiters.is_empty()
    })
    .await;
    let status = lab.two.locks().status(&lock()).await.unwrap();
    assert_eq!(status.waiters[0].holder, waits.holder());
    assert_eq!((active.load(Ordering::SeqCst), lab.get(waits).await.state), (0, TaskState::Running));
    guard.release().await.unwrap();
    lab.until(waits, TaskState::Succeeded).await;
    worker.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn an_execution_that_loses_its_lock_fails(lab: Lab) {
    // Long enough for a busy machine; the worker is notified at once.
    let (worker, active) = runner_with(&lab.one, Duration::from_secs(20));
    let running = lab.started(lab.deploy().key("k"), "hang").await;
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    let token = lab.two.locks().status(&lock()).await.unwrap().token;
    lab.two.locks().force_release(&lock(), token, ada(), reason()).await.unwrap();
    let failed = lab.until(running.id, TaskState::Failed).await;
    assert!(failed.reason.unwrap().starts_with("lease lost"));
    assert_eq!(active.load(Ordering::SeqCst), 0);
    assert_eq!(lab.started(lab.deploy().key("k"), "hang").await.retry_of, Some(running.id));
    worker.stop(Duration::ZERO).await;
}

pub(crate) async fn a_crashed_worker_leaves_a_failed_execution_and_a_reusable_key(lab: Lab) {
    let started = lab.started(lab.deploy().key("k"), "ok").await;
    let taken =
        lab.one.workflows().unwrap().take(&[deploy()], Ttl::new(TTL).unwrap()).await.unwrap().unwrap();
    assert_eq!(taken.id, started.id);
    // The caller that took it sends no heartbeat.
    let (worker, _) = runner(&lab.two);
    let failed = lab.until(started.id, TaskState::Failed).await;
    assert_eq!(failed.reason.as_deref(), Some("lease expired"));
    assert!(failed.token > taken.token, "the token of the dead worker is stale");
    let next = lab.started(lab.deploy().key("k"), "ok").await;
    assert_eq!((next.attempt, next.retry_of), (2, Some(started.id)));
    lab.until(next.id, TaskState::Succeeded).await;
    worker.stop(Duration::from_secs(5)).await;
}
