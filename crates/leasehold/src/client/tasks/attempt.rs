//! One attempt: its lock if it has one, its handler, and how it ends when it has to stop before it is done.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::floor::{Floor, Stop, Terms};
use super::foreman::Handler;
use super::running::Ties;
use super::slots::Slot;
use super::work::clamped;
use crate::client::builder::LockBuilder;
use crate::client::guard::Guard;
use crate::client::leasehold::Inner;
use crate::client::run_error::RunError;
use crate::client::strategy::Strategy;
use crate::client::workflows::clear_stale;
use crate::error::{Error, Result};
use crate::model::{Brief, ExecutionId, LockName, Note, Task, TaskId, Token, Ttl, Verdict, format_duration};
use crate::store::Moment;

/// How long a task is put off that has lost its lock.
const LOCK_LOST: Duration = Duration::from_secs(1);
/// A task whose lock is held is put off for so long if the worker waits for too many locks already.
const TOO_MANY_WAIT: Duration = Duration::from_secs(5);
/// An execution that waits for its lock looks this often whether whoever has it is still at work.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The pause before the lock is asked for again after an error.
const AFTER_AN_ERROR: Duration = Duration::from_secs(1);

/// How an attempt went: what to tell the store, and how long it took.
pub(super) struct Ended {
    pub(super) verdict: Verdict,
    pub(super) took: Duration,
    /// It has waited for its lock: how long it took says nothing about its handler.
    pub(super) has_waited: bool,
}

/// What is special about executions of workflows.
struct Execution {
    id: ExecutionId,
    max_runtime: Option<Ttl>,
    /// Whether its handler was called.
    begun: AtomicBool,
}

impl Execution {
    fn of(task: &Task) -> Option<Self> {
        let id = ExecutionId::of_task(task)?;
        Some(Self { id, max_runtime: Brief::of(task).max_runtime, begun: false.into() })
    }
}

/// One attempt: the lock if there is one, then the handler, until it is done or has to stop.
pub(super) async fn attempt(
    inner: Arc<Inner>,
    handler: Option<Arc<Handler>>,
    task: Arc<Task>,
    ttl: Ttl,
    ties: Ties,
    slot: Arc<Slot>,
) -> Ended {
    let began = Moment::now();
    let (mut terms, patient) = (ties.terms.clone(), ties.patient);
    let execution = Execution::of(&task);
    let own_limit = execution.as_ref().and_then(|execution| execution.max_runtime);
    let max_runtime = own_limit.into_iter().chain(ties.max_runtime).min();
    let ties = Ties { max_runtime, ..ties };
    let stopped_as = |why, last| stopped_as(why, last, execution.as_ref(), max_runtime);
    let its_slot = slot.clone();
    let mut work = std::pin::pin!(async {
        let Some(handler) = handler else { return Verdict::Return };
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
            // While a patient handler came to its end, the lease may have been lost after all.
            let why = terms.borrow().stop.unwrap_or(why);
            stopped_as(why, last)
        },
        verdict = &mut work => {
            // It may have been told to stop, and have ended by that, within this very poll.
            match terms.borrow().stop {
                Some(why) => stopped_as(why, Some(verdict)),
                None => verdict,
            }
        }
    };
    Ended { verdict, took: Moment::now().after(began), has_waited: its_slot.has_waited() }
}

/// What to tell the store of an attempt that had to stop.
fn stopped_as(
    why: Stop,
    last: Option<Verdict>,
    execution: Option<&Execution>,
    max_runtime: Option<Ttl>,
) -> Verdict {
    let begun = execution.filter(|execution| execution.begun.load(Ordering::Relaxed));
    match (why, last, begun) {
        // The store decides by the token whether it still counts.
        (_, Some(done @ Verdict::Done(_)), _) => done,
        // The store may still have the lease, and go on waiting for its end. If not, the old token changes nothing.
        (Stop::Lost | Stop::Ending, _, None) => Verdict::Return,
        (Stop::Lost, _, Some(_)) => Verdict::Fail(Note::new(
            "lease lost: it could not be renewed in time, and nobody knows how far it came",
        )),
        (Stop::Asked, ..) => Verdict::Abort(None),
        (Stop::Overdue, ..) => {
            let after =
                max_runtime.map(|after| format!(": it ran for {}", format_duration(after.as_duration())));
            let why = Note::new(format!("timeout{}", after.unwrap_or_default()));
            match execution {
                Some(_) => Verdict::Abort(Some(why)),
                None => Verdict::Retry(why, None),
            }
        }
        // What has begun must not begin again somewhere else.
        (Stop::Ending, _, Some(_)) => {
            Verdict::Abort(Some(Note::new("shutdown: its worker ended before it was done")))
        }
    }
}

/// How long a handler may run, and what stops it after that.
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

    /// Runs the handler, and has it stopped when its time is over. A patient handler ends by itself after that.
    async fn run(self, mut work: Pin<Box<dyn Future<Output = Verdict> + Send>>) -> Verdict {
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

/// What a handler is called with.
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
        // The work may live longer than this process: only time can tell that it is over.
        if self.ties.patient { ask.process(None) } else { ask }
    }

    /// Runs the handler while the lock is held.
    async fn run(self, guard: Guard) -> Result<Verdict> {
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
            // The handler had ended before the loss was known: its result counts.
            Err(RunError { error, value: Some(verdict) }) => {
                tracing::warn!(%error, "a handler has ended, and the lock that it needed had been lost by then");
                Ok(verdict)
            }
            Err(stopped) => Err(stopped.error),
        }
    }
}

/// Runs the handler while the task's lock is held.
async fn under_lock(inner: &Arc<Inner>, lock: LockName, run: Run) -> Verdict {
    let holder = format!("task {}", run.task.id);
    let guard = match take_lock(inner, &lock, &holder, None, &run).await {
        Ok(guard) => guard,
        Err(verdict) => return verdict,
    };
    match run.run(guard).await {
        Ok(verdict) => verdict,
        // The lock was lost, and the handler with it.
        Err(error) => {
            tracing::warn!(%error, "the lock of a task was lost while it ran");
            Verdict::Snooze(clamped(LOCK_LOST))
        }
    }
}

/// Runs an execution while its workflow's lock is held. What has lost the lock has failed, as nobody knows how far it came.
async fn execute(inner: &Arc<Inner>, lock: LockName, execution: &Execution, run: Run) -> Verdict {
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
            Verdict::Fail(Note::new(format!("lease lost: {error}")))
        }
    }
}

/// Takes the lock of a task. If it is held, the task waits where it is, with its lease, in the lock's own queue and with its own
/// priority, and occupies no slot: were it put off, others would overtake it, and another execution could be started in
/// between. A worker that ends waits no longer. Waiting is no attempt.
async fn take_lock(
    inner: &Arc<Inner>,
    lock: &LockName,
    holder: &str,
    execution: Option<ExecutionId>,
    run: &Run,
) -> Result<Guard, Verdict> {
    let mut terms = run.ties.terms.clone();
    let taking = async {
        if let Some(guard) = try_lock(inner, lock, holder, execution, run).await {
            return Ok(guard);
        }
        // An execution waits in any case: another one could be started in between.
        if !run.slot.leave() && execution.is_none() {
            return Err(Verdict::Defer(clamped(TOO_MANY_WAIT)));
        }
        let guard = wait_for_lock(inner, lock, holder, execution, run).await;
        run.slot.take_again().await;
        Ok(guard)
    };
    tokio::select! {
        biased;
        _ = stopped(&mut terms) => Err(Verdict::Return),
        () = run.ties.ending.cancelled() => Err(Verdict::Return),
        taken = taking => taken,
    }
}

/// Takes the lock if it is free.
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

/// Waits in the queue of the lock, for as long as it takes. The place in that queue is kept.
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

/// Takes the lock from an execution that is not running; says whether there was one.
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
        // Nobody is left who could want it stopped.
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

    /// How an attempt ends whose handler is stopped for this reason while it is polled, and ends by that in the same poll.
    async fn stopped_within_a_poll(why: Stop, queue: &QueueName, last: Verdict, patient: bool) -> Verdict {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let ttl = Ttl::from_secs(30);
        let new = NewTask::new(
            crate::model::TaskId::from_uuid(uuid::Uuid::from_u128(1)),
            queue.clone(),
            Payload::default(),
        );
        let task = Task::new(&new, Timestamp::from_micros(1));
        let floor = Arc::<Floor>::default();
        let terms = floor.take(&task, ttl, Moment::now());
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

    /// Whether a handler ends in the poll in which it learns that it has to stop, or in the next one, is chance.
    #[tokio::test]
    async fn what_was_aborted_is_aborted_however_quickly_its_handler_ends() {
        let (plain, workflow) = (QueueName::new("q").unwrap(), WorkflowName::new("w").unwrap().queue());
        let failed = || Verdict::Fail(Note::new("lease lost"));
        for (queue, patient) in [(&plain, false), (&plain, true), (&workflow, false), (&workflow, true)] {
            let ended = stopped_within_a_poll(Stop::Asked, queue, failed(), patient).await;
            assert_eq!(ended, Verdict::Abort(None));
            let ended = stopped_within_a_poll(Stop::Asked, queue, Verdict::Done(None), patient).await;
            assert_eq!(ended, Verdict::Done(None));
        }
        assert_eq!(stopped_within_a_poll(Stop::Ending, &plain, failed(), true).await, Verdict::Return);
        assert_eq!(stopped_within_a_poll(Stop::Lost, &plain, failed(), true).await, Verdict::Return);
    }
}
