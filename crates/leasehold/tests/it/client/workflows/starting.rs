//! Results of starts: keys, locks, queues.

use std::time::Duration;

use leasehold::model::{Holder, Payload, Reuse, TaskState, Timestamp, Ttl};
use leasehold::{Error, ExecutionEnd, OnLocked, StartResult};

use super::fixture::{Lab, ada, deploy, reason, ttl};
use crate::client::support::{memory, until};

impl Lab {
    /// Takes the next execution and completes it with this end.
    pub(crate) async fn end(&self, end: ExecutionEnd) {
        let workflows = self.two.workflows().unwrap();
        let taken = workflows.take(&[deploy()], ttl()).await.unwrap().expect("there is an execution to take");
        workflows.complete(taken.id, taken.token, end).await.unwrap();
    }

    pub(crate) async fn done(&self) {
        self.end(ExecutionEnd::Succeeded(None)).await;
    }
}

/// Each task of such a queue is run as an execution.
#[tokio::test]
async fn a_task_in_the_queue_of_a_workflow_has_the_lock_of_the_workflow_and_one_attempt() {
    let leasehold = memory().await;
    let id = leasehold.enqueue_to(deploy().queue(), Payload::default()).await.unwrap().id;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.lock, task.retries.attempts), (Some(deploy().lock()), 1));
    let error = leasehold.enqueue_to(deploy().queue(), Payload::default()).lock("a").await.unwrap_err();
    assert_eq!(error.code(), "INVALID");
    let set = leasehold.schedule_to("nightly", "0 3 * * *", deploy().queue(), Payload::default());
    let tick = set.await.unwrap().task(Timestamp::default(), id).unwrap();
    assert_eq!((tick.lock, tick.retries.attempts), (Some(deploy().lock()), 1));
}

fn failed() -> ExecutionEnd {
    ExecutionEnd::Failed("no such host".to_owned())
}

pub(crate) async fn a_start_creates_an_execution_that_can_be_found(lab: Lab) {
    let start = lab.deploy().key("event-1").max_runtime(Duration::from_mins(1));
    let started = lab.started(start, "v1").await;
    assert_eq!((started.state, started.attempt, started.retry_of), (TaskState::Pending, 1, None));
    let found = lab.get(started.id).await;
    assert_eq!((found.workflow, found.input.read::<String>().unwrap()), (deploy(), "v1".to_owned()));
    assert_eq!(found.key.unwrap().as_str(), "event-1");
    assert_eq!(found.max_runtime.map(Ttl::as_duration), Some(Duration::from_mins(1)));
    assert!(started.id.to_string().starts_with("exec_"));
    let this_process = format!(":{}", std::process::id());
    assert!(found.started_by.is_some_and(|caller| caller.contains(&this_process)));
}

pub(crate) async fn an_execution_has_its_caller_and_the_facts_of_its_start(lab: Lab) {
    let ada = Holder::new("ada@laptop").unwrap();
    let start = |ticket: &str| lab.deploy().key("k").started_by(&ada).metadata("ticket", ticket);
    let started = lab.started(start("OPS-7"), "v1").await;
    let found = lab.get(started.id).await;
    assert_eq!(
        (found.started_by.as_deref(), found.metadata.get("ticket")),
        (Some("ada@laptop"), Some("OPS-7"))
    );
    assert_eq!(found.input.read::<String>().unwrap(), "v1", "metadata are not part of the input");
    // Another caller with the same event gets the same execution.
    let again = lab.duplicate(start("OPS-8"), "v1").await;
    assert_eq!((again.id, again.metadata.get("ticket")), (started.id, Some("OPS-7")));
    assert!(lab.deploy().metadata("", "x").start("v1").await.is_err());
}

pub(crate) async fn a_key_in_use_returns_the_same_execution(lab: Lab) {
    let started = lab.started(lab.deploy().key("k"), "v1").await;
    assert_eq!(lab.duplicate(lab.deploy().key("k"), "v1").await.id, started.id);
    let taken = lab.two.workflows().unwrap().take(&[deploy()], ttl()).await.unwrap().unwrap();
    let again = lab.duplicate(lab.deploy().key("k"), "v1").await;
    assert_eq!((again.id, again.state), (taken.id, TaskState::Running));
}

pub(crate) async fn after_success_or_abort_a_key_returns_the_same_execution(lab: Lab) {
    for (key, end) in [("done", ExecutionEnd::Succeeded(None)), ("stopped", ExecutionEnd::Aborted(None))] {
        let started = lab.started(lab.deploy().key(key), "v1").await;
        lab.end(end).await;
        let again = lab.duplicate(lab.deploy().key(key), "v1").await;
        assert_eq!(again.id, started.id);
        assert!(again.state.is_terminal());
    }
}

pub(crate) async fn after_a_failure_a_key_starts_the_next_attempt(lab: Lab) {
    let mut earlier = lab.started(lab.deploy().key("k"), "v1").await;
    for attempt in 2..4 {
        lab.end(failed()).await;
        assert_eq!(lab.get(earlier.id).await.reason.as_deref(), Some("no such host"));
        let next = lab.started(lab.deploy().key("k"), "v1").await;
        assert_eq!((next.attempt, next.retry_of), (attempt, Some(earlier.id)));
        assert_eq!(lab.duplicate(lab.deploy().key("k"), "v1").await.id, next.id);
        earlier = next;
    }
}

pub(crate) async fn a_key_that_is_never_reused_returns_the_failed_execution(lab: Lab) {
    let started = lab.started(lab.deploy().key("k"), "v1").await;
    lab.end(failed()).await;
    let again = lab.duplicate(lab.deploy().key("k").reuse(Reuse::Never), "v1").await;
    assert_eq!((again.id, again.state), (started.id, TaskState::Failed));
}

pub(crate) async fn a_key_that_is_always_reused_starts_after_success(lab: Lab) {
    let start = || lab.deploy().key("k").reuse(Reuse::Finished);
    let first = lab.started(start(), "v1").await;
    assert_eq!(lab.duplicate(start(), "v1").await.id, first.id, "not while it waits or runs");
    lab.done().await;
    let second = lab.started(start(), "v1").await;
    assert_eq!((second.attempt, second.retry_of), (2, Some(first.id)));
}

pub(crate) async fn a_key_with_another_input_is_rejected_and_names_the_execution(lab: Lab) {
    let started = lab.started(lab.deploy().key("k"), "v1").await;
    for (state, reuse) in [(TaskState::Pending, Reuse::Finished), (TaskState::Failed, Reuse::Never)] {
        assert_eq!(lab.get(started.id).await.state, state);
        let error = lab.deploy().key("k").reuse(reuse).start("v2").await.unwrap_err();
        assert_eq!(error.code(), "IDEMPOTENCY_KEY_REUSED");
        let Error::ExecutionKeyReused { execution, workflow, key } = error else { panic!("{error}") };
        assert_eq!((execution, workflow, key.as_str()), (started.id, deploy(), "k"));
        if state == TaskState::Pending {
            lab.end(failed()).await;
        }
    }
}

pub(crate) async fn a_key_that_is_free_again_can_be_used_with_another_input(lab: Lab) {
    let first = lab.started(lab.deploy().key("k"), "v1").await;
    lab.end(failed()).await;
    let second = lab.started(lab.deploy().key("k"), "v2").await;
    assert_eq!((second.attempt, second.retry_of), (2, Some(first.id)));
}

pub(crate) async fn a_key_stands_for_the_value_of_a_raw_input(lab: Lab) {
    let start = async |bytes: &[u8]| lab.deploy().key("k").start_raw(bytes).await;
    let StartResult::Started(first) = start(b"{\"a\": 1}").await.unwrap() else { panic!("not started") };
    assert!(
        matches!(start(b"{\"a\": 1}").await.unwrap(), StartResult::Duplicate(again) if again.id == first.id)
    );
    let same = start(b"{\"a\":1.0}").await.unwrap();
    assert!(
        matches!(same, StartResult::Duplicate(again) if again.id == first.id),
        "the same value in other bytes"
    );
    for other in [&b"{\"a\":2}"[..], b"a=1", b"{\"a\": 1} "] {
        assert_eq!(start(other).await.unwrap_err().code(), "IDEMPOTENCY_KEY_REUSED");
    }
    assert_eq!(lab.get(first.id).await.input.bytes(), b"{\"a\": 1}");
    assert_eq!(start(&[0xff]).await.unwrap_err().code(), "INVALID");
}

pub(crate) async fn a_rejected_start_does_not_use_up_its_key(lab: Lab) {
    let first = lab.started(lab.deploy().key("one"), "v1").await;
    for _ in 0..2 {
        assert_eq!(lab.locked(lab.deploy().key("two"), "v2").await, (Some(first.id), false));
    }
    let error = lab.deploy().key("two").start("v2").await.unwrap_err();
    assert_eq!(error.code(), "WORKFLOW_LOCKED");
    assert!(error.to_string().contains(&format!("Currently executing: {}", first.id)), "{error}");
    assert!(error.is_retryable());
    lab.done().await;
    let second = lab.started(lab.deploy().key("two"), "anything else").await;
    assert_eq!((second.attempt, second.retry_of), (1, None));
    let other = lab.one.workflow("other").start("v1").await.unwrap();
    assert!(matches!(other, StartResult::Started(_)), "workflows do not block each other");
}

pub(crate) async fn another_holder_of_the_lock_blocks_a_start(lab: Lab) {
    let guard = lab.two.lock("workflow/deploy").holder("bob").acquire().await.unwrap();
    assert_eq!(lab.locked(lab.deploy().key("k"), "v1").await, (None, false));
    let skipped = lab.deploy().on_locked(OnLocked::Skip).start("v1").await.unwrap();
    assert!(
        matches!(&skipped, StartResult::Skipped { execution: None, reason } if reason.contains("bob")),
        "{skipped:?}"
    );
    let waits = lab.deploy().key("k").on_locked(OnLocked::Queue(1)).start("v1").await.unwrap();
    assert!(matches!(waits, StartResult::Started(_)), "it is the next to run, when the lock is free");
    guard.release().await.unwrap();
    lab.done().await;
}

pub(crate) async fn executions_queue_in_order_up_to_the_limit(lab: Lab) {
    let start = |input: &'static str| lab.deploy().key(input).on_locked(OnLocked::Queue(2)).start(input);
    let mut queue = vec![lab.started(lab.deploy(), "now").await];
    for input in ["a", "b"] {
        let StartResult::Queued(execution) = start(input).await.unwrap() else {
            panic!("{input} is not queued")
        };
        assert_eq!(execution.state, TaskState::Blocked);
        queue.push(execution);
    }
    let error = start("c").await.unwrap_err();
    assert_eq!(error.code(), "WORKFLOW_LOCKED");
    assert!(error.to_string().contains("2 others wait"), "{error}");
    assert_eq!(lab.locked(lab.deploy(), "v1").await.0, Some(queue[0].id));
    let workflows = lab.two.workflows().unwrap();
    assert_eq!(workflows.lock(&deploy()).await.unwrap().queued, 2);
    workflows.abort(queue[1].id, ada(), Some(reason())).await.unwrap();
    let StartResult::Queued(last) = start("c").await.unwrap() else { panic!("the queue has room again") };
    for expected in [queue[0].id, queue[2].id, last.id] {
        let taken = workflows.take(&[deploy()], ttl()).await.unwrap().unwrap();
        assert_eq!(taken.id, expected, "first come, first served");
        assert!(workflows.take(&[deploy()], ttl()).await.unwrap().is_none(), "one at a time");
        workflows.complete(taken.id, taken.token, ExecutionEnd::Succeeded(None)).await.unwrap();
    }
}

pub(crate) async fn a_conflicting_start_is_skipped_on_request(lab: Lab) {
    let first = lab.started(lab.deploy(), "v1").await;
    let start = || lab.deploy().key("k").on_locked(OnLocked::Skip);
    let skipped = start().start("v2").await.unwrap();
    assert!(
        matches!(&skipped, StartResult::Skipped { execution, .. } if *execution == Some(first.id)),
        "{skipped:?}"
    );
    assert!(skipped.execution().is_none());
    lab.done().await;
    lab.started(start(), "v2").await;
}

pub(crate) async fn invalid_arguments_of_a_start_are_rejected(lab: Lab) {
    let long = "x".repeat(247);
    let error = lab.one.workflow(long.as_str()).key("k").start("v1").await.unwrap_err();
    assert_eq!(error.to_string(), "the workflow name has 247 bytes; 246 is the most");
    let error = lab.deploy().key("").max_runtime(Duration::ZERO).start("v1").await.unwrap_err();
    assert_eq!(error.to_string(), "the key is empty");
    assert_eq!(lab.deploy().max_runtime(Duration::ZERO).start("v1").await.unwrap_err().code(), "INVALID");
}

/// The caller that started it was to run it, and crashed while it waited.
pub(crate) async fn an_execution_whose_runner_is_dead_blocks_no_other(lab: Lab) {
    let short = Duration::from_millis(200);
    let gone = lab.started(lab.deploy().key("k").runner_ttl(short), "v1").await;
    let waits = lab.deploy().runner_ttl(short).on_locked(OnLocked::Queue(1)).start("v2").await.unwrap();
    assert!(matches!(waits, StartResult::Queued(_)));
    // No maintenance runs except in the starts themselves.
    let next = async || matches!(lab.two.workflow("deploy").start("v3").await, Ok(StartResult::Started(_)));
    until("the next start succeeds", next).await;
    let gone = lab.get(gone.id).await;
    assert_eq!(gone.state, TaskState::Failed);
    assert!(gone.reason.unwrap().contains("runner is dead"));
    let again = lab.deploy().key("k").on_locked(OnLocked::Queue(5)).start("v1").await.unwrap();
    let StartResult::Queued(again) = again else { panic!("{again:?}") };
    assert_eq!(again.retry_of, Some(gone.id), "its key is not used up");
}

pub(crate) async fn an_execution_whose_runner_waits_keeps_its_position(lab: Lab) {
    let ttl = Ttl::from_secs(2);
    let started = lab.started(lab.deploy().runner_ttl(ttl.as_duration()), "v1").await;
    let workflows = lab.two.workflows().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(3);
    while std::time::Instant::now() < end {
        workflows.renew_runner(started.id, ttl).await.unwrap();
        lab.one.tasks().unwrap().recover(10).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(lab.get(started.id).await.state, TaskState::Pending);
    workflows.abort(started.id, ada(), None).await.unwrap();
    let error = workflows.renew_runner(started.id, ttl).await.unwrap_err();
    assert_eq!(error.code(), "EXECUTION_FINISHED");
}
