//! Concurrent starts from two handles on one store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::TaskState;
use leasehold::{
    Error, HandlerError, ListExecutions, OnLocked, StartBuilder, StartResult, StoreErrorKind, TaskContext,
};
use tokio::task::JoinSet;

use super::fixture::{Active, Lab, deploy};

/// Starts an execution, repeatedly if the engine of a busy machine exceeds the timeout of a call.
/// Returns the answer and the number of calls.
async fn start_with_retries(start: StartBuilder) -> (Result<StartResult, Error>, u32) {
    for tries in 1.. {
        match start.clone().start("v1").await {
            Err(Error::Store { kind: StoreErrorKind::Unavailable, .. }) if tries < 20 => {}
            answer => return (answer, tries),
        }
    }
    unreachable!("the number of calls is limited")
}

pub(crate) async fn a_hundred_starts_with_one_key_create_one_execution(lab: Lab) {
    let mut starts = JoinSet::new();
    for number in 0..100 {
        let leasehold = if number % 2 == 0 { &lab.one } else { &lab.two };
        let start = leasehold.workflow("deploy").key("event-1");
        starts.spawn(start_with_retries(start));
    }
    let starts = starts.join_all().await;
    let times = |times| starts.iter().filter(move |(_, tries)| *tries == times);
    let started = times(1).filter(|(start, _)| matches!(start, Ok(StartResult::Started(_)))).count();
    let ids: BTreeSet<_> =
        starts.iter().map(|(start, _)| start.as_ref().unwrap().execution().unwrap().id).collect();
    assert_eq!(ids.len(), 1);
    // No start reports `Started` only if the answer to the effective start was lost.
    assert!(started == 1 || (started == 0 && times(1).count() < starts.len()), "{started}");
    let all = lab.one.workflows().unwrap().executions(&ListExecutions::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

pub(crate) async fn of_fifty_starts_with_different_keys_one_is_accepted(lab: Lab) {
    let mut starts = JoinSet::new();
    for number in 0..50 {
        let leasehold = if number % 2 == 0 { &lab.one } else { &lab.two };
        let start = leasehold.workflow("deploy").key(format!("event-{number}").as_str());
        starts.spawn(start_with_retries(start));
    }
    let (mut accepted, mut conflicting) = (Vec::new(), BTreeSet::new());
    for (start, tries) in starts.join_all().await {
        match start {
            Ok(StartResult::Started(execution)) => accepted.push(execution.id),
            Ok(StartResult::Duplicate(execution)) if tries > 1 => accepted.push(execution.id),
            Err(error @ Error::WorkflowLocked { execution, raced, .. }) => {
                let code = if raced { "LOCK_ACQUISITION_FAILED" } else { "WORKFLOW_LOCKED" };
                assert_eq!(error.code(), code);
                conflicting.extend(execution);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(accepted.len(), 1);
    assert_eq!(conflicting, BTreeSet::from_iter(accepted));
}

pub(crate) async fn executions_of_one_workflow_never_run_together(lab: Lab) {
    let active = Arc::new(AtomicU32::new(0));
    let runner = |leasehold: &leasehold::Leasehold| {
        let active = active.clone();
        let worker =
            leasehold.worker().workflow("deploy", Duration::from_secs(30), move |_: TaskContext<u32>| {
                let active = active.clone();
                async move {
                    let _active = Active::enter(&active);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    assert_eq!(active.load(Ordering::SeqCst), 1, "two at once");
                    Ok::<_, HandlerError>(())
                }
            });
        worker.start().unwrap()
    };
    let workers = [runner(&lab.one), runner(&lab.two)];
    for number in 0..20 {
        let leasehold = if number % 2 == 0 { &lab.one } else { &lab.two };
        let start = leasehold.workflow("deploy").on_locked(OnLocked::Queue(100)).start(&number);
        assert!(start.await.unwrap().execution().is_some());
    }
    let workflows = lab.one.workflows().unwrap();
    let all_done = async || {
        let list = workflows.list().await.unwrap();
        let counts = list.iter().find(|status| status.workflow == deploy()).unwrap().counts;
        assert_eq!(counts.get(TaskState::Failed), 0);
        counts.get(TaskState::Succeeded) == 20
    };
    crate::client::support::until("all are done", all_done).await;
    for worker in workers {
        worker.stop(Duration::from_secs(5)).await;
    }
}
