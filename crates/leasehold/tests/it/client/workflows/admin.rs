//! Queries, aborting, unlocking, and stale locks.

use std::time::Duration;

use leasehold::model::{
    EventKind, ExecutionId, ExecutionInput, ExecutionSpec, Payload, Reuse, TaskId, TaskKey, TaskState,
};
use leasehold::store::ListEvents;
use leasehold::{Error, ExecutionEnd, ListExecutions, OnLocked};
use uuid::Uuid;

use super::fixture::{Lab, ada, deploy, reason, ttl};
use crate::client::support::{faulty, until};

fn unknown_execution() -> ExecutionId {
    TaskId::from_uuid(Uuid::now_v7()).into()
}

pub(crate) async fn executions_are_listed_by_workflow_and_state(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    lab.one.enqueue_to("mail", leasehold::model::Payload::default()).await.unwrap();
    let first = lab.started(lab.deploy(), "v1").await;
    lab.done().await;
    let second = lab.started(lab.deploy(), "v2").await;
    let other = lab.one.workflow("other").start("v1").await.unwrap().execution().unwrap().id;
    let list = async |query: ListExecutions| {
        let items = workflows.executions(&query).await.unwrap().items;
        items.into_iter().map(|execution| execution.id).collect::<Vec<_>>()
    };
    assert_eq!(list(ListExecutions::default()).await, [other, second.id, first.id], "no other tasks");
    let of_deploy = ListExecutions::default().workflow(deploy());
    assert_eq!(list(of_deploy.clone()).await, [second.id, first.id]);
    assert_eq!(list(of_deploy.state(TaskState::Succeeded)).await, [first.id]);
    let all: Vec<_> = workflows.list().await.unwrap();
    let names: Vec<_> = all.iter().map(|status| status.workflow.as_str().to_owned()).collect();
    assert_eq!(names, ["deploy", "other"]);
    assert_eq!(all[0].counts.get(TaskState::Succeeded), 1);
    let task = lab.one.enqueue_to("mail", leasehold::model::Payload::default()).await.unwrap().id;
    for unknown in [unknown_execution(), task.into()] {
        assert!(matches!(workflows.get(unknown).await, Err(Error::UnknownExecution(id)) if id == unknown));
    }
}

pub(crate) async fn executions_of_several_workflows_are_listed_in_pages(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    let none = workflows.executions(&ListExecutions::default()).await.unwrap();
    assert!(none.items.is_empty() && none.next.is_none());
    let mut started = Vec::new();
    for number in 0..12 {
        let workflow = ["build", "deploy", "build", "test", "build", "build"][number % 6];
        let start = lab.one.workflow(workflow).on_locked(OnLocked::Queue(50)).start(&number).await;
        started.push(start.unwrap().execution().unwrap().id);
        lab.one.enqueue_to("mail", leasehold::model::Payload::default()).await.unwrap();
    }
    started.reverse();
    for limit in [1, 2, 3, 5, 11, 12, 100] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page =
                workflows.executions(&ListExecutions::default().limit(limit).after(after)).await.unwrap();
            assert!(page.items.len() <= limit as usize, "{} executions of {limit}", page.items.len());
            found.extend(page.items.into_iter().map(|execution| execution.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, started, "pages of {limit}");
    }
}

/// Any caller that may add tasks can write the payload of an execution. The name of the queue is too long for
/// the name of a workflow.
pub(crate) async fn an_execution_that_claims_to_retry_a_plain_task_is_listed_alone(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    let plain = lab.one.enqueue_to("q".repeat(250), Payload::default()).await.unwrap().id;
    let spec = ExecutionSpec::new(ExecutionInput::of("v1").unwrap());
    let spec = ExecutionSpec { retry_of: Some(plain.into()), ..spec };
    let claimed = lab.one.enqueue_to(deploy().queue(), Payload::of(&spec).unwrap()).key("k");
    let claimed: ExecutionId = claimed.await.unwrap().id.into();
    let found = workflows.with_key(Some(&deploy()), &TaskKey::new("k").unwrap(), 10).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|execution| execution.id).collect();
    assert_eq!(found, [claimed]);
    let error = workflows.renew_runner(plain.into(), ttl()).await.unwrap_err();
    assert_eq!(error.code(), "UNKNOWN_EXECUTION");
}

/// The engine examines few tasks in one read, and most of them are no executions.
#[tokio::test]
async fn no_execution_is_left_out_where_the_engine_searches_for_long() {
    let (store, here, there) = faulty();
    let mut started = Vec::new();
    for number in 0..40 {
        // The executions of the one workflow are rare.
        let workflow = if number % 15 == 0 { "rare" } else { "frequent" };
        let start = there.workflow(workflow).on_locked(OnLocked::Queue(50)).start(&number).await;
        started.push(start.unwrap().execution().unwrap().id);
        for _ in 0..3 {
            there.enqueue_to("mail", leasehold::model::Payload::default()).await.unwrap();
        }
    }
    started.reverse();
    let workflows = here.workflows().unwrap();
    for examined in [1, 3, 10, 17, 40, 80, 200] {
        store.examine_at_most(examined);
        for limit in [1, 2, 5, 7, 20, 39, 40, 100] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let query = ListExecutions::default().limit(limit).after(after);
                let page = workflows.executions(&query).await.unwrap();
                assert!(page.items.len() <= limit as usize);
                found.extend(page.items.iter().map(|execution| execution.id));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, started, "{examined} examined, {limit} per page");
        }
    }
}

pub(crate) async fn the_lock_of_a_workflow_names_its_holder(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    let free = workflows.lock(&deploy()).await.unwrap();
    assert_eq!((free.is_locked, free.is_stale, free.execution_id, free.holder), (false, false, None, None));
    let started = lab.started(lab.deploy(), "v1").await;
    let next = workflows.lock(&deploy()).await.unwrap();
    assert_eq!(
        (next.is_locked, next.execution_id, next.holder),
        (true, Some(started.id), None),
        "it is about to run"
    );
    let guard = lab.two.lock("workflow/other").holder("bob").acquire().await.unwrap();
    let other = leasehold::model::WorkflowName::new("other").unwrap();
    let other_lock = workflows.lock(&other).await.unwrap();
    assert_eq!((other_lock.is_locked, other_lock.is_stale, other_lock.execution_id), (true, false, None));
    assert_eq!(other_lock.holder.unwrap().as_str(), "bob");
    let json = serde_json::to_value(workflows.lock(&deploy()).await.unwrap()).unwrap();
    for field in ["isLocked", "executionId", "lockedSince", "isStale", "token"] {
        assert!(json.get(field).is_some(), "{field} in {json}");
    }
    guard.release().await.unwrap();
}

/// As if a start had crashed between acquiring the lock and writing the execution, or a worker
/// before the release.
pub(crate) async fn a_lock_whose_execution_does_not_exist_is_cleared_by_a_start(lab: Lab) {
    let guard = lab.two.lock("workflow/deploy").holder(unknown_execution().holder()).acquire().await.unwrap();
    let workflows = lab.two.workflows().unwrap();
    let stale = workflows.lock(&deploy()).await.unwrap();
    assert_eq!((stale.is_locked, stale.is_stale), (false, true));
    lab.started(lab.deploy(), "v1").await;
    assert!(!lab.two.locks().status(&deploy().lock()).await.unwrap().is_locked);
    let query = ListEvents::default().lock(deploy().lock());
    let events = lab.two.locks().history(&query).await.unwrap().items;
    let forced = events.iter().find(|event| event.kind == EventKind::Forced).expect("there is an event");
    assert!(forced.reason.as_ref().unwrap().as_str().starts_with("stale: exec_"));
    drop(guard);
}

/// The execution ends, and releases its lock, after the list of locks was read.
#[tokio::test]
async fn a_lock_that_its_execution_releases_meanwhile_is_not_cleared() {
    let (store, here, there) = faulty();
    assert!(there.workflow("deploy").start("v1").await.unwrap().execution().is_some());
    let workflows = there.workflows().unwrap();
    let taken = workflows.take(&[deploy()], ttl()).await.unwrap().expect("its lock is free");
    store.hold_lock_lists(true);
    let sweep = tokio::spawn(async move { here.locks().sweep(10).await });
    until("the list was read", async || store.lock_lists() == 1).await;
    workflows.complete(taken.id, taken.token, ExecutionEnd::Succeeded(None)).await.unwrap();
    store.hold_lock_lists(false);
    assert_eq!(sweep.await.unwrap().unwrap().leases, 0, "it was not held by then");
    assert_eq!(store.sent(), [], "nothing was taken by force");
}

/// Over HTTP, only an administrator may take a lock by force.
#[tokio::test]
async fn a_caller_that_may_not_clear_a_stale_lock_can_start_and_take() {
    let (store, here, there) = faulty();
    store.forbid_force();
    let guard = there.lock("workflow/deploy").holder(unknown_execution().holder()).acquire().await.unwrap();
    let start = here.workflow("deploy").start("v1").await.unwrap();
    let started = start.execution().unwrap().id;
    let workflows = here.workflows().unwrap();
    assert!(workflows.take(&[deploy()], ttl()).await.unwrap().is_none(), "its lock is held");
    assert_eq!(store.task_calls().0, 0, "the execution is not leased only to be returned");
    guard.release().await.unwrap();
    let taken = workflows.take(&[deploy()], ttl()).await.unwrap().expect("its lock is free");
    assert_eq!(taken.id, started);
}

pub(crate) async fn a_lock_whose_execution_has_finished_is_cleared_by_maintenance(lab: Lab) {
    let done = lab.started(lab.deploy(), "v1").await;
    lab.done().await;
    let guard = lab.two.lock("workflow/deploy").holder(done.id.holder()).acquire().await.unwrap();
    let other_lock = lab.two.lock("workflow/other").holder("bob").acquire().await.unwrap();
    let maintenance = lab.one.maintain_locks(Duration::from_millis(20), Some(leasehold::FORGET_LOCKS_AFTER));
    let is_locked = async |name: &str| {
        lab.two.locks().status(&leasehold::model::LockName::new(name).unwrap()).await.unwrap().is_locked
    };
    until("it is cleared", async || !is_locked("workflow/deploy").await).await;
    assert!(is_locked("workflow/other").await, "a holder that is not an execution keeps its lock");
    drop((maintenance, guard, other_lock));
}

pub(crate) async fn a_waiting_execution_is_aborted_at_once_and_a_finished_one_is_not(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    let first = lab.started(lab.deploy(), "v1").await;
    let start = lab.deploy().on_locked(OnLocked::Queue(1)).start("v2").await.unwrap();
    let second = start.execution().unwrap().id;
    assert_eq!(workflows.abort(second, ada(), None).await.unwrap().reason.as_deref(), Some("by ada"));
    assert_eq!(workflows.abort(first.id, ada(), Some(reason())).await.unwrap().state, TaskState::Aborted);
    let error = workflows.abort(first.id, ada(), None).await.unwrap_err();
    assert_eq!(error.code(), "EXECUTION_FINISHED");
    let finished = |error| matches!(error, Error::ExecutionFinished { execution, state: TaskState::Aborted } if execution == first.id);
    assert!(finished(error));
    assert_eq!(
        workflows.abort(unknown_execution(), ada(), None).await.unwrap_err().code(),
        "UNKNOWN_EXECUTION"
    );
    lab.started(lab.deploy(), "v3").await;
}

pub(crate) async fn unlocking_allows_the_next_start(lab: Lab) {
    let workflows = lab.two.workflows().unwrap();
    let started = lab.started(lab.deploy(), "v1").await;
    let taken = workflows.take(&[deploy()], ttl()).await.unwrap().unwrap();
    let free = workflows.unlock(&deploy(), ada(), reason()).await.unwrap();
    assert_eq!((free.is_locked, free.execution_id), (false, None));
    let aborted = lab.get(started.id).await;
    assert_eq!(aborted.reason.as_deref(), Some("unlocked: the wrong branch (by ada)"));
    let error = workflows
        .complete(taken.id, taken.token, leasehold::ExecutionEnd::Succeeded(None))
        .await
        .unwrap_err();
    assert_eq!(error.code(), "EXECUTION_FINISHED", "its later work does not count");
    assert!(workflows.heartbeat(taken.id, taken.token, ttl(), None).await.is_err());
    let guard = lab.two.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    workflows.unlock(&deploy(), ada(), reason()).await.unwrap();
    lab.started(lab.deploy(), "v2").await;
    workflows.unlock(&deploy(), ada(), reason()).await.unwrap();
    lab.started(lab.deploy(), "v3").await;
    drop(guard);
}

pub(crate) async fn an_expired_execution_is_recovered_by_the_next_start(lab: Lab) {
    for key in ["the same", "another"] {
        recovered_by(&lab, key).await;
        lab.done().await;
    }
}

async fn recovered_by(lab: &Lab, key: &str) {
    let dead = lab.started(lab.deploy().key("the same").reuse(Reuse::Finished), "v1").await;
    let workflows = lab.one.workflows().unwrap();
    workflows.take(&[deploy()], leasehold::model::Ttl::from_millis(100)).await.unwrap().unwrap();
    let lease_is_over = async || {
        let lock = workflows.lock(&deploy()).await.unwrap();
        lock.is_stale && !lock.is_locked
    };
    until("its lease has expired", lease_is_over).await;
    let next = lab.started(lab.deploy().key(key), "v1").await;
    let failed = lab.get(dead.id).await;
    assert_eq!((failed.state, failed.reason.as_deref()), (TaskState::Failed, Some("lease expired")));
    assert_eq!(next.retry_of, (key == "the same").then_some(dead.id));
}
