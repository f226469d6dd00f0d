//! A worker as it is by default, with the least that a handler can do; in this process or in one of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

use crate::cli::CrewArgs;
use crate::measure::now;
use crate::place::{Place, runtime};
use crate::workers::{this_program, word};

const READY: &str = "ready";
/// How long a worker may take to end. It has nothing to do by then.
const GRACE: Duration = Duration::from_secs(5);

/// The least that a task can be about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Tick {
    /// When it was added; 0 if nobody wants to know.
    sent: u64,
}

impl TaskType for Tick {
    const QUEUE: &'static str = "bench";
}

impl Tick {
    /// One whose age does not matter.
    pub(super) const fn idle() -> Self {
        Self { sent: 0 }
    }

    /// One that is added now.
    pub(super) fn sent_now() -> Self {
        Self { sent: now() }
    }
}

/// What handlers have seen.
#[derive(Debug)]
struct Seen {
    tasks: AtomicU64,
    /// From adding to start, of those whose age matters.
    waits: Mutex<Histogram<u64>>,
}

impl Seen {
    fn waits(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker in this process.
pub(super) struct Crew {
    worker: Worker,
    seen: Arc<Seen>,
}

impl Crew {
    /// Starts it, on the runtime that this is called on.
    pub(super) fn start(leasehold: &Leasehold) -> Result<Self> {
        let seen = Arc::new(Seen { tasks: AtomicU64::new(0), waits: Mutex::new(Histogram::new(3)?) });
        let handler = |task: TaskContext<Tick>, seen: Arc<Seen>| async move {
            let begun = now();
            seen.tasks.fetch_add(1, Ordering::Relaxed);
            if task.work.sent > 0 {
                // It grows as it must.
                let _ = seen.waits().record(begun - task.work.sent);
            }
            Ok::<(), HandlerError>(())
        };
        let worker = leasehold.worker().handle_with(seen.clone(), handler).start()?;
        Ok(Self { worker, seen })
    }

    /// How many handlers have begun.
    pub(super) fn begun(&self) -> u64 {
        self.seen.tasks.load(Ordering::Relaxed)
    }

    /// Ends it; how long the tasks took from being added to their start.
    pub(super) async fn stop(self) -> Histogram<u64> {
        self.worker.stop(GRACE).await;
        self.seen.waits().clone()
    }
}

/// The side of a process: says that it is ready, begins at a word, ends at the next, writes what it saw.
pub(crate) fn serve(args: &CrewArgs) -> Result<()> {
    let place = Place { engine: args.engine, folder: args.folder.clone() };
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&place.url()?))?;
    println!("{READY}");
    let read_line = || std::io::stdin().lock().read_line(&mut String::new());
    // If whoever started us is gone, so is the reason to begin or to go on.
    if read_line()? == 0 {
        return Ok(());
    }
    let crew = runtime.block_on(async { Crew::start(&leasehold) })?;
    read_line()?;
    let waits = runtime.block_on(crew.stop());
    let steps = waits.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
    println!("{}", serde_json::to_string(&steps.collect::<Vec<_>>())?);
    Ok(())
}

/// A worker in a process of its own. It ends with this value, whatever it is doing.
pub(super) struct OtherCrew {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl OtherCrew {
    /// Starts the process, and waits until it has connected.
    pub(super) fn prepare(place: &Place) -> Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["crew", "--engine", &word(&place.engine), "--folder"])
            .arg(&place.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("a worker cannot be started")?;
        let output = BufReader::new(child.stdout.take().expect("it was started with a pipe"));
        let mut crew = Self { child, output };
        ensure!(crew.read_line()?.trim() == READY, "a worker could not begin");
        Ok(crew)
    }

    /// Lets it begin.
    pub(super) fn start(&mut self) -> Result<()> {
        self.send("begin")
    }

    /// Ends it; how long the tasks took from being added to their start.
    pub(super) fn stop(mut self) -> Result<Histogram<u64>> {
        self.send("end")?;
        let steps: Vec<(u64, u64)> =
            serde_json::from_str(&self.read_line()?).context("a worker did not end well")?;
        let mut waits = Histogram::new(3)?;
        for (value, count) in steps {
            waits.record_n(value, count)?;
        }
        Ok(waits)
    }

    fn send(&mut self, word: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().expect("it was started with a pipe");
        Ok(writeln!(input, "{word}")?)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for OtherCrew {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
