//! Conditions and signals that stop a worker.

use std::io;
use std::time::Duration;

use leasehold::model::{ExecutionId, QueueName, TaskState, WorkerId};
use leasehold::store::ListTasks;
use leasehold::{Error, Leasehold, Result, Tasks};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::context::WorkerContext;
use crate::run::is_ignored;

/// Stop condition of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCondition {
    /// None: the worker runs until a signal asks it to stop.
    Never,
    /// The worker has started one task.
    OneTask,
    /// No task is left that could run now.
    QueuesEmpty,
    /// The worker has started this execution, or the execution is over because another worker ran
    /// it.
    Execution(ExecutionId),
}

/// Interval at which an idle worker checks for remaining tasks; the poll interval of the store if
/// that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Resolves when the stop condition is met.
pub(super) async fn wait_for_stop(
    condition: StopCondition,
    context: &WorkerContext,
    leasehold: &Leasehold,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<()> {
    let tasks = &leasehold.tasks()?;
    let poll_interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
    match condition {
        StopCondition::Never => std::future::pending().await,
        StopCondition::OneTask => attempt_started(context).await,
        StopCondition::Execution(id) => tokio::select! {
            () = attempt_started(context) => {}
            finished = execution_finished(leasehold, id) => finished?,
        },
        StopCondition::QueuesEmpty => {
            let mut ticked = false;
            loop {
                // The first worker that reads the schedules also creates the tasks of ticks that no
                // worker saw. So do that before the queues are checked.
                let empty = async {
                    if !ticked {
                        tick(leasehold).await?;
                        ticked = true;
                    }
                    is_empty(context, tasks, worker, queues).await
                };
                match empty.await {
                    Ok(true) => break,
                    Ok(false) => tokio::time::sleep(poll_interval).await,
                    // The worker retries as well.
                    Err(error) if error.is_retryable() => tokio::time::sleep(POLL_INTERVAL * 10).await,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Creates the tasks of all due ticks, if the store supports schedules.
async fn tick(leasehold: &Leasehold) -> Result<()> {
    match leasehold.schedules() {
        Ok(schedules) => schedules.tick().await,
        // The store has no schedules.
        Err(_) => Ok(()),
    }
}

/// Resolves when an attempt has started.
async fn attempt_started(context: &WorkerContext) {
    // The sender lives in the context, so the channel cannot be closed.
    let _ = context.counts.subscribe().wait_for(|counts| counts.started > 0).await;
}

/// Resolves when an execution is over.
async fn execution_finished(leasehold: &Leasehold, id: ExecutionId) -> Result<()> {
    let workflows = leasehold.workflows()?;
    loop {
        match workflows.get(id).await {
            Ok(execution) if execution.state.is_terminal() => return Ok(()),
            Err(error) if !error.is_retryable() => return Err(error),
            Ok(_) | Err(_) => tokio::time::sleep(POLL_INTERVAL * 5).await,
        }
    }
}

/// Whether no task is pending, due, or held by this worker. Tasks that other workers run, scheduled
/// tasks and paused queues do not count.
async fn is_empty(
    context: &WorkerContext,
    tasks: &Tasks,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<bool> {
    let before = *context.counts.borrow();
    if before.started != before.ended || has_running_task(tasks, worker).await? {
        return Ok(false);
    }
    tasks.recover(1000).await?; // Due tasks are pending after this.
    let mut pending = false;
    for queue in queues {
        pending |= match tasks.queue(queue).await {
            Ok(status) => status.paused.is_none() && status.counts.get(TaskState::Pending) > 0,
            Err(Error::UnknownQueue { .. }) => false,
            Err(error) => return Err(error),
        };
    }
    // Tasks that this worker ran in between may have enqueued new ones.
    let after = *context.counts.borrow();
    Ok(!pending && after == before && !has_running_task(tasks, worker).await?)
}

/// Whether the store shows a running task of this worker.
async fn has_running_task(tasks: &Tasks, worker: WorkerId) -> Result<bool> {
    let query = ListTasks::default().state(TaskState::Running).worker(worker).limit(1).brief(true);
    Ok(!tasks.list(&query).await?.items.is_empty())
}

/// Subscription to the signals that ask this process to stop.
pub(crate) struct StopSignals {
    signals: Vec<(i32, Signal)>,
}

impl StopSignals {
    /// Starts to listen. Ignored signals stay ignored: `nohup` and shells rely on that.
    pub(crate) fn listen() -> io::Result<Self> {
        let wanted = [nix::libc::SIGINT, nix::libc::SIGTERM, nix::libc::SIGHUP];
        let wanted = wanted.into_iter().filter(|number| !is_ignored(*number));
        let signals = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Self { signals: signals.collect::<io::Result<_>>()? })
    }

    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let ready = self
                .signals
                .iter_mut()
                .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}
