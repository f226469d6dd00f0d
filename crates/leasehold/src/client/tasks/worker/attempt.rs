//! One attempt at a task: acquiring its lock, running its handler, and the result of an attempt
//! that is cancelled.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::context::TaskChannels;
use super::heartbeat::report_start;
use super::held_leases::{CancelReason, LeaseTerms};
use super::slots::Slot;
use crate::client::context::Inner;
use crate::client::locks::{Guard, GuardState, LockBuilder, RunError, Strategy, clear_stale, within};
use crate::client::tasks::task_type::clamped;
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, ExecutionId, ExecutionSpec, LockName, Message, Task, Token, Ttl, format_duration,
};
use crate::store::BootInstant;

pub(super) type Handler = dyn Fn(Arc<Task>, Option<Token>, TaskChannels) -> Pin<Box<dyn Future<Output = AttemptResult> + Send>>
    + Send
    + Sync;

/// Delay before a task that has lost its lock runs again.
const LOCK_LOST_DELAY: Duration = Duration::from_secs(1);
/// Delay before a task whose lock is held is leased again, if it runs alone: for each lease of it the worker
/// first ends its other tasks.
const ALONE_DELAY: Duration = Duration::from_secs(30);
/// Delay before a task whose lock is held is leased again, if too many attempts of the worker wait for locks
/// already.
const TOO_MANY_WAITERS_DELAY: Duration = Duration::from_secs(5);
/// Interval at which an execution that waits for its lock checks whether the holder is still
/// running.
const STALE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// Result of an attempt to settle in the store, and the duration of the attempt.
pub(super) struct AttemptEnd {
    pub(super) result: AttemptResult,
    pub(super) duration: Duration,
    /// Whether the attempt has waited for its lock. If so, `duration` is no measure of the handler's
    /// duration.
    pub(super) has_waited_for_lock: bool,
}

impl AttemptEnd {
    /// Creates the end of an attempt whose handler was not run to its end.
    pub(super) fn without_run(result: AttemptResult) -> Self {
        Self { result, duration: Duration::ZERO, has_waited_for_lock: false }
    }
}

/// Properties of a task that is an execution of a workflow.
struct ExecutionRun {
    id: ExecutionId,
    max_runtime: Option<Ttl>,
}

impl ExecutionRun {
    fn of(task: &Task) -> Option<Self> {
        let id = ExecutionId::of_task(task)?;
        Some(Self { id, max_runtime: ExecutionSpec::of(task).max_runtime })
    }
}

/// Runs one attempt: acquires the task's lock if it has one, then runs the handler until it is done
/// or has to stop.
pub(super) async fn attempt(
    inner: Arc<Inner>,
    handler: Option<Arc<Handler>>,
    task: Arc<Task>,
    ttl: Ttl,
    channels: TaskChannels,
    slot: Slot,
) -> AttemptEnd {
    let started_at = BootInstant::now();
    let (mut terms, cooperative_cancellation) = (channels.terms.clone(), channels.cooperative_cancellation);
    let execution = ExecutionRun::of(&task);
    let execution_limit = execution.as_ref().and_then(|execution| execution.max_runtime);
    let limits = [execution_limit, task.timeout, channels.max_runtime];
    let max_runtime = limits.into_iter().flatten().min();
    let channels = TaskChannels { max_runtime, ..channels };
    let (ended, started) = (OnceLock::<AttemptResult>::new(), AtomicBool::new(false));
    let cancelled_result = |reason, last: Option<AttemptResult>| {
        // A handler that ends after its cancellation may have ended because of it, unless it succeeded.
        let succeeded = last.filter(|last| matches!(last, AttemptResult::Done(_)));
        let stop = Stop {
            reason,
            ended: ended.get().cloned().or(succeeded),
            has_started: started.load(Ordering::Relaxed),
            is_execution: execution.is_some(),
            max_runtime,
        };
        stop.result()
    };
    // The task may have been cancelled while it waited for a slot.
    let cancelled_before = terms.borrow().cancelled;
    if let Some(reason) = cancelled_before {
        return AttemptEnd::without_run(cancelled_result(reason, None));
    }
    let mut work = std::pin::pin!(async {
        let Some(handler) = handler else { return AttemptResult::Return };
        match task.required_lock() {
            Some(lock) => {
                let (ended, started) = (&ended, &started);
                let call = HandlerCall { handler, task, ttl, channels, slot: &slot, ended, started };
                run_with_lock(&inner, lock, execution.as_ref(), call).await
            }
            None => {
                started.store(true, Ordering::Relaxed);
                run_handler(&*handler, task, None, channels).await
            }
        }
    });
    let result = tokio::select! {
        biased;
        reason = cancelled(&mut terms) => {
            let last = if cooperative_cancellation { Some(work.await) } else { None };
            // The lease may have been lost while a handler with cooperative cancellation was ending.
            let reason = terms.borrow().cancelled.unwrap_or(reason);
            cancelled_result(reason, last)
        },
        result = &mut work => {
            // The handler may have been cancelled, and may have ended because of that, within the
            // same poll.
            match terms.borrow().cancelled {
                Some(reason) => cancelled_result(reason, Some(result)),
                None => result,
            }
        }
    };
    AttemptEnd {
        result,
        duration: BootInstant::now().after(started_at),
        has_waited_for_lock: slot.has_waited(),
    }
}

/// Attempt that has to stop.
struct Stop {
    reason: CancelReason,
    /// Result of a handler that ended by itself or succeeded.
    ended: Option<AttemptResult>,
    /// Whether the handler was started.
    has_started: bool,
    is_execution: bool,
    max_runtime: Option<Ttl>,
}

impl Stop {
    /// Returns the result to settle.
    fn result(self) -> AttemptResult {
        match (self.reason, self.ended) {
            // The store decides by the token whether the result still counts.
            (_, Some(done @ AttemptResult::Done(_))) => done,
            (CancelReason::Requested, _) => AttemptResult::Abort(None),
            (_, Some(ended)) => ended,
            // The store may still have the lease and would otherwise wait for it to expire. If the
            // lease has ended in the store, the old token changes nothing.
            (CancelReason::LeaseLost | CancelReason::Shutdown, None) if !self.has_started => {
                AttemptResult::Return
            }
            (CancelReason::LeaseLost, None) if self.is_execution => AttemptResult::Fail(Message::new(
                "lease lost: it could not be renewed in time, and its progress is unknown",
            )),
            // As when the lease expires in the store: the attempt counts, because its handler has begun.
            (CancelReason::LeaseLost, None) => {
                AttemptResult::Retry(Message::new("its lease could not be renewed in time"), None)
            }
            (CancelReason::Timeout, None) => {
                let after = self.max_runtime.map(|after| format_duration(after.as_duration()));
                let after = after.map(|after| format!(": it ran for {after}"));
                let reason = Message::new(format!("timeout{}", after.unwrap_or_default()));
                if self.is_execution {
                    AttemptResult::Abort(Some(reason))
                } else {
                    AttemptResult::Retry(reason, None)
                }
            }
            // An execution that has started must not start again on another worker.
            (CancelReason::Shutdown, None) if self.is_execution => {
                AttemptResult::Abort(Some(Message::new("shutdown: its worker ended before it was done")))
            }
            (CancelReason::Shutdown, None) => AttemptResult::Return,
        }
    }
}

/// Runs the handler, and cancels it after the maximum run time. With cooperative cancellation, the
/// handler then ends by itself.
async fn run_handler(
    handler: &Handler,
    task: Arc<Task>,
    lock_token: Option<Token>,
    channels: TaskChannels,
) -> AttemptResult {
    let (id, token) = (task.id, task.token);
    let (max_runtime, leases) = (channels.max_runtime, channels.leases.clone());
    let mut work = handler(task, lock_token, channels);
    let Some(max_runtime) = max_runtime else { return work.await };
    tokio::select! {
        biased;
        result = &mut work => return result,
        () = tokio::time::sleep(max_runtime.as_duration()) => {}
    }
    leases.cancel(id, token, CancelReason::Timeout);
    work.await
}

struct HandlerCall<'a> {
    handler: Arc<Handler>,
    task: Arc<Task>,
    ttl: Ttl,
    channels: TaskChannels,
    slot: &'a Slot,
    /// Result of a handler that has ended by itself or succeeded. Its lock may not be released yet.
    ended: &'a OnceLock<AttemptResult>,
    /// Whether the handler was started.
    started: &'a AtomicBool,
}

impl HandlerCall<'_> {
    async fn run(self, guard: Guard) -> Result<AttemptResult> {
        let Self { handler, task, channels, ended, started, .. } = self;
        // The lock may have been lost while the attempt waited for a slot.
        if !guard.is_valid()
            && let Some(loss) = guard.loss()
        {
            return Err(loss);
        }
        started.store(true, Ordering::Relaxed);
        let (token, terms) = (Some(guard.token()), channels.terms.clone());
        let is_cancelled = || terms.borrow().cancelled.is_some();
        if channels.cooperative_cancellation {
            let channels = TaskChannels { lock_status: Some(guard.watch()), ..channels };
            let result = within(guard.lease_refs(), run_handler(&*handler, task, token, channels)).await;
            let ended_by_itself = !is_cancelled() && guard.state() != GuardState::Lost;
            if ended_by_itself {
                ended.get_or_init(|| result.clone());
            }
            let counts = ended_by_itself || matches!(result, AttemptResult::Done(_));
            return match guard.release().await {
                Err(error @ Error::Lost { .. }) if !counts => Err(error),
                Err(error @ Error::Lost { .. }) => {
                    tracing::warn!(%error, "a handler ended after its lock had been lost");
                    Ok(result)
                }
                Ok(()) | Err(_) => Ok(result),
            };
        }
        if is_planted!(RunsWithoutTheLock) {
            drop(guard);
            return Ok(run_handler(&*handler, task, token, channels).await);
        }
        let work = async |_| {
            let result = run_handler(&*handler, task, token, channels).await;
            if !is_cancelled() || matches!(result, AttemptResult::Done(_)) {
                ended.get_or_init(|| result.clone());
            }
            result
        };
        match guard.run(work).await {
            Ok(result) => Ok(result),
            // The handler ended before the loss was detected: its result counts.
            Err(RunError { error, value: Some(result) }) => {
                tracing::warn!(%error, "a handler ended after its lock had been lost");
                Ok(result)
            }
            Err(cancelled) => Err(cancelled.error),
        }
    }
}

/// Acquires the task's lock, reports the start of the task, and then runs the handler while the lock is
/// held. An execution that loses the lock fails, because its progress is unknown.
async fn run_with_lock(
    inner: &Arc<Inner>,
    lock: LockName,
    execution: Option<&ExecutionRun>,
    call: HandlerCall<'_>,
) -> AttemptResult {
    let id = call.task.id;
    let holder = execution.map_or_else(|| call.task.lock_holder(), |execution| execution.id.to_string());
    let is_execution = execution.is_some();
    let acquisition = LockAcquisition { inner, lock: &lock, holder, is_execution, call: &call };
    let guard = match acquisition.acquire().await {
        Ok(guard) => guard,
        Err(result) => return result,
    };
    // The lease of the task may have ended meanwhile; if the process was paused, nothing has noticed it.
    if call.channels.leases.has_ended(id, call.task.token, BootInstant::now()) {
        return AttemptResult::Return;
    }
    // The attempt counts from here on: a worker that dies while the task waits uses none.
    let TaskChannels { worker, leases, terms, .. } = &call.channels;
    if !call.task.begun
        && !is_planted!(StartsWithoutAValidLease)
        && let Some(result) = report_start(inner, worker, (&call.task, call.ttl), (leases, terms)).await
    {
        return result;
    }
    let (started, attempts) = (call.started, call.task.retries.attempts);
    match (call.run(guard).await, execution) {
        (Ok(result), _) => result,
        (Err(error), _) if !started.load(Ordering::Relaxed) => {
            tracing::warn!(%error, task = %id, "the lock of a task was lost before the task was started");
            AttemptResult::Return
        }
        (Err(error), Some(execution)) => {
            tracing::warn!(%error, execution = %execution.id, "the lock of an execution was lost while it ran");
            AttemptResult::Fail(Message::new(format!("lease lost: {error}")))
        }
        // The lock was lost, and the handler was dropped. A task with a single attempt must not begin again.
        (Err(error), None) if attempts == 1 => {
            AttemptResult::Retry(Message::new(format!("its lock was lost: {error}")), None)
        }
        (Err(error), None) => {
            tracing::warn!(%error, "the lock of a task was lost while it ran");
            AttemptResult::Snooze(clamped(LOCK_LOST_DELAY))
        }
    }
}

struct LockAcquisition<'a> {
    inner: &'a Arc<Inner>,
    lock: &'a LockName,
    holder: String,
    is_execution: bool,
    call: &'a HandlerCall<'a>,
}

impl LockAcquisition<'_> {
    /// Acquires the lock. If the lock is held, the task keeps its lease and waits in the lock's own
    /// queue with its own priority, and occupies no slot. If the task were put off instead, other
    /// tasks would overtake it, and another execution could be started in between. A task that runs alone is put
    /// off, because the worker runs no other task meanwhile. A worker that is stopping, or has a task that runs
    /// alone, does not wait any longer. Waiting does not count as an attempt.
    async fn acquire(&self) -> Result<Guard, AttemptResult> {
        let TaskChannels { terms, soft_stop, .. } = &self.call.channels;
        let mut terms = terms.clone();
        let acquire = async {
            if let Some(guard) = self.try_acquire().await {
                return Ok(guard);
            }
            // Beside a task that runs alone the worker runs no other.
            if self.call.task.runs_alone() && !self.is_execution {
                return Err(AttemptResult::Defer(clamped(ALONE_DELAY)));
            }
            // An execution waits even beyond the limit: otherwise another execution could be
            // started in between.
            if !self.call.slot.release_to_wait() && !self.is_execution {
                return Err(AttemptResult::Defer(clamped(TOO_MANY_WAITERS_DELAY)));
            }
            let guard = self.wait().await;
            self.call.slot.reacquire().await;
            Ok(guard)
        };
        tokio::select! {
            biased;
            _ = cancelled(&mut terms) => Err(AttemptResult::Return),
            () = soft_stop.cancelled() => Err(AttemptResult::Return),
            () = self.call.slot.must_return() => Err(AttemptResult::Return),
            acquired = acquire => acquired,
        }
    }

    async fn try_acquire(&self) -> Option<Guard> {
        loop {
            match self.builder().acquire().await {
                Ok(guard) => return Some(guard),
                Err(Error::Conflict { .. }) => {
                    let cleared = self.is_execution && self.clear_if_stale().await;
                    if !cleared {
                        return None;
                    }
                }
                Err(error) => {
                    self.log_failure(&error);
                    return None;
                }
            }
        }
    }

    /// Waits in the queue of the lock without a timeout. The position in that queue is kept.
    async fn wait(&self) -> Guard {
        loop {
            let builder = self.builder().strategy(Strategy::Wait(None));
            let mut waiting = std::pin::pin!(builder.acquire());
            let acquired = loop {
                tokio::select! {
                    biased;
                    acquired = &mut waiting => break acquired,
                    () = tokio::time::sleep(STALE_CHECK_INTERVAL), if self.is_execution => {
                        self.clear_if_stale().await;
                    }
                }
            };
            match acquired {
                Ok(guard) => return guard,
                Err(error) => {
                    self.log_failure(&error);
                    tokio::time::sleep(ERROR_DELAY).await;
                }
            }
        }
    }

    fn builder(&self) -> LockBuilder {
        let builder = LockBuilder::new(self.inner.clone(), self.lock.clone())
            .ttl(self.call.ttl.as_duration())
            .priority(self.call.task.priority.get())
            .holder(self.holder.as_str());
        // The work may outlive this process: the death of the process must not end the lease, only
        // its expiry may.
        let builder =
            if self.call.channels.cooperative_cancellation { builder.process(None) } else { builder };
        if self.is_execution { builder.meta("execution", self.holder.as_str()) } else { builder }
    }

    /// Takes the lock from an execution that is not running, and returns whether there was such an
    /// execution.
    async fn clear_if_stale(&self) -> bool {
        match clear_stale(self.inner, self.lock).await {
            Ok(check) => check.cleared,
            Err(error) => {
                tracing::warn!(lock = %self.lock, %error, "failed to check whether the lock is stale");
                false
            }
        }
    }

    fn log_failure(&self, error: &Error) {
        tracing::warn!(task = %self.call.task.id, %error, "failed to acquire the lock of a task; retrying");
    }
}

async fn cancelled(terms: &mut watch::Receiver<LeaseTerms>) -> CancelReason {
    match terms.wait_for(|terms| terms.cancelled.is_some()).await.map(|terms| terms.cancelled) {
        Ok(Some(reason)) => reason,
        // The sender was dropped: no caller can stop the handler any more.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Leasehold;
    use crate::client::tasks::worker::heartbeat::WorkerDescription;
    use crate::client::tasks::worker::held_leases::HeldLeases;
    use crate::client::tasks::worker::slots::Slots;
    use crate::model::{NewTask, Payload, QueueName, Timestamp, WorkflowName};
    use tokio_util::sync::CancellationToken;

    /// Returns the result of an attempt whose handler is cancelled for this reason while it is
    /// polled, and ends because of that in the same poll.
    async fn cancelled_within_a_poll(
        reason: CancelReason,
        queue: &QueueName,
        last: AttemptResult,
        cooperative_cancellation: bool,
    ) -> AttemptResult {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let handler: Box<Handler> = Box::new(move |task: Arc<Task>, _, channels: TaskChannels| {
            let last = last.clone();
            Box::pin(async move {
                channels.leases.cancel(task.id, task.token, reason);
                last
            })
        });
        let new = new_task(queue);
        run_attempt(&leasehold, new, BootInstant::now(), handler, cooperative_cancellation).await
    }

    fn new_task(queue: &QueueName) -> NewTask {
        let id = crate::model::TaskId::from_uuid(uuid::Uuid::from_u128(1));
        NewTask::new(id, queue.clone(), Payload::default())
    }

    async fn run_attempt(
        leasehold: &Leasehold,
        new: NewTask,
        leased_at: BootInstant,
        handler: Box<Handler>,
        cooperative_cancellation: bool,
    ) -> AttemptResult {
        let ttl = Ttl::from_secs(30);
        let task = Task { begun: true, ..Task::new(&new, Timestamp::from_micros(1)) };
        let leases = Arc::<HeldLeases>::default();
        let terms = leases.insert(&task, ttl, leased_at);
        let worker = crate::model::WorkerId::from_uuid(uuid::Uuid::from_u128(2));
        let channels = TaskChannels {
            worker: Arc::new(WorkerDescription::new(crate::model::WorkerInfo::only(worker))),
            leases,
            terms,
            lock_status: None,
            soft_stop: CancellationToken::new(),
            cooperative_cancellation,
            max_runtime: None,
        };
        let slot = Slots::new(1).try_take().expect("the slot is free");
        attempt(leasehold.inner.clone(), Some(handler.into()), Arc::new(task), ttl, channels, slot)
            .await
            .result
    }

    /// Returns the result of an attempt whose handler has ended, and which is cancelled for this reason
    /// while the release of its lock waits for the store.
    #[cfg(feature = "testing")]
    async fn cancelled_within_the_release(
        reason: CancelReason,
        queue: &QueueName,
        last: AttemptResult,
        cooperative_cancellation: bool,
    ) -> AttemptResult {
        use crate::testing::{Fault, FaultyStore};
        let store = FaultyStore::new(Arc::new(crate::store::memory::MemoryStore::new()));
        let leasehold = Leasehold::with_store(store.clone()).unwrap();
        let task = NewTask { lock: Some(LockName::new("l").unwrap()), ..new_task(queue) };
        let handler: Box<Handler> = Box::new(move |task: Arc<Task>, _, channels: TaskChannels| {
            store.from_now_on(Fault::Delay(Duration::from_millis(20)));
            let last = last.clone();
            Box::pin(async move {
                // The test has one thread, so this runs when the attempt waits: in the release.
                tokio::spawn(async move { channels.leases.cancel(task.id, task.token, reason) });
                last
            })
        });
        run_attempt(&leasehold, task, BootInstant::now(), handler, cooperative_cancellation).await
    }

    #[cfg(feature = "testing")]
    #[tokio::test]
    async fn a_handler_that_has_ended_counts_although_its_lock_is_not_released() {
        let (plain, workflow) = (QueueName::new("q").unwrap(), WorkflowName::new("w").unwrap().queue());
        let failed = || AttemptResult::Fail(Message::new("no such host"));
        let retried = || AttemptResult::Retry(Message::new("not yet"), None);
        for (queue, cooperative) in [(&plain, false), (&plain, true), (&workflow, false), (&workflow, true)] {
            for reason in [CancelReason::LeaseLost, CancelReason::Shutdown] {
                for last in [AttemptResult::Done(None), failed(), retried()] {
                    let ended = cancelled_within_the_release(reason, queue, last.clone(), cooperative).await;
                    assert_eq!(ended, last, "{reason:?}, cooperative: {cooperative}");
                }
            }
            let reason = CancelReason::Requested;
            let ended = cancelled_within_the_release(reason, queue, failed(), cooperative).await;
            assert_eq!(ended, AttemptResult::Abort(None));
        }
    }

    /// Earlier releases could add such a task.
    #[tokio::test]
    async fn a_task_of_a_workflow_without_its_lock_gets_the_lock() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let handler: Box<Handler> = Box::new(|_, token, _| {
            Box::pin(async move { AttemptResult::Done(token.map(|_| Payload::default())) })
        });
        let task = new_task(&WorkflowName::new("w").unwrap().queue());
        let ended = run_attempt(&leasehold, task, BootInstant::now(), handler, false).await;
        assert!(matches!(ended, AttemptResult::Done(Some(_))), "{ended:?}");
    }

    /// A paused process does not notice the end of the lease before it has acquired the lock.
    #[tokio::test]
    async fn a_task_whose_lease_ends_while_its_lock_is_acquired_does_not_start() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let handler: Box<Handler> = Box::new(|_, _, _| Box::pin(async { AttemptResult::Done(None) }));
        let lock = Some(LockName::new("l").unwrap());
        let task = NewTask { lock, ..new_task(&QueueName::new("q").unwrap()) };
        let ended = run_attempt(&leasehold, task, BootInstant::from_micros(0), handler, false).await;
        assert_eq!(ended, AttemptResult::Return);
    }

    /// Whether a handler ends in the poll in which it is cancelled, or in the next one, depends on
    /// timing.
    #[tokio::test]
    async fn an_aborted_task_is_aborted_however_quickly_its_handler_ends() {
        let (plain, workflow) = (QueueName::new("q").unwrap(), WorkflowName::new("w").unwrap().queue());
        let failed = || AttemptResult::Fail(Message::new("lease lost"));
        for (queue, cooperative) in [(&plain, false), (&plain, true), (&workflow, false), (&workflow, true)] {
            for (last, expected) in [
                (failed(), AttemptResult::Abort(None)),
                (AttemptResult::Done(None), AttemptResult::Done(None)),
            ] {
                let ended = cancelled_within_a_poll(CancelReason::Requested, queue, last, cooperative).await;
                assert_eq!(ended, expected);
            }
        }
        let ended = cancelled_within_a_poll(CancelReason::Shutdown, &plain, failed(), true).await;
        assert_eq!(ended, AttemptResult::Return);
        let ended = cancelled_within_a_poll(CancelReason::LeaseLost, &plain, failed(), true).await;
        assert!(matches!(ended, AttemptResult::Retry(..)), "the attempt counts: {ended:?}");
    }
}
