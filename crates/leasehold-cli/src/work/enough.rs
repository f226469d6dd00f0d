//! When a worker has had enough.

use std::time::Duration;

use leasehold::model::{ExecutionId, QueueName, TaskState, WorkerId};
use leasehold::store::ListTasks;
use leasehold::{Error, Leasehold, Result, Tasks};

use super::shop::Shop;

/// How long a worker works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Until it is asked to end.
    Asked,
    /// Until it has begun a task.
    One,
    /// Until there is nothing that could run now.
    Empty,
    /// Until it has begun this execution, or that is over because somebody else has.
    Execution(ExecutionId),
}

/// So often an idle worker looks whether there is anything left, or as often as the store polls if that is longer.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Resolves when it has.
pub(super) async fn enough(
    until: Until,
    shop: &Shop,
    leasehold: &Leasehold,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<()> {
    let tasks = &leasehold.tasks()?;
    let look_every = LOOK_EVERY.max(leasehold.abilities().poll);
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
                // Ticks that no worker saw become tasks too, when the first worker looks at the schedules.
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
                    // The worker goes on as well.
                    Err(error) if error.is_retryable() => tokio::time::sleep(LOOK_EVERY * 10).await,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Makes tasks of all ticks that are due, where there are schedules.
async fn tick(leasehold: &Leasehold) -> Result<()> {
    match leasehold.schedules() {
        Ok(schedules) => schedules.tick().await,
        // A store without schedules.
        Err(_) => Ok(()),
    }
}

/// Resolves when an attempt has begun.
async fn begun(shop: &Shop) {
    // The sender lives in the shop, so it cannot be gone.
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

/// Nothing is in line, due, or in our hands. What others run, what waits for its time and what is paused does not count.
async fn is_empty(shop: &Shop, tasks: &Tasks, worker: WorkerId, queues: &[QueueName]) -> Result<bool> {
    let before = *shop.tally.borrow();
    if before.begun != before.ended || has_any(tasks, worker).await? {
        return Ok(false);
    }
    tasks.recover(1000).await?; // What is due is in line after this.
    let mut waits = false;
    for queue in queues {
        waits |= match tasks.queue(queue).await {
            Ok(status) => status.paused.is_none() && status.counts.get(TaskState::Pending) > 0,
            Err(Error::UnknownQueue { .. }) => false,
            Err(error) => return Err(error),
        };
    }
    // What we have taken and done in between may have brought something new.
    let after = *shop.tally.borrow();
    Ok(!waits && after == before && !has_any(tasks, worker).await?)
}

/// Whether the store knows of a task that this worker has.
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
