//! One attempt at a task: acquiring its lock, running its handler, and the result of an attempt
//! that is cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::context::TaskChannels;
use super::held_leases::{CancelReason, LeaseTerms};
use super::slots::Slot;
use super::task_type::clamped;
use crate::client::context::Inner;
use crate::client::locks::{Guard, LockBuilder, RunError, Strategy, clear_stale};
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
/// Delay before a task whose lock is held is leased again, if too many attempts of the worker wait
/// for locks already.
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
    started: AtomicBool,
}

impl ExecutionRun {
    fn of(task: &Task) -> Option<Self> {
        let id = ExecutionId::of_task(task)?;
        Some(Self { id, max_runtime: ExecutionSpec::of(task).max_runtime, started: false.into() })
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
    slot: Arc<Slot>,
) -> AttemptEnd {
    let started_at = BootInstant::now();
    let (mut terms, cooperative_cancellation) = (channels.terms.clone(), channels.cooperative_cancellation);
    let execution = ExecutionRun::of(&task);
    let own_limit = execution.as_ref().and_then(|execution| execution.max_runtime);
    let max_runtime = own_limit.into_iter().chain(channels.max_runtime).min();
    let channels = TaskChannels { max_runtime, ..channels };
    let cancelled_result = |reason, last| cancelled_result(reason, last, execution.as_ref(), max_runtime);
    let attempt_slot = slot.clone();
    let mut work = std::pin::pin!(async {
        let Some(handler) = handler else { return AttemptResult::Return };
        match task.lock.clone() {
            Some(lock) => {
                let call = HandlerCall { handler, task, ttl, channels, slot };
                run_with_lock(&inner, lock, execution.as_ref(), call).await
            }
            None => run_handler(&*handler, task, None, channels).await,
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
        has_waited_for_lock: attempt_slot.has_waited(),
    }
}

/// Returns the result to settle for an attempt that had to stop.
fn cancelled_result(
    reason: CancelReason,
    last: Option<AttemptResult>,
    execution: Option<&ExecutionRun>,
    max_runtime: Option<Ttl>,
) -> AttemptResult {
    let started = execution.filter(|execution| execution.started.load(Ordering::Relaxed));
    match (reason, last, started) {
        // The store decides by the token whether the result still counts.
        (_, Some(done @ AttemptResult::Done(_)), _) => done,
        // The store may still have the lease and would otherwise wait for it to expire. If the
        // lease has ended in the store, the old token changes nothing.
        (CancelReason::LeaseLost | CancelReason::Shutdown, _, None) => AttemptResult::Return,
        (CancelReason::LeaseLost, _, Some(_)) => AttemptResult::Fail(Message::new(
            "lease lost: it could not be renewed in time, and its progress is unknown",
        )),
        (CancelReason::Requested, ..) => AttemptResult::Abort(None),
        (CancelReason::Timeout, ..) => {
            let after =
                max_runtime.map(|after| format!(": it ran for {}", format_duration(after.as_duration())));
            let reason = Message::new(format!("timeout{}", after.unwrap_or_default()));
            match execution {
                Some(_) => AttemptResult::Abort(Some(reason)),
                None => AttemptResult::Retry(reason, None),
            }
        }
        // An execution that has started must not start again on another worker.
        (CancelReason::Shutdown, _, Some(_)) => {
            AttemptResult::Abort(Some(Message::new("shutdown: its worker ended before it was done")))
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

struct HandlerCall {
    handler: Arc<Handler>,
    task: Arc<Task>,
    ttl: Ttl,
    channels: TaskChannels,
    slot: Arc<Slot>,
}

impl HandlerCall {
    async fn run(self, guard: Guard) -> Result<AttemptResult> {
        let Self { handler, task, channels, .. } = self;
        let token = Some(guard.token());
        if channels.cooperative_cancellation {
            let channels = TaskChannels { lock_status: Some(guard.watch()), ..channels };
            let result = run_handler(&*handler, task, token, channels).await;
            return match guard.release().await {
                Err(error @ Error::Lost { .. }) => Err(error),
                Ok(()) | Err(_) => Ok(result),
            };
        }
        match guard.run(async |_| run_handler(&*handler, task, token, channels).await).await {
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

/// Acquires the task's lock, then runs the handler while the lock is held. An execution that loses
/// the lock fails, because its progress is unknown.
async fn run_with_lock(
    inner: &Arc<Inner>,
    lock: LockName,
    execution: Option<&ExecutionRun>,
    call: HandlerCall,
) -> AttemptResult {
    let id = call.task.id;
    let holder = execution.map_or_else(|| format!("task {id}"), |execution| execution.id.to_string());
    let is_execution = execution.is_some();
    let acquisition = LockAcquisition { inner, lock: &lock, holder, is_execution, call: &call };
    let guard = match acquisition.acquire().await {
        Ok(guard) => guard,
        Err(result) => return result,
    };
    if let Some(execution) = execution {
        execution.started.store(true, Ordering::Relaxed);
    }
    match (call.run(guard).await, execution) {
        (Ok(result), _) => result,
        (Err(error), Some(execution)) => {
            tracing::warn!(%error, execution = %execution.id, "the lock of an execution was lost while it ran");
            AttemptResult::Fail(Message::new(format!("lease lost: {error}")))
        }
        // The lock was lost, and the handler was dropped.
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
    call: &'a HandlerCall,
}

impl LockAcquisition<'_> {
    /// Acquires the lock. If the lock is held, the task keeps its lease and waits in the lock's own
    /// queue with its own priority, and occupies no slot. If the task were put off instead, other
    /// tasks would overtake it, and another execution could be started in between. A worker that is
    /// stopping does not wait any longer. Waiting does not count as an attempt.
    async fn acquire(&self) -> Result<Guard, AttemptResult> {
        let TaskChannels { terms, soft_stop, .. } = &self.call.channels;
        let mut terms = terms.clone();
        let acquire = async {
            if let Some(guard) = self.try_acquire().await {
                return Ok(guard);
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
    use super::super::held_leases::HeldLeases;
    use super::super::slots::Slots;
    use super::*;
    use crate::Leasehold;
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
        let ttl = Ttl::from_secs(30);
        let new = NewTask::new(
            crate::model::TaskId::from_uuid(uuid::Uuid::from_u128(1)),
            queue.clone(),
            Payload::default(),
        );
        let task = Task::new(&new, Timestamp::from_micros(1));
        let leases = Arc::<HeldLeases>::default();
        let terms = leases.insert(&task, ttl, BootInstant::now());
        let channels = TaskChannels {
            leases,
            terms,
            lock_status: None,
            soft_stop: CancellationToken::new(),
            cooperative_cancellation,
            max_runtime: None,
        };
        let handler: Box<Handler> = Box::new(move |task: Arc<Task>, _, channels: TaskChannels| {
            let last = last.clone();
            Box::pin(async move {
                channels.leases.cancel(task.id, task.token, reason);
                last
            })
        });
        let slot = Slots::new(1).try_take().expect("the slot is free");
        attempt(leasehold.inner.clone(), Some(handler.into()), Arc::new(task), ttl, channels, slot)
            .await
            .result
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
        for reason in [CancelReason::Shutdown, CancelReason::LeaseLost] {
            let ended = cancelled_within_a_poll(reason, &plain, failed(), true).await;
            assert_eq!(ended, AttemptResult::Return);
        }
    }
}
