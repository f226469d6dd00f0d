//! Drain benchmark: a worker in this process, workers in other processes, and calls of the store.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::model::{AttemptResult, LeaseTasks, QueueName, Settle, Settled, Task, Ttl, WorkerId};
use leasehold::store::TaskStore;
use leasehold::{Leasehold, TaskType};
use uuid::Uuid;

use super::enqueue::fill;
use super::sample::Sample;
use super::worker::{BenchWorker, NoopTask, WorkerProcess};
use crate::measure::now;
use crate::sandbox::{Sandbox, runtime};

/// Timeout of a drain.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Poll interval for the end of a drain.
const POLL: Duration = Duration::from_millis(5);

/// Drains with one worker in this process, from its start until the store reports that all tasks are done.
pub(super) fn by_worker(sandbox: &Sandbox, tasks: u64) -> Result<Sample> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let leasehold = Leasehold::connect(&sandbox.url()?).await?;
        fill(&leasehold, tasks).await?;
        let begun = now();
        let worker = BenchWorker::start(&leasehold)?;
        let drained = async {
            while worker.started() < tasks {
                tokio::time::sleep(POLL).await;
            }
            wait_until_done(&leasehold).await
        };
        tokio::time::timeout(TIMEOUT, drained).await.context("the backlog was not drained in time")??;
        let sample = Sample::since(begun, tasks);
        worker.stop().await;
        Ok(sample)
    })
}

/// Drains with one worker in each of several processes, which are started before the measurement.
pub(super) fn by_processes(sandbox: &Sandbox, tasks: u64, processes: u32) -> Result<Sample> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    runtime.block_on(fill(&leasehold, tasks))?;
    let mut workers = (0..processes).map(|_| WorkerProcess::prepare(sandbox)).collect::<Result<Vec<_>>>()?;
    let begun = now();
    for worker in &mut workers {
        worker.start()?;
    }
    let done = async { tokio::time::timeout(TIMEOUT, wait_until_done(&leasehold)).await };
    runtime.block_on(done).context("the backlog was not drained in time")??;
    let sample = Sample::since(begun, tasks);
    for worker in workers {
        worker.stop()?;
    }
    Ok(sample)
}

/// Waits until the store has no open tasks.
pub(super) async fn wait_until_done(leasehold: &Leasehold) -> Result<()> {
    let tasks = leasehold.tasks()?;
    while tasks.queues().await?.iter().any(|queue| queue.counts.open() > 0) {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Drains with calls of the store: leases a batch, settles it, and repeats.
pub(super) fn by_store(sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Sample> {
    runtime()?.block_on(async {
        let leasehold = Leasehold::connect(&sandbox.url()?).await?;
        fill(&leasehold, tasks).await?;
        let store = leasehold.store();
        let store = store.tasks().context("the store does not support tasks")?;
        let (begun, mut done) = (now(), 0);
        while done < tasks {
            let settled = lease_and_settle(store, batch).await?;
            ensure!(settled > 0, "{} tasks are left that cannot be leased", tasks - done);
            done += settled;
        }
        Ok(Sample::since(begun, tasks))
    })
}

async fn lease_and_settle(store: &dyn TaskStore, batch: u32) -> Result<u64> {
    let leased = store.lease(&lease_request(batch)?).await?;
    settle(store, &leased.tasks).await
}

/// Returns the lease request of a worker.
pub(super) fn lease_request(max: u32) -> Result<LeaseTasks> {
    let (worker, queues) = (WorkerId::from_uuid(Uuid::from_u128(7)), vec![QueueName::new(NoopTask::QUEUE)?]);
    Ok(LeaseTasks::new(worker, queues, max, Ttl::from_secs(30)))
}

/// Settles the tasks as done; returns their number.
pub(super) async fn settle(store: &dyn TaskStore, tasks: &[Task]) -> Result<u64> {
    let done = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) };
    let settle: Vec<_> = tasks.iter().map(done).collect();
    let settled = store.settle(&settle).await?;
    ensure!(settled.iter().all(|settled| *settled != Settled::Lost), "a lease was lost");
    Ok(settled.len() as u64)
}
