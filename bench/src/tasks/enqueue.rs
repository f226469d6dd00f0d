//! Enqueue benchmark: clients that enqueue tasks concurrently, and the client of the library.

use anyhow::Result;
use hdrhistogram::Histogram;
use leasehold::Leasehold;
use tokio::runtime::Runtime;

use super::sample::Sample;
use super::worker::NoopTask;
use crate::measure::{Window, now};
use crate::sandbox::{Sandbox, runtime};

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
) -> Result<Sample> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    let tasks = vec![NoopTask::unmeasured(); batch as usize];
    let client = |_| Client { leasehold: leasehold.clone(), tasks: tasks.clone() };
    measure_clients(&runtime, (0..clients).map(client).collect(), batch, window())
}

/// Number of tasks per call when a backlog is created.
const FILL_BATCH: usize = 500;

/// Enqueues a backlog of tasks.
pub(super) async fn fill(leasehold: &Leasehold, tasks: u64) -> Result<()> {
    let mut left = usize::try_from(tasks)?;
    while left > 0 {
        let batch = left.min(FILL_BATCH);
        leasehold.enqueue_all(&vec![NoopTask::unmeasured(); batch]).await?;
        left -= batch;
    }
    Ok(())
}

/// Client that enqueues tasks.
pub(super) trait Enqueuer: Send + 'static {
    /// Enqueues one batch.
    fn enqueue(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Runs all clients until the window has ended; each client is a task of this process.
pub(super) fn measure_clients<A: Enqueuer>(
    runtime: &Runtime,
    clients: Vec<A>,
    batch: u32,
    window: Window,
) -> Result<Sample> {
    let clients: Vec<_> = clients.into_iter().map(|client| runtime.spawn(repeat(client, window))).collect();
    let mut times = Histogram::new(3)?;
    for client in clients {
        times.add(runtime.block_on(client)??)?;
    }
    Ok(Sample::of_calls(times, batch, window))
}

/// Number of calls after which a client yields to the other clients of its thread.
const YIELD_EVERY: u32 = 64;

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
