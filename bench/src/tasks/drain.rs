//! Enqueue, drain and start of tasks: in this process, in other processes, and by calls of the store.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use leasehold::model::{AttemptResult, LeaseTasks, QueueName, Settle, Settled, Task, Ttl, WorkerId};
use leasehold::store::TaskStore;
use leasehold::{Leasehold, TaskType};
use tokio::runtime::Runtime;
use uuid::Uuid;

use super::worker::{BenchWorker, NoopTask, WorkerProcess};
use crate::measure::{Window, YIELD_EVERY, now};
use crate::rounds::Figures;
use crate::sandbox::{Sandbox, runtime};

const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(5);

/// Drains with one worker in this process, from its start until the store reports that all tasks are done.
pub(super) fn by_worker(sandbox: &Sandbox, tasks: u64) -> Result<Figures> {
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
        let figures = Figures::since(begun, tasks);
        worker.stop().await;
        Ok(figures)
    })
}

/// Drains with one worker in each of several processes, which are started before the measurement.
pub(super) fn by_processes(sandbox: &Sandbox, tasks: u64, processes: u32) -> Result<Figures> {
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
    let figures = Figures::since(begun, tasks);
    for worker in workers {
        worker.stop()?;
    }
    Ok(figures)
}

async fn wait_until_done(leasehold: &Leasehold) -> Result<()> {
    let tasks = leasehold.tasks()?;
    while tasks.queues().await?.iter().any(|queue| queue.counts.open() > 0) {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Drains with calls of the store: leases a batch, settles it, and repeats.
pub(super) fn by_store(sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Figures> {
    runtime()?.block_on(async {
        let leasehold = Leasehold::connect(&sandbox.url()?).await?;
        fill(&leasehold, tasks).await?;
        let store = leasehold.store();
        let store = store.tasks().context("the store does not support tasks")?;
        let (begun, mut done) = (now(), 0);
        while done < tasks {
            let leased = store.lease(&lease_request(batch)?).await?;
            let settled = settle(store, &leased.tasks).await?;
            ensure!(settled > 0, "{} tasks are left that cannot be leased", tasks - done);
            done += settled;
        }
        Ok(Figures::since(begun, tasks))
    })
}

pub(super) fn lease_request(max: u32) -> Result<LeaseTasks> {
    let (worker, queues) = (WorkerId::from_uuid(Uuid::from_u128(7)), vec![QueueName::new(NoopTask::QUEUE)?]);
    Ok(LeaseTasks::new(worker, queues, max, Ttl::from_secs(30)))
}

/// Settles the tasks as done; returns their number.
pub(super) async fn settle(store: &dyn TaskStore, tasks: &[Task]) -> Result<u64> {
    let done = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) };
    let settle: Vec<_> = tasks.iter().map(done).collect();
    let settled = store.settle(&settle).await?;
    ensure!(settled.iter().all(|settled| *settled != Settled::Lost), "a lease was lost");
    Ok(settled.len() as u64)
}

/// Client of the library; all clients share a handle.
struct Client {
    leasehold: Leasehold,
    tasks: Vec<NoopTask>,
}

impl Enqueuer for Client {
    async fn enqueue(&mut self) -> Result<()> {
        if let [task] = self.tasks.as_slice() {
            self.leasehold.enqueue(task).await?;
        } else {
            self.leasehold.enqueue_all(&self.tasks).await?;
        }
        Ok(())
    }
}

/// Measures clients that enqueue `batch` tasks with each call.
pub(super) fn measure(
    sandbox: &Sandbox,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figures> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    let tasks = vec![NoopTask::unmeasured(); batch as usize];
    let client = |_| Client { leasehold: leasehold.clone(), tasks: tasks.clone() };
    measure_clients(&runtime, (0..clients).map(client).collect(), batch, window())
}

/// Number of tasks per call when a backlog is created.
const FILL_BATCH: usize = 500;

pub(super) async fn fill(leasehold: &Leasehold, tasks: u64) -> Result<()> {
    let mut left = usize::try_from(tasks)?;
    while left > 0 {
        let batch = left.min(FILL_BATCH);
        leasehold.enqueue_all(&vec![NoopTask::unmeasured(); batch]).await?;
        left -= batch;
    }
    Ok(())
}

pub(super) trait Enqueuer: Send + 'static {
    fn enqueue(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Runs all clients until the window has ended; each client is a task of this process.
pub(super) fn measure_clients<A: Enqueuer>(
    runtime: &Runtime,
    clients: Vec<A>,
    batch: u32,
    window: Window,
) -> Result<Figures> {
    let clients: Vec<_> = clients.into_iter().map(|client| runtime.spawn(repeat(client, window))).collect();
    let mut times = Histogram::new(3)?;
    for client in clients {
        times.add(runtime.block_on(client)??)?;
    }
    Ok(Figures::of_calls(times, batch, window))
}

/// Repeats the call; returns the durations.
async fn repeat(mut client: impl Enqueuer, window: Window) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let (mut begun, mut again) = (now(), 0);
    loop {
        client.enqueue().await?;
        let ended = now();
        if ended >= window.until {
            return Ok(times);
        }
        if ended >= window.from {
            times.record(ended - begun)?;
        }
        begun = ended;
        again += 1;
        if again % YIELD_EVERY == 0 {
            tokio::task::yield_now().await;
            begun = now();
        }
    }
}

/// Interval of the tasks: the worker finishes each task before the next is enqueued.
pub(super) const INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a worker without tasks is idle.
const IDLE_AFTER: Duration = Duration::from_millis(300);
/// Timeout for the end of all tasks.
const START_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn in_this_process(sandbox: &Sandbox, seconds: f64) -> Result<Figures> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let leasehold = Leasehold::connect(&sandbox.url()?).await?;
        let worker = BenchWorker::start(&leasehold)?;
        enqueue_at_interval(&leasehold, seconds).await?;
        Ok(Figures::of_times(worker.stop().await))
    })
}

pub(super) fn in_other_process(sandbox: &Sandbox, seconds: f64) -> Result<Figures> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    let mut worker = WorkerProcess::prepare(sandbox)?;
    worker.start()?;
    runtime.block_on(enqueue_at_interval(&leasehold, seconds))?;
    Ok(Figures::of_times(worker.stop()?))
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
    tokio::time::timeout(START_TIMEOUT, wait_until_done(leasehold))
        .await
        .context("a task was not done in time")?
}
