//! Conditions under which a worker stops by itself.

use std::time::Duration;

use leasehold::model::{ExecutionId, QueueName, TaskState, WorkerId};
use leasehold::store::ListTasks;
use leasehold::{Error, Leasehold, Result, Tasks};

use super::shop::Shop;

/// Stop condition of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Never; the worker runs until it is asked to stop.
    Asked,
    /// The worker has started one task.
    One,
    /// No task is left that could run now.
    Empty,
    /// The worker has started this execution, or the execution is over because another worker ran
    /// it.
    Execution(ExecutionId),
}

/// Interval at which an idle worker checks for remaining tasks; the poll interval of the store if
/// that is longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Resolves when the stop condition is met.
pub(super) async fn enough(
    until: Until,
    shop: &Shop,
    leasehold: &Leasehold,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<()> {
    let tasks = &leasehold.tasks()?;
    let look_every = LOOK_EVERY.max(leasehold.capabilities().poll);
    match until {
        Until::Asked => std::future::pending().await,
        Until::One => begun(shop).await,
        Until::Execution(id) => tokio::select! {
            () = begun(shop) => {}
            over = is_over(leasehold, id) => over?,
        },
        Until::Empty => {
            let mut ticked = false;
            loop {
                // The first worker that reads the schedules also creates the tasks of ticks that no
                // worker saw. So do that before the queues are checked.
                let empty = async {
                    if !ticked {
                        tick(leasehold).await?;
                        ticked = true;
                    }
                    is_empty(shop, tasks, worker, queues).await
                };
                match empty.await {
                    Ok(true) => break,
                    Ok(false) => tokio::time::sleep(look_every).await,
                    // The worker retries as well.
                    Err(error) if error.is_retryable() => tokio::time::sleep(LOOK_EVERY * 10).await,
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
async fn begun(shop: &Shop) {
    // The sender lives in the shop, so the channel cannot be closed.
    let _ = shop.tally.subscribe().wait_for(|tally| tally.begun > 0).await;
}

/// Resolves when an execution is over.
async fn is_over(leasehold: &Leasehold, id: ExecutionId) -> Result<()> {
    let workflows = leasehold.workflows()?;
    loop {
        match workflows.get(id).await {
            Ok(execution) if execution.state.is_terminal() => return Ok(()),
            Err(error) if !error.is_retryable() => return Err(error),
            Ok(_) | Err(_) => tokio::time::sleep(LOOK_EVERY * 5).await,
        }
    }
}

/// Whether no task is pending, due, or held by this worker. Tasks that other workers run, scheduled
/// tasks and paused queues do not count.
async fn is_empty(shop: &Shop, tasks: &Tasks, worker: WorkerId, queues: &[QueueName]) -> Result<bool> {
    let before = *shop.tally.borrow();
    if before.begun != before.ended || has_any(tasks, worker).await? {
        return Ok(false);
    }
    tasks.recover(1000).await?; // Due tasks are pending after this.
    let mut waits = false;
    for queue in queues {
        waits |= match tasks.queue(queue).await {
            Ok(status) => status.paused.is_none() && status.counts.get(TaskState::Pending) > 0,
            Err(Error::UnknownQueue { .. }) => false,
            Err(error) => return Err(error),
        };
    }
    // Tasks that this worker ran in between may have enqueued new ones.
    let after = *shop.tally.borrow();
    Ok(!waits && after == before && !has_any(tasks, worker).await?)
}

/// Whether the store shows a running task of this worker.
async fn has_any(tasks: &Tasks, worker: WorkerId) -> Result<bool> {
    let ask = ListTasks {
        state: Some(TaskState::Running),
        worker: Some(worker),
        limit: 1,
        brief: true,
        ..ListTasks::default()
    };
    Ok(!tasks.list(&ask).await?.items.is_empty())
}
