//! Worker with default settings and an empty handler, in this process or in another one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use crate::child::{ChildProcess, read_after_ready, read_line};
use crate::measure::{from_steps, now, steps};
use crate::sandbox::{Sandbox, runtime};

/// Grace period of the shutdown; the worker is idle by then.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NoopTask {
    /// Time of the enqueue; 0 if it is not measured.
    sent: u64,
}

impl TaskType for NoopTask {
    const QUEUE: &'static str = "bench";
}

impl NoopTask {
    /// Returns a task whose wait is not measured.
    pub(super) const fn unmeasured() -> Self {
        Self { sent: 0 }
    }

    pub(super) fn sent_now() -> Self {
        Self { sent: now() }
    }
}

#[derive(Debug)]
struct Observed {
    tasks: AtomicU64,
    /// Time from enqueue to start, of measured tasks.
    waits: Mutex<Histogram<u64>>,
}

impl Observed {
    fn waits(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct BenchWorker {
    worker: Worker,
    observed: Arc<Observed>,
}

impl BenchWorker {
    /// Starts the worker on the current runtime.
    pub(super) fn start(leasehold: &Leasehold) -> Result<Self> {
        let observed = Arc::new(Observed { tasks: AtomicU64::new(0), waits: Mutex::new(Histogram::new(3)?) });
        let handler = |task: TaskContext<NoopTask>, observed: Arc<Observed>| async move {
            let begun = now();
            observed.tasks.fetch_add(1, Ordering::Relaxed);
            if task.payload.sent > 0 {
                // The histogram resizes itself, so recording cannot fail.
                let _ = observed.waits().record(begun - task.payload.sent);
            }
            Ok::<(), HandlerError>(())
        };
        let worker = leasehold.worker().handle_with(observed.clone(), handler).start()?;
        Ok(Self { worker, observed })
    }

    pub(super) fn started(&self) -> u64 {
        self.observed.tasks.load(Ordering::Relaxed)
    }

    /// Stops the worker; returns the times from enqueue to start.
    pub(super) async fn stop(self) -> Histogram<u64> {
        self.worker.stop(GRACE).await;
        self.observed.waits().clone()
    }
}

/// Runs a worker process: prints `ready`, starts at the first line of input, stops at the next, prints the
/// measured times.
pub(crate) fn serve(sandbox: &Sandbox) -> Result<()> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    if read_after_ready()?.is_empty() {
        return Ok(());
    }
    let worker = runtime.block_on(async { BenchWorker::start(&leasehold) })?;
    read_line()?;
    println!("{}", serde_json::to_string(&steps(&runtime.block_on(worker.stop())))?);
    Ok(())
}

pub(super) struct WorkerProcess(ChildProcess);

impl WorkerProcess {
    /// Starts the process, and waits until it is connected.
    pub(super) fn prepare(sandbox: &Sandbox) -> Result<Self> {
        let mut process = ChildProcess::start("task-worker", sandbox)?;
        process.wait_until_ready()?;
        Ok(Self(process))
    }

    pub(super) fn start(&mut self) -> Result<()> {
        self.0.send("begin")
    }

    /// Stops the worker; returns the times from enqueue to start.
    pub(super) fn stop(mut self) -> Result<Histogram<u64>> {
        self.0.send("end")?;
        let line = self.0.read_line()?;
        from_steps(serde_json::from_str(&line).context("the worker process printed no result")?)
    }
}
