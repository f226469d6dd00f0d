//! One attempt at a task: acquiring its lock, running its handler, and the result of an attempt
//! that is stopped early.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::context::Ties;
use super::floor::{Floor, Stop, Terms};
use super::foreman::Handler;
use super::slots::Slot;
use super::work::clamped;
use crate::client::builder::LockBuilder;
use crate::client::guard::Guard;
use crate::client::leasehold::Inner;
use crate::client::run_error::RunError;
use crate::client::strategy::Strategy;
use crate::client::workflows::clear_stale;
use crate::error::{Error, Result};
use crate::model::{
    AttemptResult, ExecutionId, ExecutionSpec, LockName, Message, Task, TaskId, Token, Ttl, format_duration,
};
use crate::store::BootInstant;

/// Delay before a task that has lost its lock runs again.
const LOCK_LOST: Duration = Duration::from_secs(1);
/// Delay before a task whose lock is held is leased again, if too many attempts of the worker wait
/// for locks already.
const TOO_MANY_WAIT: Duration = Duration::from_secs(5);
/// Interval at which an execution that waits for its lock checks whether the holder is still
/// running.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Delay before the lock is requested again after an error.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);

/// Result of an attempt to settle in the store, and the duration of the attempt.
pub(super) struct Ended {
    pub(super) verdict: AttemptResult,
    pub(super) took: Duration,
    /// Whether the attempt has waited for its lock. If so, `took` is no measure of the handler's
    /// duration.
    pub(super) has_waited: bool,
}

/// Properties of a task that is an execution of a workflow.
struct Execution {
    id: ExecutionId,
    max_runtime: Option<Ttl>,
    /// Whether the handler was called.
    begun: AtomicBool,
}

impl Execution {
    fn of(task: &Task) -> Option<Self> {
        let id = ExecutionId::of_task(task)?;
        Some(Self { id, max_runtime: ExecutionSpec::of(task).max_runtime, begun: false.into() })
    }
}

/// Runs one attempt: acquires the task's lock if it has one, then runs the handler until it is done
/// or has to stop.
pub(super) async fn attempt(
    inner: Arc<Inner>,
    handler: Option<Arc<Handler>>,
    task: Arc<Task>,
    ttl: Ttl,
    ties: Ties,
    slot: Arc<Slot>,
) -> Ended {
    let began = BootInstant::now();
    let (mut terms, patient) = (ties.terms.clone(), ties.patient);
    let execution = Execution::of(&task);
    let own_limit = execution.as_ref().and_then(|execution| execution.max_runtime);
    let max_runtime = own_limit.into_iter().chain(ties.max_runtime).min();
    let ties = Ties { max_runtime, ..ties };
    let stopped_as = |why, last| stopped_as(why, last, execution.as_ref(), max_runtime);
    let its_slot = slot.clone();
    let mut work = std::pin::pin!(async {
        let Some(handler) = handler else { return AttemptResult::Return };
        match (task.lock.clone(), &execution) {
            (Some(lock), Some(execution)) => {
                execute(&inner, lock, execution, Run { handler, task, ttl, ties, slot }).await
            }
            (Some(lock), None) => under_lock(&inner, lock, Run { handler, task, ttl, ties, slot }).await,
            (None, _) => {
                let limit = Limit::new(&ties, &task);
                limit.run(handler(task, None, ties)).await
            }
        }
    });
    let verdict = tokio::select! {
        biased;
        why = stopped(&mut terms) => {
            let last = if patient { Some(work.await) } else { None };
            // The lease may have been lost while a patient handler was finishing.
            let why = terms.borrow().stop.unwrap_or(why);
            stopped_as(why, last)
        },
        verdict = &mut work => {
            // The handler may have been stopped, and have ended because of that, within the same
            // poll.
            match terms.borrow().stop {
                Some(why) => stopped_as(why, Some(verdict)),
                None => verdict,
            }
        }
    };
    Ended { verdict, took: BootInstant::now().after(began), has_waited: its_slot.has_waited() }
}

/// Returns the result to settle for an attempt that had to stop.
fn stopped_as(
    why: Stop,
    last: Option<AttemptResult>,
    execution: Option<&Execution>,
    max_runtime: Option<Ttl>,
) -> AttemptResult {
    let begun = execution.filter(|execution| execution.begun.load(Ordering::Relaxed));
    match (why, last, begun) {
        // The store decides by the token whether the result still counts.
        (_, Some(done @ AttemptResult::Done(_)), _) => done,
        // The store may still have the lease and would otherwise wait for it to expire. If the
        // lease has ended in the store, the old token changes nothing.
        (Stop::Lost | Stop::Ending, _, None) => AttemptResult::Return,
        (Stop::Lost, _, Some(_)) => AttemptResult::Fail(Message::new(
            "lease lost: it could not be renewed in time, and nobody knows how far it came",
        )),
        (Stop::Asked, ..) => AttemptResult::Abort(None),
        (Stop::Overdue, ..) => {
            let after =
                max_runtime.map(|after| format!(": it ran for {}", format_duration(after.as_duration())));
            let why = Message::new(format!("timeout{}", after.unwrap_or_default()));
            match execution {
                Some(_) => AttemptResult::Abort(Some(why)),
                None => AttemptResult::Retry(why, None),
            }
        }
        // An execution that has begun must not begin again on another worker.
        (Stop::Ending, _, Some(_)) => {
            AttemptResult::Abort(Some(Message::new("shutdown: its worker ended before it was done")))
        }
    }
}

/// Maximum run time of a handler, and the lease to stop when it is exceeded.
struct Limit {
    longest: Option<Ttl>,
    floor: Arc<Floor>,
    id: TaskId,
    token: Token,
}

impl Limit {
    fn new(ties: &Ties, task: &Task) -> Self {
        Self { longest: ties.max_runtime, floor: ties.floor.clone(), id: task.id, token: task.token }
    }

    /// Runs the handler, and requests it to stop after the maximum run time. A patient handler then
    /// ends by itself.
    async fn run(self, mut work: Pin<Box<dyn Future<Output = AttemptResult> + Send>>) -> AttemptResult {
        let Some(longest) = self.longest else { return work.await };
        tokio::select! {
            biased;
            verdict = &mut work => return verdict,
            () = tokio::time::sleep(longest.as_duration()) => {}
        }
        self.floor.stop(self.id, self.token, Stop::Overdue);
        work.await
    }
}

/// Arguments of a handler call.
struct Run {
    handler: Arc<Handler>,
    task: Arc<Task>,
    ttl: Ttl,
    ties: Ties,
    slot: Arc<Slot>,
}

impl Run {
    fn ask(&self, inner: &Arc<Inner>, lock: LockName, holder: &str) -> LockBuilder {
        let ask = LockBuilder::new(inner.clone(), lock)
            .ttl(self.ttl.as_duration())
            .priority(self.task.priority.get())
            .holder(holder);
        // The work may outlive this process: the death of the process must not end the lease, only
        // its expiry may.
        if self.ties.patient { ask.process(None) } else { ask }
    }

    /// Runs the handler while the lock is held.
    async fn run(self, guard: Guard) -> Result<AttemptResult> {
        let Self { handler, task, ties, .. } = self;
        let (token, limit) = (guard.token(), Limit::new(&ties, &task));
        if ties.patient {
            let ties = Ties { lock: Some(guard.watch()), ..ties };
            let verdict = limit.run(handler(task, Some(token), ties)).await;
            return match guard.release().await {
                Err(error @ Error::Lost { .. }) => Err(error),
                Ok(()) | Err(_) => Ok(verdict),
            };
        }
        match guard.run(async |_| limit.run(handler(task, Some(token), ties)).await).await {
            Ok(verdict) => Ok(verdict),
            // The handler ended before the loss was detected: its result counts.
            Err(RunError { error, value: Some(verdict) }) => {
                tracing::warn!(%error, "a handler has ended, and the lock that it needed had been lost by then");
                Ok(verdict)
            }
            Err(stopped) => Err(stopped.error),
        }
    }
}

/// Acquires the task's lock, then runs the handler while the lock is held.
async fn under_lock(inner: &Arc<Inner>, lock: LockName, run: Run) -> AttemptResult {
    let holder = format!("task {}", run.task.id);
    let guard = match take_lock(inner, &lock, &holder, None, &run).await {
        Ok(guard) => guard,
        Err(verdict) => return verdict,
    };
    match run.run(guard).await {
        Ok(verdict) => verdict,
        // The lock was lost, and the handler was dropped.
        Err(error) => {
            tracing::warn!(%error, "the lock of a task was lost while it ran");
            AttemptResult::Snooze(clamped(LOCK_LOST))
        }
    }
}

/// Acquires the workflow's lock, then runs the execution while the lock is held. An execution that
/// loses the lock fails, because its progress is unknown.
async fn execute(inner: &Arc<Inner>, lock: LockName, execution: &Execution, run: Run) -> AttemptResult {
    let holder = execution.id.to_string();
    let guard = match take_lock(inner, &lock, &holder, Some(execution.id), &run).await {
        Ok(guard) => guard,
        Err(verdict) => return verdict,
    };
    execution.begun.store(true, Ordering::Relaxed);
    match run.run(guard).await {
        Ok(verdict) => verdict,
        Err(error) => {
            tracing::warn!(%error, execution = %execution.id, "the lock of an execution was lost while it ran");
            AttemptResult::Fail(Message::new(format!("lease lost: {error}")))
        }
    }
}

/// Acquires the lock of a task. If the lock is held, the task keeps its lease and waits in the
/// lock's own queue with its own priority, and occupies no slot. If the task were put off instead,
/// other tasks would overtake it, and another execution could be started in between. A worker that
/// is stopping does not wait any longer. Waiting does not count as an attempt.
async fn take_lock(
    inner: &Arc<Inner>,
    lock: &LockName,
    holder: &str,
    execution: Option<ExecutionId>,
    run: &Run,
) -> Result<Guard, AttemptResult> {
    let mut terms = run.ties.terms.clone();
    let taking = async {
        if let Some(guard) = try_lock(inner, lock, holder, execution, run).await {
            return Ok(guard);
        }
        // An execution waits even beyond the limit: otherwise another execution could be started in
        // between.
        if !run.slot.leave() && execution.is_none() {
            return Err(AttemptResult::Defer(clamped(TOO_MANY_WAIT)));
        }
        let guard = wait_for_lock(inner, lock, holder, execution, run).await;
        run.slot.take_again().await;
        Ok(guard)
    };
    tokio::select! {
        biased;
        _ = stopped(&mut terms) => Err(AttemptResult::Return),
        () = run.ties.ending.cancelled() => Err(AttemptResult::Return),
        taken = taking => taken,
    }
}

/// Acquires the lock if it is free.
async fn try_lock(
    inner: &Arc<Inner>,
    lock: &LockName,
    holder: &str,
    execution: Option<ExecutionId>,
    run: &Run,
) -> Option<Guard> {
    loop {
        match ask(inner, lock, holder, execution, run).acquire().await {
            Ok(guard) => return Some(guard),
            Err(Error::Conflict { .. }) => {
                let cleared = execution.is_some() && is_cleared(inner, lock).await;
                if !cleared {
                    return None;
                }
            }
            Err(error) => {
                tracing::warn!(task = %run.task.id, %error, "the lock of a task could not be asked for; trying again");
                return None;
            }
        }
    }
}

/// Waits in the queue of the lock without a timeout. The position in that queue is kept.
async fn wait_for_lock(
    inner: &Arc<Inner>,
    lock: &LockName,
    holder: &str,
    execution: Option<ExecutionId>,
    run: &Run,
) -> Guard {
    loop {
        let ask = ask(inner, lock, holder, execution, run).strategy(Strategy::Wait(None));
        let mut waiting = std::pin::pin!(ask.acquire());
        let acquired = loop {
            tokio::select! {
                biased;
                acquired = &mut waiting => break acquired,
                () = tokio::time::sleep(LOOK_AGAIN), if execution.is_some() => {
                    is_cleared(inner, lock).await;
                }
            }
        };
        match acquired {
            Ok(guard) => return guard,
            Err(error) => {
                tracing::warn!(task = %run.task.id, %error, "the lock of a task could not be asked for; trying again");
                tokio::time::sleep(AFTER_AN_ERROR).await;
            }
        }
    }
}

fn ask(
    inner: &Arc<Inner>,
    lock: &LockName,
    holder: &str,
    execution: Option<ExecutionId>,
    run: &Run,
) -> LockBuilder {
    let ask = run.ask(inner, lock.clone(), holder);
    if execution.is_some() { ask.meta("execution", holder) } else { ask }
}

/// Takes the lock from an execution that is not running, and returns whether there was such an
/// execution.
async fn is_cleared(inner: &Arc<Inner>, lock: &LockName) -> bool {
    match clear_stale(inner, lock).await {
        Ok(seen) => seen.cleared,
        Err(error) => {
            tracing::warn!(%lock, %error, "whether the lock is stale could not be told");
            false
        }
    }
}

async fn stopped(terms: &mut watch::Receiver<Terms>) -> Stop {
    match terms.wait_for(|terms| terms.stop.is_some()).await.map(|terms| terms.stop) {
        Ok(Some(why)) => why,
        // The sender was dropped: no caller can stop the handler any more.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::Slots;
    use super::*;
    use crate::Leasehold;
    use crate::model::{NewTask, Payload, QueueName, Timestamp, WorkflowName};
    use tokio_util::sync::CancellationToken;

    /// Returns the result of an attempt whose handler is stopped for this reason while it is
    /// polled, and ends because of that in the same poll.
    async fn stopped_within_a_poll(
        why: Stop,
        queue: &QueueName,
        last: AttemptResult,
        patient: bool,
    ) -> AttemptResult {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let ttl = Ttl::from_secs(30);
        let new = NewTask::new(
            crate::model::TaskId::from_uuid(uuid::Uuid::from_u128(1)),
            queue.clone(),
            Payload::default(),
        );
        let task = Task::new(&new, Timestamp::from_micros(1));
        let floor = Arc::<Floor>::default();
        let terms = floor.take(&task, ttl, BootInstant::now());
        let ties =
            Ties { floor, terms, lock: None, ending: CancellationToken::new(), patient, max_runtime: None };
        let handler: Box<Handler> = Box::new(move |task: Arc<Task>, _, ties: Ties| {
            let last = last.clone();
            Box::pin(async move {
                ties.floor.stop(task.id, task.token, why);
                last
            })
        });
        let slot = Slots::new(1).try_take().expect("it is free");
        attempt(leasehold.inner.clone(), Some(handler.into()), Arc::new(task), ttl, ties, slot).await.verdict
    }

    /// Whether a handler ends in the poll in which it receives the stop, or in the next one,
    /// depends on timing.
    #[tokio::test]
    async fn what_was_aborted_is_aborted_however_quickly_its_handler_ends() {
        let (plain, workflow) = (QueueName::new("q").unwrap(), WorkflowName::new("w").unwrap().queue());
        let failed = || AttemptResult::Fail(Message::new("lease lost"));
        for (queue, patient) in [(&plain, false), (&plain, true), (&workflow, false), (&workflow, true)] {
            let ended = stopped_within_a_poll(Stop::Asked, queue, failed(), patient).await;
            assert_eq!(ended, AttemptResult::Abort(None));
            let ended = stopped_within_a_poll(Stop::Asked, queue, AttemptResult::Done(None), patient).await;
            assert_eq!(ended, AttemptResult::Done(None));
        }
        assert_eq!(stopped_within_a_poll(Stop::Ending, &plain, failed(), true).await, AttemptResult::Return);
        assert_eq!(stopped_within_a_poll(Stop::Lost, &plain, failed(), true).await, AttemptResult::Return);
    }
}
