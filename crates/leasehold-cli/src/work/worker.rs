//! Lifecycle of a worker: its start, the conditions and signals that stop it, and its shutdown.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{ExecutionId, QueueName, TaskState, Ttl, WorkerId};
use leasehold::store::ListTasks;
use leasehold::{Error, Leasehold, Tasks, Worker};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::attempt::attempt;
use super::context::{LAST_OUTPUT_TIMEOUT, ShutdownMode, WorkerContext};
use super::output::WorkEvent;
use crate::connect::open;
use crate::exit;
use crate::output::{Failure, OutputWriter, Printer, short, suggestion};
use crate::run::{Launcher, is_ignored};

pub(crate) struct WorkPlan {
    pub(crate) store_url: String,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) slots: u32,
    /// Duration of the leases; the default of the store if not set.
    pub(crate) ttl: Option<Ttl>,
    pub(crate) kill_after: Option<Duration>,
    /// Maximum time for running commands to finish when the worker is asked to stop.
    pub(crate) grace: Duration,
    pub(crate) max_runtime: Option<Ttl>,
    /// Number of bytes of the output of each attempt that are kept in the store.
    pub(crate) keep_output: usize,
    /// Whether each line of output begins with the id of its task; by default on a terminal, with several slots.
    pub(crate) prefixes: Option<bool>,
    /// Interval of the search for expired leases; `None` for the library's default.
    pub(crate) recover_every: Option<Duration>,
    pub(crate) stop_when: StopCondition,
    pub(crate) launcher: Launcher,
}

/// Grace for commands if no signal stops the worker: practically unlimited.
const UNLIMITED: Duration = Duration::from_hours(24 * 365);

/// Works until a signal or the stop condition ends it. Returns the exit code. `signals` are those that the caller
/// listens to already.
pub(crate) async fn work(
    plan: WorkPlan,
    printer: Printer,
    mut signals: Option<&mut StopSignals>,
) -> Result<i32, Failure> {
    let opened = open(&plan.store_url);
    let leasehold = match &mut signals {
        Some(signals) => tokio::select! {
            biased;
            signal = signals.next() => return Ok(exit::SIGNAL_BASE + signal),
            leasehold = opened => leasehold?,
        },
        None => opened.await?,
    };
    if !leasehold.capabilities().persistent {
        let message =
            format!("no other process can add tasks to the store {} of this worker", leasehold.url());
        return Err(Failure::config(message).hint("use a persistent store, such as sqlite:"));
    }
    leasehold.tasks()?;
    let ttl = plan.ttl.unwrap_or(leasehold.capabilities().ttl);
    let launcher = plan.launcher.with_ttl(ttl.as_duration(), plan.kill_after)?;
    let mut context = WorkerContext::new(printer).keep_output(leasehold.tasks()?, plan.keep_output);
    let only = match plan.stop_when {
        StopCondition::Execution(id) => Some(id),
        _ => None,
    };
    context.reports_failures = only.is_none();
    let by_default = || plan.slots > 1 && std::io::stdout().is_terminal();
    context.prefixes = plan.prefixes.unwrap_or_else(by_default);
    let (context, launcher) = (Arc::new(context), Arc::new(launcher));
    // No prefetching: a command may take long, and another worker may be idle.
    let mut builder = leasehold.worker().slots(plan.slots).prefetch(0).cooperative_cancellation();
    if let Some(longest) = plan.max_runtime {
        builder = builder.max_runtime(longest.as_duration());
    }
    if let Some(every) = plan.recover_every {
        builder = builder.recover_every(every);
    }
    for queue in &plan.queues {
        let (context, launcher) = (context.clone(), launcher.clone());
        builder = builder.handle_queue(queue.clone(), ttl.as_duration(), move |running| {
            attempt(context.clone(), launcher.clone(), only, running)
        });
    }
    // Before this point a worker has nothing to shut down in order, so the default action of signals is right.
    let mut own;
    let signals = match signals {
        Some(signals) => signals,
        None => {
            own = StopSignals::listen().map_err(Failure::internal)?;
            &mut own
        }
    };
    let worker = builder.start()?;
    if context.reports_failures {
        note_new_queues(&context, &leasehold.tasks()?, &plan.queues).await;
        let (worker, queues, slots) = (worker.id(), plan.queues.as_slice(), plan.slots);
        context.report(WorkEvent::Working { worker, queues, slots }).await;
        context.try_advise(&format!("worker {worker} is waiting for tasks; press Ctrl-C to stop it"));
    }
    let reaper = tokio::spawn(async move { launcher.reap().await });
    let idle_line = tokio::spawn(show_idle(context.clone(), leasehold.tasks()?, plan.queues.clone()));
    let id = worker.id();
    let mut signalled = false;
    let stopped = tokio::select! {
        stopped = wait_for_stop(plan.stop_when, &context, &leasehold, id, &plan.queues) => stopped,
        _ = signals.next() => {
            signalled = true;
            Ok(())
        }
    };
    let first_grace = match (signalled, &stopped) {
        (true, _) => plan.grace,
        (false, Ok(())) => UNLIMITED,
        (false, Err(_)) => Duration::ZERO,
    };
    let signal = shut_down(&context, worker, first_grace, signals, signalled, plan.grace).await;
    reaper.abort();
    idle_line.abort();
    context.clear_live();
    stopped?;
    let failed = context.counts.borrow().failed;
    Ok(match signal {
        Some(signal) => exit::SIGNAL_BASE + signal,
        None if failed > 0 && plan.stop_when == StopCondition::QueuesDone => exit::FAILURE,
        None => exit::SUCCESS,
    })
}

/// Names the queues that never had a task: the name may be mistyped.
async fn note_new_queues(context: &WorkerContext, tasks: &Tasks, queues: &[QueueName]) {
    for queue in queues {
        // Errors of the store are reported by the worker.
        let Err(Error::UnknownQueue { known, .. }) = tasks.queue(queue).await else { continue };
        let similar = suggestion(queue.as_str(), known.iter().map(ToString::to_string));
        let note = format!("the queue '{queue}' has never had a task{similar}");
        if similar.is_empty() { context.try_advise(&note) } else { context.try_message(&note) }
    }
}

/// Interval of the line of an idle worker, and number of intervals after which the queues are read again.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_READS: u32 = 5;

/// Shows on a terminal, while no task runs, for how long and why the worker is idle. Never returns.
async fn show_idle(context: Arc<WorkerContext>, tasks: Tasks, queues: Vec<QueueName>) {
    if !context.reports_failures {
        return;
    }
    let (mut idle, mut waits_for) = (0, String::new());
    loop {
        tokio::time::sleep(IDLE_INTERVAL).await;
        idle = if context.is_idle() { idle + 1 } else { 0 };
        if idle == 0 || !context.can_draw() {
            continue;
        }
        if idle % IDLE_READS == 1 {
            waits_for = unavailable(&tasks, &queues).await;
        }
        context.draw_if_idle(&format!("idle for {}{waits_for}", short(IDLE_INTERVAL * idle)));
    }
}

/// Returns what is in the queues and cannot run now.
async fn unavailable(tasks: &Tasks, queues: &[QueueName]) -> String {
    let (mut scheduled, mut blocked, mut paused) = (0, 0, Vec::new());
    for queue in queues {
        let Ok(status) = tasks.queue(queue).await else { continue };
        scheduled += status.counts.get(TaskState::Scheduled);
        blocked += status.counts.get(TaskState::Blocked);
        if let Some(pause) = status.paused {
            let reason = pause.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            paused.push(format!("; queue '{queue}' is paused by {}{reason}", pause.by));
        }
    }
    let counts = [(scheduled, "scheduled"), (blocked, "blocked")];
    let counts =
        counts.iter().filter(|(number, _)| *number > 0).map(|(number, state)| format!("; {number} {state}"));
    counts.chain(paused).collect()
}

const STOPPING: &str = "stopping when the running tasks are done and their results are stored; press Ctrl-C again to end them now";

/// Waits for the worker, at most for `first_grace`, and until all output has been written. From the first signal on,
/// waits for both at most for a moment longer than `grace`; a second one ends the commands, and gives up results that
/// the store does not accept. `signalled` states whether a signal has requested the shutdown before. Returns the
/// signal if a further signal forced the shutdown.
async fn shut_down(
    context: &WorkerContext,
    worker: Worker,
    first_grace: Duration,
    signals: &mut StopSignals,
    mut signalled: bool,
    grace: Duration,
) -> Option<i32> {
    // Nothing here may wait for the reader of our output: the worker takes tasks until it is polled, and
    // further signals must be seen.
    if signalled {
        context.try_message(STOPPING);
    }
    let (in_time, grace_over) = oneshot::channel::<()>();
    let mut in_time = Some(in_time);
    let (output_limit, no_more_output) = oneshot::channel::<()>();
    let mut output_limit = Some(output_limit);
    let mut stopped = std::pin::pin!(async {
        let until = async {
            let _ = grace_over.await;
        };
        worker.stop_when(until).await;
        let limit = async {
            let _ = no_more_output.await;
        };
        context.close_output(limit).await;
    });
    let mut forced = None;
    let mut grace_end = std::pin::pin!(tokio::time::sleep(first_grace));
    loop {
        tokio::select! {
            () = &mut stopped => return forced,
            signal = signals.next() => {
                if signalled {
                    context.shutdown.send_replace(ShutdownMode::Kill);
                    drop(in_time.take());
                    if forced.replace(signal).is_some() {
                        return forced; // Third signal: exit without waiting for anything.
                    }
                } else {
                    signalled = true;
                    context.try_message(STOPPING);
                    grace_end.set(tokio::time::sleep(grace));
                }
            }
            () = &mut grace_end => {
                if signalled {
                    drop(output_limit.take());
                    if forced.is_none() {
                        context.shutdown.send_replace(ShutdownMode::Stop);
                    }
                }
                drop(in_time.take());
                grace_end.set(tokio::time::sleep(UNLIMITED));
            }
        }
    }
}

/// Writes output of this process. Waits for the readers until a signal requests a stop of this process, and at most a
/// moment longer; `is_stopping` states whether a signal has done so before. Returns the first signal that arrived meanwhile.
pub(crate) async fn write_in_time(
    out: String,
    error: String,
    signals: &mut StopSignals,
    is_stopping: bool,
) -> Option<i32> {
    let (stdout, stderr) = (OutputWriter::new(io::stdout()), OutputWriter::new(io::stderr()));
    let written = async {
        stdout.write(out.into_bytes()).await;
        stderr.write(error.into_bytes()).await;
        stdout.close().await;
        stderr.close().await;
    };
    let mut first = None;
    let given_up = async {
        if !is_stopping {
            first = Some(signals.next().await);
        }
        tokio::select! {
            signal = signals.next() => {
                first.get_or_insert(signal);
            }
            () = tokio::time::sleep(LAST_OUTPUT_TIMEOUT) => {}
        }
    };
    tokio::select! {
        biased;
        () = written => {}
        () = given_up => {}
    }
    first
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCondition {
    /// No condition: the worker runs until a signal stops it.
    Never,
    /// The worker has started one task.
    OneTask,
    /// No task is left that could run now.
    QueuesEmpty,
    /// Every task of the queues has finished.
    QueuesDone,
    /// The worker has started this execution; or the execution is over because another worker ran it; or the worker
    /// has leased another execution, and returned it: this one is over, or not the next.
    Execution(ExecutionId),
}

/// Interval at which an idle worker checks for remaining tasks; the poll interval of the store if
/// that is longer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

async fn wait_for_stop(
    condition: StopCondition,
    context: &WorkerContext,
    leasehold: &Leasehold,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<(), Error> {
    let tasks = &leasehold.tasks()?;
    let poll_interval = POLL_INTERVAL.max(leasehold.capabilities().poll);
    match condition {
        StopCondition::Never => std::future::pending().await,
        StopCondition::OneTask => attempt_started(context).await,
        StopCondition::Execution(id) => tokio::select! {
            () = attempt_started(context) => {}
            () = task_returned(context) => {}
            finished = execution_finished(leasehold, id) => finished?,
        },
        StopCondition::QueuesEmpty | StopCondition::QueuesDone => {
            let mut ticked = false;
            loop {
                // The first worker that reads the schedules also creates the tasks of ticks that no
                // worker saw. So do that before the queues are checked.
                let empty = async {
                    if !ticked {
                        tick(leasehold).await?;
                        ticked = true;
                    }
                    match condition {
                        StopCondition::QueuesDone => is_done(context, tasks, worker, queues).await,
                        _ => is_empty(context, tasks, worker, queues).await,
                    }
                };
                match empty.await {
                    Ok(true) => break,
                    Ok(false) => tokio::time::sleep(poll_interval).await,
                    // The worker retries as well.
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(pause_after(&error, POLL_INTERVAL * 10)).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Creates the tasks of all due ticks, if the store supports schedules.
async fn tick(leasehold: &Leasehold) -> Result<(), Error> {
    match leasehold.schedules() {
        Ok(schedules) => schedules.tick().await,
        // The store has no schedules.
        Err(_) => Ok(()),
    }
}

async fn attempt_started(context: &WorkerContext) {
    // The sender lives in the context, so the channel cannot be closed.
    let _ = context.counts.subscribe().wait_for(|counts| counts.started > 0).await;
}

async fn task_returned(context: &WorkerContext) {
    let _ = context.counts.subscribe().wait_for(|counts| counts.returned > 0).await;
}

async fn execution_finished(leasehold: &Leasehold, id: ExecutionId) -> Result<(), Error> {
    let workflows = leasehold.workflows()?;
    let interval = (POLL_INTERVAL * 5).max(leasehold.capabilities().poll);
    loop {
        let pause = match workflows.get(id).await {
            Ok(execution) if execution.state.is_terminal() => return Ok(()),
            Ok(_) => interval,
            Err(error) if error.is_retryable() => pause_after(&error, interval),
            Err(error) => return Err(error),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Returns the pause after a failed query. A store that refuses requests until a certain time is not
/// queried before that time.
fn pause_after(error: &Error, pause: Duration) -> Duration {
    error.retry_after().unwrap_or_default().max(pause)
}

/// Whether no task is pending, due, or held by this worker. Tasks that other workers run, scheduled
/// tasks and paused queues do not count.
async fn is_empty(
    context: &WorkerContext,
    tasks: &Tasks,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<bool, Error> {
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

/// Whether no task of the queues is unfinished, wherever it is or when it will run.
async fn is_done(
    context: &WorkerContext,
    tasks: &Tasks,
    worker: WorkerId,
    queues: &[QueueName],
) -> Result<bool, Error> {
    let before = *context.counts.borrow();
    if before.started != before.ended || has_running_task(tasks, worker).await? {
        return Ok(false);
    }
    for queue in queues {
        match tasks.queue(queue).await {
            Ok(status) if status.counts.open() > 0 => return Ok(false),
            Ok(_) | Err(Error::UnknownQueue { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // A task that ran in between may have enqueued others.
    Ok(*context.counts.borrow() == before && !has_running_task(tasks, worker).await?)
}

async fn has_running_task(tasks: &Tasks, worker: WorkerId) -> Result<bool, Error> {
    let query = ListTasks::default().state(TaskState::Running).worker(worker).limit(1).brief(true);
    Ok(!tasks.list(&query).await?.items.is_empty())
}

/// Subscription to the signals that request a stop of this process.
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
