//! Time from enqueue to start with an idle worker.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::Leasehold;

use super::drain::wait_until_done;
use super::sample::Sample;
use super::worker::{BenchWorker, NoopTask, WorkerProcess};
use crate::sandbox::{Sandbox, runtime};

/// Interval of the tasks: the worker finishes each task before the next is enqueued.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a worker without tasks is idle.
const IDLE_AFTER: Duration = Duration::from_millis(300);
/// Timeout for the end of all tasks.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Measures with the worker in this process.
pub(super) fn in_this_process(sandbox: &Sandbox, seconds: f64) -> Result<Sample> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let leasehold = Leasehold::connect(&sandbox.url()?).await?;
        let worker = BenchWorker::start(&leasehold)?;
        enqueue_at_interval(&leasehold, seconds).await?;
        Ok(sample(worker.stop().await))
    })
}

/// Measures with the worker in another process.
pub(super) fn in_other_process(sandbox: &Sandbox, seconds: f64) -> Result<Sample> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    let mut worker = WorkerProcess::prepare(sandbox)?;
    worker.start()?;
    runtime.block_on(enqueue_at_interval(&leasehold, seconds))?;
    Ok(sample(worker.stop()?))
}

fn sample(times: Histogram<u64>) -> Sample {
    Sample { rate: None, times: Some(times) }
}

/// Enqueues tasks at the interval, and waits until the store reports that all are done.
async fn enqueue_at_interval(leasehold: &Leasehold, seconds: f64) -> Result<()> {
    leasehold.enqueue(&NoopTask::unmeasured()).await?;
    wait_until_drained(leasehold).await?;
    tokio::time::sleep(IDLE_AFTER).await;
    let mut schedule = tokio::time::interval(INTERVAL);
    let ticks = (seconds / INTERVAL.as_secs_f64()).ceil();
    for _ in std::iter::successors(Some(1.0), |tick| (*tick < ticks).then_some(tick + 1.0)) {
        schedule.tick().await;
        leasehold.enqueue(&NoopTask::sent_now()).await?;
    }
    wait_until_drained(leasehold).await
}

async fn wait_until_drained(leasehold: &Leasehold) -> Result<()> {
    tokio::time::timeout(TIMEOUT, wait_until_done(leasehold)).await.context("a task was not done in time")?
}
