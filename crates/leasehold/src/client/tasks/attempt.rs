//! One attempt: its lock if it has one, its handler, and how it ends when it has to stop before it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::floor::{Stop, Terms};
use super::foreman::Handler;
use super::running::Ties;
use super::work::clamped;
use crate::client::builder::LockBuilder;
use crate::client::guard::Guard;
use crate::client::leasehold::Inner;
use crate::client::workflows::clear_stale;
use crate::error::{Error, Result};
use crate::model::{Brief, ExecutionId, LockName, Note, Task, Ttl, Verdict, format_duration};
use crate::store::Moment;

/// How long a task is put off whose lock somebody else has.
const LOCK_TAKEN: Duration = Duration::from_secs(1);
/// An execution that waits for its lock looks this often whether whoever has it is still at work.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How an attempt went: what to tell the store, if anything, and how long it took.
pub(super) struct Ended {
    pub(super) verdict: Option<Verdict>,
    pub(super) took: Duration,
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
) -> Ended {
    let began = Moment::now();
    let (mut terms, patient) = (ties.terms.clone(), ties.patient);
    let execution = Execution::of(&task);
    let mut work = std::pin::pin!(async {
        let Some(handler) = handler else { return Verdict::Return };
        match (task.lock.clone(), &execution) {
            (Some(lock), Some(execution)) => {
                execute(&inner, lock, execution, Run { handler, task, ttl, ties }).await
            }
            (Some(lock), None) => under_lock(&inner, lock, Run { handler, task, ttl, ties }).await,
            (None, _) => handler(task, None, ties).await,
        }
    });
    let verdict = tokio::select! {
        biased;
        why = stopped(&mut terms) => {
            let last = if patient { Some(work.await) } else { None };
            // While a patient handler came to its end, the lease may have been lost after all.
            let why = terms.borrow().stop.unwrap_or(why);
            stopped_as(why, last, execution.as_ref())
        },
        verdict = &mut work => Some(verdict),
    };
    Ended { verdict, took: Moment::now().after(began) }
}

/// What to tell the store of an attempt that had to stop.
fn stopped_as(why: Stop, last: Option<Verdict>, execution: Option<&Execution>) -> Option<Verdict> {
    let begun = execution.filter(|execution| execution.begun.load(Ordering::Relaxed));
    match (why, last, begun) {
        (Stop::Lost, ..) => None,
        (_, Some(done @ Verdict::Done(_)), _) => Some(done),
        (Stop::Asked, ..) => Some(Verdict::Abort(None)),
        (Stop::Overdue, ..) => {
            let after = execution.and_then(|execution| execution.max_runtime).map(Ttl::as_duration);
            let after = after.map(|after| format!(": it ran for {}", format_duration(after)));
            Some(Verdict::Abort(Some(Note::new(format!("timeout{}", after.unwrap_or_default())))))
        }
        // What has begun must not begin again somewhere else.
        (Stop::Ending, _, Some(_)) => {
            Some(Verdict::Abort(Some(Note::new("shutdown: its worker ended before it was done"))))
        }
        (Stop::Ending, _, None) => Some(Verdict::Return),
    }
}

/// What a handler is called with.
struct Run {
    handler: Arc<Handler>,
    task: Arc<Task>,
    ttl: Ttl,
    ties: Ties,
}

impl Run {
    fn ask(&self, inner: &Arc<Inner>, lock: LockName, holder: &str) -> LockBuilder {
        let ask = LockBuilder::new(inner.clone(), lock).ttl(self.ttl.as_duration()).holder(holder);
        // The work may live longer than this process: only time can tell that it is over.
        if self.ties.patient { ask.process(None) } else { ask }
    }

    /// Runs the handler while the lock is held.
    async fn run(self, guard: Guard, max_runtime: Option<Ttl>) -> Result<Verdict> {
        let Self { handler, task, ties, .. } = self;
        let token = guard.token();
        let overdue = {
            let (floor, id, token) = (ties.floor.clone(), task.id, task.token);
            async move {
                match max_runtime {
                    Some(longest) => tokio::time::sleep(longest.as_duration()).await,
                    None => std::future::pending().await,
                }
                floor.stop(id, token, Stop::Overdue);
                std::future::pending::<()>().await;
            }
        };
        let within = async |work: std::pin::Pin<Box<dyn Future<Output = Verdict> + Send>>| {
            tokio::select! {
                verdict = work => verdict,
                () = overdue => unreachable!("it is pending for ever"),
            }
        };
        if ties.patient {
            let ties = Ties { lock: Some(guard.watch()), ..ties };
            let verdict = within(handler(task, Some(token), ties)).await;
            return match guard.release().await {
                Err(error @ Error::Lost { .. }) => Err(error),
                Ok(()) | Err(_) => Ok(verdict),
            };
        }
        guard.run(async |_| within(handler(task, Some(token), ties)).await).await
    }
}

/// Runs the handler while the task's lock is held. Whoever else has the lock, has it: the task comes back later, and
/// that is no attempt.
async fn under_lock(inner: &Arc<Inner>, lock: LockName, run: Run) -> Verdict {
    let guard = match run.ask(inner, lock, &format!("task {}", run.task.id)).acquire().await {
        Ok(guard) => guard,
        Err(Error::Conflict { .. }) => return Verdict::Snooze(clamped(LOCK_TAKEN)),
        Err(error) => {
            tracing::warn!(task = %run.task.id, %error, "the lock of a task could not be asked for");
            return Verdict::Snooze(clamped(LOCK_TAKEN));
        }
    };
    match run.run(guard, None).await {
        Ok(verdict) => verdict,
        // The lock was lost, and the handler with it.
        Err(error) => {
            tracing::warn!(%error, "the lock of a task was lost while it ran");
            Verdict::Snooze(clamped(LOCK_TAKEN))
        }
    }
}

/// Runs an execution while its workflow's lock is held. It waits for the lock in its place: were it put off, another one could
/// be started in between. What has lost the lock has failed, as nobody knows how far it came.
async fn execute(inner: &Arc<Inner>, lock: LockName, execution: &Execution, run: Run) -> Verdict {
    let mut terms = run.ties.terms.clone();
    let guard = tokio::select! {
        biased;
        _ = stopped(&mut terms) => return Verdict::Return,
        guard = wait_for_lock(inner, &lock, execution.id, &run) => guard,
    };
    execution.begun.store(true, Ordering::Relaxed);
    match run.run(guard, execution.max_runtime).await {
        Ok(verdict) => verdict,
        Err(error) => {
            tracing::warn!(%error, execution = %execution.id, "the lock of an execution was lost while it ran");
            Verdict::Fail(Note::new(format!("lease lost: {error}")))
        }
    }
}

async fn wait_for_lock(inner: &Arc<Inner>, lock: &LockName, id: ExecutionId, run: &Run) -> Guard {
    let holder = id.to_string();
    let mut patience = Duration::ZERO;
    loop {
        let ask = run.ask(inner, lock.clone(), &holder).meta("execution", &holder);
        let ask = if patience.is_zero() { ask } else { ask.wait(patience) };
        let error = match ask.acquire().await {
            Ok(guard) => return guard,
            Err(Error::Conflict { .. }) => match clear_stale(inner, lock).await {
                Ok(seen) if seen.cleared => continue,
                Ok(_) => {
                    patience = LOOK_AGAIN;
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::warn!(execution = %id, %error, "the lock of an execution could not be asked for; trying again");
        tokio::time::sleep(LOCK_TAKEN).await;
    }
}

async fn stopped(terms: &mut watch::Receiver<Terms>) -> Stop {
    match terms.wait_for(|terms| terms.stop.is_some()).await.map(|terms| terms.stop) {
        Ok(Some(why)) => why,
        // Nobody is left who could want it stopped.
        _ => std::future::pending().await,
    }
}
