//! Lifecycle of a worker: start, signals, shutdown.

use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{QueueName, Ttl};

use super::attempt::attempt;
use super::enough::{Until, enough};
use super::events::WorkEvent;
use super::shop::{Hurry, Shop};
use super::signals::Signals;
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
    pub(crate) until: Until,
    pub(crate) launcher: Launcher,
}

/// Grace for commands if no signal asked the worker to stop: practically unlimited.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Works until a signal or the stop condition ends it. Returns the exit code.
pub(crate) async fn work(plan: WorkPlan, printer: Printer) -> Result<i32, Failure> {
    let leasehold = open(&plan.store_url).await?;
    if !leasehold.capabilities().lasting {
        let wrong = format!("no other process can add tasks to the store {} of this worker", leasehold.url());
        return Err(Failure::config(wrong).hint("use a store that lasts, such as sqlite:"));
    }
    leasehold.tasks()?;
    let ttl = plan.ttl.unwrap_or(leasehold.capabilities().ttl);
    let launcher = plan.launcher.lasting(ttl.as_duration(), plan.kill_after)?;
    let mut shop = Shop::new(printer);
    shop.says_endings = !matches!(plan.until, Until::Execution(_));
    let (shop, launcher) = (Arc::new(shop), Arc::new(launcher));
    // No prefetching: a command may take long, and another worker may be idle.
    let mut builder = leasehold.worker().slots(plan.slots).prefetch(0).patient();
    if let Some(longest) = plan.max_runtime {
        builder = builder.max_runtime(longest.as_duration());
    }
    if let Some(every) = plan.recover_every {
        builder = builder.recover_every(every);
    }
    for queue in &plan.queues {
        let (shop, launcher) = (shop.clone(), launcher.clone());
        builder = builder.handle_queue(queue.clone(), ttl.as_duration(), move |running| {
            attempt(shop.clone(), launcher.clone(), running)
        });
    }
    // Before this point there is nothing to shut down in order, so the default action of signals is
    // right.
    let mut signals = Signals::listen().map_err(Failure::internal)?;
    let worker = builder.start()?;
    if shop.says_endings {
        let (worker, queues, slots) = (worker.id(), plan.queues.as_slice(), plan.slots);
        shop.report(WorkEvent::Working { worker, queues, slots }).await;
        printer
            .advise(format_args!("leasehold: worker {worker} is waiting for tasks; press Ctrl-C to stop it"));
    }
    let burying = tokio::spawn(async move { launcher.bury().await });
    let id = worker.id();
    let mut first = false;
    let enough = tokio::select! {
        enough = enough(plan.until, &shop, &leasehold, id, &plan.queues) => enough,
        _ = signals.next() => {
            first = true;
            Ok(())
        }
    };
    let grace = match (first, &enough) {
        (true, _) => plan.grace,
        (false, Ok(())) => FOR_EVER,
        (false, Err(_)) => Duration::ZERO,
    };
    let end = End { first, grace: plan.grace, shop: &shop, signals: &mut signals };
    let hurry = end.end(worker.stop(grace)).await;
    burying.abort();
    enough?;
    Ok(hurry.map_or(exit::SUCCESS, |signal| exit::SIGNAL_BASE + signal))
}

/// Shutdown of a worker.
struct End<'a> {
    /// Whether a signal has asked for it.
    first: bool,
    grace: Duration,
    shop: &'a Arc<Shop>,
    signals: &'a mut Signals,
}

impl End<'_> {
    /// Waits for the worker, and until all output has been written. Returns the signal if a further
    /// signal forced the shutdown.
    async fn end(mut self, worker: impl Future<Output = ()>) -> Option<i32> {
        if self.first {
            self.announce().await;
        }
        let mouths = [self.shop.stdout.clone(), self.shop.stderr.clone()];
        let mut over = std::pin::pin!(async {
            worker.await;
            let close = move || mouths.iter().for_each(|mouth| mouth.close());
            let _ = tokio::task::spawn_blocking(close).await;
        });
        let mut hurry = None;
        let mut patience = std::pin::pin!(tokio::time::sleep(FOR_EVER));
        loop {
            tokio::select! {
                () = &mut over => return hurry,
                signal = self.signals.next() => {
                    if self.first {
                        self.shop.hurry.send_replace(Hurry::Kill);
                        if hurry.replace(signal).is_some() {
                            return hurry; // Third signal: exit without waiting for anything.
                        }
                    } else {
                        self.first = true;
                        self.announce().await;
                        patience.set(tokio::time::sleep(self.grace));
                    }
                }
                () = &mut patience => {
                    self.shop.hurry.send_replace(Hurry::Stop);
                    patience.set(tokio::time::sleep(FOR_EVER));
                }
            }
        }
    }

    async fn announce(&self) {
        self.shop
            .say("stopping when the running tasks are done; press Ctrl-C again to end them now".to_owned())
            .await;
    }
}
