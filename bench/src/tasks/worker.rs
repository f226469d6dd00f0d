//! Worker with default settings and an empty handler, in this process or in another one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use crate::cli::TaskWorkerArgs;
use crate::client_processes::{arg_name, this_program};
use crate::measure::now;
use crate::sandbox::{Sandbox, runtime};

const READY: &str = "ready";
/// Grace period of the shutdown; the worker is idle by then.
const GRACE: Duration = Duration::from_secs(5);

/// Task without work.
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

    /// Returns a task that is enqueued now.
    pub(super) fn sent_now() -> Self {
        Self { sent: now() }
    }
}

/// Observations of the handlers.
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

/// Worker in this process.
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
            if task.work.sent > 0 {
                // The histogram resizes itself, so recording cannot fail.
                let _ = observed.waits().record(begun - task.work.sent);
            }
            Ok::<(), HandlerError>(())
        };
        let worker = leasehold.worker().handle_with(observed.clone(), handler).start()?;
        Ok(Self { worker, observed })
    }

    /// Returns the number of handlers that have started.
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
pub(crate) fn serve(args: &TaskWorkerArgs) -> Result<()> {
    let sandbox = Sandbox { engine: args.engine, folder: args.folder.clone() };
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
    println!("{READY}");
    let read_line = || std::io::stdin().lock().read_line(&mut String::new());
    // End of input means that the parent process has exited.
    if read_line()? == 0 {
        return Ok(());
    }
    let worker = runtime.block_on(async { BenchWorker::start(&leasehold) })?;
    read_line()?;
    let waits = runtime.block_on(worker.stop());
    let steps = waits.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
    println!("{}", serde_json::to_string(&steps.collect::<Vec<_>>())?);
    Ok(())
}

/// Worker in another process. The process is killed when this value is dropped.
pub(super) struct WorkerProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl WorkerProcess {
    /// Starts the process, and waits until it is connected.
    pub(super) fn prepare(sandbox: &Sandbox) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["task-worker", "--engine", &arg_name(&sandbox.engine), "--folder"])
            .arg(&sandbox.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the worker process cannot be started")?;
        let output = BufReader::new(child.stdout.take().expect("the process was started with pipes"));
        let mut worker = Self { child, output };
        ensure!(worker.read_line()?.trim() == READY, "the worker process is not ready");
        Ok(worker)
    }

    /// Starts the worker.
    pub(super) fn start(&mut self) -> Result<()> {
        self.send("begin")
    }

    /// Stops the worker; returns the times from enqueue to start.
    pub(super) fn stop(mut self) -> Result<Histogram<u64>> {
        self.send("end")?;
        let steps: Vec<(u64, u64)> =
            serde_json::from_str(&self.read_line()?).context("the worker process printed no result")?;
        let mut waits = Histogram::new(3)?;
        for (value, count) in steps {
            waits.record_n(value, count)?;
        }
        Ok(waits)
    }

    fn send(&mut self, message: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().expect("the process was started with pipes");
        Ok(writeln!(input, "{message}")?)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
