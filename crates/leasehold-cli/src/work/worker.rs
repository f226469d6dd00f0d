//! Lifecycle of a worker: start, signals, shutdown.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{QueueName, Ttl};

use super::attempt::attempt;
use super::context::{ShutdownMode, WorkerContext};
use super::output::WorkEvent;
use super::stop_condition::{StopCondition, StopSignals, wait_for_stop};
use crate::connect::open;
use crate::exit;
use crate::output::{Failure, Printer};
use crate::run::Launcher;

/// Parameters of a worker.
pub(crate) struct WorkPlan {
    pub(crate) store_url: String,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) slots: u32,
    /// Duration of the leases; the default of the store if not set.
    pub(crate) ttl: Option<Ttl>,
    pub(crate) kill_after: Option<Duration>,
    /// Maximum time for running commands to finish when the worker is asked to stop.
    pub(crate) grace: Duration,
    /// Maximum runtime; a command is ended after it.
    pub(crate) max_runtime: Option<Ttl>,
    /// Interval of the search for expired leases; `None` for the library's default.
    pub(crate) recover_every: Option<Duration>,
    pub(crate) stop_when: StopCondition,
    pub(crate) launcher: Launcher,
}

/// Grace for commands if no signal asked the worker to stop: practically unlimited.
const UNLIMITED: Duration = Duration::from_hours(24 * 365);

/// Works until a signal or the stop condition ends it. Returns the exit code.
pub(crate) async fn work(plan: WorkPlan, printer: Printer) -> Result<i32, Failure> {
    let leasehold = open(&plan.store_url).await?;
    if !leasehold.capabilities().persistent {
        let message =
            format!("no other process can add tasks to the store {} of this worker", leasehold.url());
        return Err(Failure::config(message).hint("use a persistent store, such as sqlite:"));
    }
    leasehold.tasks()?;
    let ttl = plan.ttl.unwrap_or(leasehold.capabilities().ttl);
    let launcher = plan.launcher.with_ttl(ttl.as_duration(), plan.kill_after)?;
    let mut context = WorkerContext::new(printer);
    context.reports_failures = !matches!(plan.stop_when, StopCondition::Execution(_));
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
            attempt(context.clone(), launcher.clone(), running)
        });
    }
    // Before this point there is nothing to shut down in order, so the default action of signals is
    // right.
    let mut signals = StopSignals::listen().map_err(Failure::internal)?;
    let worker = builder.start()?;
    if context.reports_failures {
        let (worker, queues, slots) = (worker.id(), plan.queues.as_slice(), plan.slots);
        context.report(WorkEvent::Working { worker, queues, slots }).await;
        printer
            .advise(format_args!("leasehold: worker {worker} is waiting for tasks; press Ctrl-C to stop it"));
    }
    let reaper = tokio::spawn(async move { launcher.reap().await });
    let id = worker.id();
    let mut signalled = false;
    let stopped = tokio::select! {
        stopped = wait_for_stop(plan.stop_when, &context, &leasehold, id, &plan.queues) => stopped,
        _ = signals.next() => {
            signalled = true;
            Ok(())
        }
    };
    let grace = match (signalled, &stopped) {
        (true, _) => plan.grace,
        (false, Ok(())) => UNLIMITED,
        (false, Err(_)) => Duration::ZERO,
    };
    let end = Shutdown { signalled, grace: plan.grace, context: &context, signals: &mut signals };
    let signal = end.run(worker.stop(grace)).await;
    reaper.abort();
    stopped?;
    Ok(signal.map_or(exit::SUCCESS, |signal| exit::SIGNAL_BASE + signal))
}

/// Shutdown of a worker.
struct Shutdown<'a> {
    /// Whether a signal has asked for it.
    signalled: bool,
    grace: Duration,
    context: &'a Arc<WorkerContext>,
    signals: &'a mut StopSignals,
}

impl Shutdown<'_> {
    /// Waits for the worker, and until all output has been written. Returns the signal if a further
    /// signal forced the shutdown.
    async fn run(mut self, worker: impl Future<Output = ()>) -> Option<i32> {
        if self.signalled {
            self.announce().await;
        }
        let writers = [self.context.stdout.clone(), self.context.stderr.clone()];
        let mut stopped = std::pin::pin!(async {
            worker.await;
            let close = move || writers.iter().for_each(|writer| writer.close());
            let _ = tokio::task::spawn_blocking(close).await;
        });
        let mut forced = None;
        let mut grace_end = std::pin::pin!(tokio::time::sleep(UNLIMITED));
        loop {
            tokio::select! {
                () = &mut stopped => return forced,
                signal = self.signals.next() => {
                    if self.signalled {
                        self.context.shutdown.send_replace(ShutdownMode::Kill);
                        if forced.replace(signal).is_some() {
                            return forced; // Third signal: exit without waiting for anything.
                        }
                    } else {
                        self.signalled = true;
                        self.announce().await;
                        grace_end.set(tokio::time::sleep(self.grace));
                    }
                }
                () = &mut grace_end => {
                    self.context.shutdown.send_replace(ShutdownMode::Stop);
                    grace_end.set(tokio::time::sleep(UNLIMITED));
                }
            }
        }
    }

    async fn announce(&self) {
        self.context
            .message(
                "stopping when the running tasks are done; press Ctrl-C again to end them now".to_owned(),
            )
            .await;
    }
}
