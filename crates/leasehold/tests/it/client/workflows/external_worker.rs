//! Executions that an external worker runs, by id and token.

use std::time::Duration;

use leasehold::model::{Payload, Progress, TaskState};
use leasehold::testing::Fault;
use leasehold::{ExecutionEnd, StartResult};

use super::fixture::{Lab, ada, deploy, reason, ttl};
use crate::client::support::{faulty, memory, until};

pub(crate) async fn an_external_worker_takes_renews_and_completes_an_execution(lab: Lab) {
    let (here, there) = (lab.one.workflows().unwrap(), lab.two.workflows().unwrap());
    assert!(here.take(&[deploy()], ttl()).await.unwrap().is_none());
    let started = lab.started(lab.deploy(), "v1").await;
    let taken = here.take(&[deploy()], ttl()).await.unwrap().unwrap();
    assert_eq!((taken.id, taken.state), (started.id, TaskState::Running));
    assert!(there.take(&[deploy()], ttl()).await.unwrap().is_none(), "one at a time");
    let held = lab.two.locks().status(&deploy().lock()).await.unwrap();
    assert_eq!(held.holder, Some(taken.id.holder()));
    // Heartbeats may arrive through any server.
    let asked = there.heartbeat(taken.id, taken.token, ttl(), Some(Progress::of(1, 2))).await.unwrap();
    assert!(asked.is_none());
    assert_eq!(lab.get(taken.id).await.progress, Some(Progress::of(1, 2)));
    let renewed = lab.two.locks().status(&deploy().lock()).await.unwrap();
    assert!(renewed.expires_at > held.expires_at && renewed.token == held.token);
    let end = ExecutionEnd::Succeeded(Payload::new("{\"hosts\":3}").ok());
    let done = there.complete(taken.id, taken.token, end.clone()).await.unwrap();
    assert_eq!((done.state, done.result.unwrap().as_str()), (TaskState::Succeeded, "{\"hosts\":3}"));
    assert!(!lab.one.locks().status(&deploy().lock()).await.unwrap().is_locked);
    let again = here.complete(taken.id, taken.token, end).await.unwrap();
    assert_eq!(again.state, TaskState::Succeeded, "a repeated completion changes nothing");
    let error = here.heartbeat(taken.id, taken.token, ttl(), None).await.unwrap_err();
    assert_eq!(error.code(), "EXECUTION_FINISHED");
    assert!(lab.one.tasks().unwrap().workers().await.unwrap().is_empty());
}

pub(crate) async fn the_result_of_a_stale_token_is_rejected(lab: Lab) {
    let workflows = lab.one.workflows().unwrap();
    let started = lab.started(lab.deploy().key("k"), "v1").await;
    let short = leasehold::model::Ttl::from_millis(100);
    let stale = workflows.take(&[deploy()], short).await.unwrap().unwrap();
    let recovered = async || lab.two.tasks().unwrap().recover(10).await.unwrap().failed == 1;
    until("its lease expires", recovered).await;
    assert_eq!(lab.get(started.id).await.state, TaskState::Failed);
    let next = lab.started(lab.deploy().key("k"), "v1").await;
    let taken = workflows.take(&[deploy()], ttl()).await.unwrap().unwrap();
    assert_eq!(taken.id, next.id);
    for error in [
        workflows.complete(stale.id, stale.token, ExecutionEnd::Succeeded(None)).await.unwrap_err(),
        workflows.heartbeat(stale.id, stale.token, ttl(), None).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), "STALE_TOKEN");
    }
    let held = lab.two.locks().status(&deploy().lock()).await.unwrap();
    assert_eq!(held.holder, Some(next.id.holder()), "the stale worker has not released the lock");
    workflows.complete(taken.id, taken.token, ExecutionEnd::Succeeded(None)).await.unwrap();
}

pub(crate) async fn an_abort_is_reported_with_the_next_heartbeat(lab: Lab) {
    let workflows = lab.one.workflows().unwrap();
    lab.started(lab.deploy(), "v1").await;
    let taken = workflows.take(&[deploy()], ttl()).await.unwrap().unwrap();
    workflows.abort(taken.id, ada(), Some(reason())).await.unwrap();
    let asked = workflows
        .heartbeat(taken.id, taken.token, ttl(), None)
        .await
        .unwrap()
        .expect("the request is reported");
    assert_eq!((asked.by, asked.reason), (ada(), Some(reason())));
    let aborted = workflows.complete(taken.id, taken.token, ExecutionEnd::Aborted(None)).await.unwrap();
    assert_eq!(aborted.reason.as_deref(), Some("the wrong branch (by ada)"));
}

pub(crate) async fn an_execution_whose_lock_has_another_holder_is_not_taken(lab: Lab) {
    let workflows = lab.one.workflows().unwrap();
    let started = lab.started(lab.deploy(), "v1").await;
    let guard = lab.two.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    assert!(workflows.take(&[deploy()], ttl()).await.unwrap().is_none());
    let waits = lab.get(started.id).await;
    assert_eq!(waits.state, TaskState::Pending, "it is still next to run");
    guard.release().await.unwrap();
    let taken = async || {
        workflows.take(&[deploy()], ttl()).await.unwrap().is_some_and(|taken| taken.id == started.id)
    };
    until("it can be taken when the lock is free", taken).await;
}

pub(crate) async fn an_external_worker_waits_in_the_queue_of_the_lock(lab: Lab) {
    let workflows = lab.one.workflows().unwrap();
    let started = lab.started(lab.deploy(), "v1").await;
    let guard = lab.two.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    let (short, long) = (Duration::from_secs(2), Duration::from_secs(15));
    assert!(workflows.take_within(&[deploy()], ttl(), short).await.unwrap().is_none());
    assert_eq!(
        lab.get(started.id).await.state,
        TaskState::Pending,
        "it was returned, and keeps its position"
    );
    let waiting = tokio::spawn(async move { workflows.take_within(&[deploy()], ttl(), long).await });
    until("it waits", async || lab.two.locks().status(&deploy().lock()).await.unwrap().waiters.len() == 1)
        .await;
    assert_eq!(lab.locked(lab.deploy(), "v2").await.0, None, "the lock has another holder");
    guard.release().await.unwrap();
    let taken = waiting.await.unwrap().unwrap().expect("the lock was free");
    assert_eq!(taken.id, started.id);
    let held = lab.two.locks().status(&deploy().lock()).await.unwrap().holders.remove(0);
    assert_eq!(held.holder, taken.id.holder());
    let lasts = held.expires_at.since(held.renewed_at);
    assert!(lasts > Duration::from_secs(50), "it has its whole ttl before the first heartbeat: {lasts:?}");
    let workflows = lab.two.workflows().unwrap();
    workflows.complete(taken.id, taken.token, ExecutionEnd::Succeeded(None)).await.unwrap();
    assert!(!lab.one.locks().status(&deploy().lock()).await.unwrap().is_locked);
}

/// The caller gets no execution: the execution must not stay leased until it fails.
#[tokio::test]
async fn an_execution_whose_lock_request_fails_is_returned() {
    let (store, here, there) = faulty();
    let StartResult::Started(started) = there.workflow("deploy").start("v1").await.unwrap() else {
        panic!("not started")
    };
    // The lease comes through, the request for the lock does not.
    store.plan([Fault::None, Fault::LoseRequest]);
    here.workflows().unwrap().take(&[deploy()], ttl()).await.unwrap_err();
    let execution = there.workflows().unwrap().get(started.id).await.unwrap();
    assert_eq!(execution.state, TaskState::Pending);
    let taken = here.workflows().unwrap().take(&[deploy()], ttl()).await.unwrap().expect("it is available");
    assert_eq!(taken.id, started.id);
}

/// The store has granted the lock. A caller that takes the execution again, and waits for the lock, must not
/// wait for that lease to expire.
#[tokio::test]
async fn an_execution_whose_lock_answer_is_lost_is_returned_without_its_lock() {
    let (store, here, there) = faulty();
    let StartResult::Started(started) = there.workflow("deploy").start("v1").await.unwrap() else {
        panic!("not started")
    };
    store.plan([Fault::None, Fault::LoseAnswer]);
    here.workflows().unwrap().take(&[deploy()], ttl()).await.unwrap_err();
    let execution = there.workflows().unwrap().get(started.id).await.unwrap();
    assert_eq!(execution.state, TaskState::Pending);
    assert!(!there.locks().status(&deploy().lock()).await.unwrap().is_locked);
    let long = Duration::from_secs(15);
    let taken = here.workflows().unwrap().take_within(&[deploy()], ttl(), long).await.unwrap();
    assert_eq!(taken.expect("it is available").id, started.id);
}

#[tokio::test]
async fn an_execution_whose_caller_is_gone_is_returned_without_its_lock() {
    let leasehold = memory().await;
    let StartResult::Started(started) = leasehold.workflow("deploy").start("v1").await.unwrap() else {
        panic!("not started")
    };
    let guard = leasehold.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    let (workflows, long) = (leasehold.workflows().unwrap(), Duration::from_secs(15));
    let waiting = tokio::spawn(async move { workflows.take_within(&[deploy()], ttl(), long).await });
    let status = async || leasehold.locks().status(&deploy().lock()).await.unwrap();
    until("it waits", async || status().await.waiters.len() == 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    guard.release().await.unwrap();
    let state = async || leasehold.workflows().unwrap().get(started.id).await.unwrap().state;
    until("it is returned", async || state().await == TaskState::Pending).await;
    // The request is withdrawn in the background, so the release above may grant it for a moment.
    until("its lock is free", async || !status().await.is_locked).await;
}

#[tokio::test]
async fn an_execution_whose_lock_is_granted_but_not_confirmed_is_returned() {
    let (store, here, there) = faulty();
    let StartResult::Started(started) = there.workflow("deploy").start("v1").await.unwrap() else {
        panic!("not started")
    };
    let guard = there.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    let (workflows, long) = (here.workflows().unwrap(), Duration::from_secs(15));
    let waiting = tokio::spawn(async move { workflows.take_within(&[deploy()], ttl(), long).await });
    let status = async || there.locks().status(&deploy().lock()).await.unwrap();
    until("it waits", async || status().await.waiters.len() == 1).await;
    // The grant is delivered to the waiter without a call of the store; the confirmation does not arrive.
    store.hold_settlements(true);
    store.from_now_on(Fault::LoseRequest);
    guard.release().await.unwrap();
    until("the execution is being returned", async || store.task_calls().1 == 1).await;
    store.from_now_on(Fault::None);
    store.hold_settlements(false);
    waiting.await.unwrap().unwrap_err();
    let execution = there.workflows().unwrap().get(started.id).await.unwrap();
    assert_eq!(execution.state, TaskState::Pending);
    until("its lock is released", async || !status().await.is_locked).await;
}
