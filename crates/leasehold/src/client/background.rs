//! Threads that keep guards alive. One watches the time: it starts renewals and marks guards as
//! lost at their deadline. The other has its own runtime and calls the store, so that no work of
//! the caller can starve a renewal, and a guard that is dropped anywhere can still be released.
//!
//! They are separate because a call of the store may block its thread, as SQLite does while the
//! disk is busy: the thread that watches deadlines never calls a store.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result, StoreErrorKind};
use crate::store::BootInstant;
#[cfg(feature = "testing")]
use crate::store::simulation::{self, SimulatedProcess};

/// Maximum length of one sleep: timers stop while the machine is suspended, the boot clock does not.
const MAX_SLEEP: Duration = Duration::from_millis(250);
/// Maximum time for which the thread continues after the last handle is dropped, to complete the
/// work of dropped guards.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

pub(super) struct BackgroundThreads {
    renewals: RuntimeThread,
    tasks: TaskTracker,
    timers: Arc<RenewalTimers>,
    /// Separate thread for work that may take long: recovery, schedules, retention. Heartbeats and
    /// renewals never wait for it.
    maintenance: Mutex<Option<RuntimeThread>>,
    /// Process of the simulation that this belongs to.
    #[cfg(feature = "testing")]
    process: SimulatedProcess,
}

struct RuntimeThread {
    handle: Handle,
    /// Dropped with [`BackgroundThreads`], which ends the thread.
    _alive: oneshot::Sender<()>,
}

/// Timers of the guards: one per guard, for the next renewal or, while a renewal is in progress, for
/// the deadline.
#[derive(Default)]
pub(super) struct RenewalTimers {
    queue: Mutex<TimerQueue>,
    wakeup: Condvar,
    /// Wakes the timers of a simulation.
    #[cfg(feature = "testing")]
    simulated_wakeup: tokio::sync::Notify,
}

#[derive(Default)]
struct TimerQueue {
    due: BTreeMap<(BootInstant, u64), Weak<dyn Renewable>>,
    last_number: u64,
    /// Time at which the thread wakes next; an earlier timer has to wake it.
    next_wakeup: Option<BootInstant>,
    closed: bool,
}

/// Guard as the timers know it.
pub(super) trait Renewable: Send + Sync {
    /// Handles the guard's timer; returns the renewal to run now, if one is due.
    fn on_timer(self: Arc<Self>, timers: &Arc<RenewalTimers>, now: BootInstant) -> Option<Renewal>;
}

pub(super) type Renewal = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) type TimerKey = (BootInstant, u64);

impl BackgroundThreads {
    pub(super) fn start() -> Result<Self> {
        #[cfg(feature = "testing")]
        if simulation::is_running() {
            return Ok(Self::start_simulated());
        }
        let (tasks, timers) = (TaskTracker::new(), Arc::<RenewalTimers>::default());
        let tracked = tasks.clone();
        let renewals = RuntimeThread::start("leasehold-renew", async move {
            tracked.close();
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, tracked.wait()).await;
        })?;
        let handle = renewals.handle.clone();
        let threads = Self {
            renewals,
            tasks: tasks.clone(),
            timers: timers.clone(),
            maintenance: Mutex::default(),
            #[cfg(feature = "testing")]
            process: SimulatedProcess::default(),
        };
        let timer = std::thread::Builder::new().name("leasehold-timer".to_owned());
        timer.spawn(move || timers.run(&tasks, &handle)).map_err(cannot_start)?;
        Ok(threads)
    }

    /// Starts no threads: all work runs on the paused runtime of the simulation.
    #[cfg(feature = "testing")]
    fn start_simulated() -> Self {
        let thread = || RuntimeThread { handle: Handle::current(), _alive: oneshot::channel().0 };
        let (tasks, timers) = (TaskTracker::new(), Arc::<RenewalTimers>::default());
        let process = SimulatedProcess::current();
        let (renewals, maintenance) = (thread(), Mutex::new(Some(thread())));
        let work = timers.clone().run_simulated(tasks.clone(), process.clone());
        renewals.handle.spawn(process.run(work));
        Self { renewals, tasks, timers, maintenance, process }
    }

    /// Returns the work as it is spawned: in a simulation it stops while its process is paused.
    #[cfg(feature = "testing")]
    pub(super) fn in_process<T>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Pin<Box<dyn Future<Output = T> + Send>> {
        if simulation::is_running() { Box::pin(self.process.run(work)) } else { Box::pin(work) }
    }

    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "only a simulation has processes")]
    pub(super) fn in_process<F: Future + Send + 'static>(&self, work: F) -> F {
        work
    }

    /// Runs work in the background that may take long. Its thread starts with the first such work;
    /// if no thread can be started, the work runs on the thread of the renewals.
    pub(super) fn spawn_maintenance(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut maintenance = self.maintenance.lock().unwrap_or_else(PoisonError::into_inner);
        if maintenance.is_none() {
            match RuntimeThread::start("leasehold-maint", async {}) {
                Ok(thread) => *maintenance = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "failed to start the maintenance thread; using the renewal thread");
                }
            }
        }
        maintenance.as_ref().unwrap_or(&self.renewals).handle.spawn(self.in_process(work));
    }

    /// Runs work in the background; [`finish`](Self::finish) waits for it.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(self.in_process(work), &self.renewals.handle);
    }

    /// Runs work to its end on the caller's runtime, also if the caller is dropped; [`finish`](Self::finish) waits
    /// for it. `work` gets a token that is cancelled when the caller is gone. A value that the caller has not
    /// received is passed to `give_back`.
    pub(super) async fn run_to_completion<T, W>(
        &self,
        work: impl FnOnce(CancellationToken) -> W,
        give_back: impl FnOnce(T) + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let gone = CancellationToken::new();
        let work = work(gone.clone());
        let _caller = gone.drop_guard();
        let (answer, answered) = oneshot::channel();
        self.tasks.spawn(self.in_process(async move {
            // Dropped, and so given back, if the caller is gone or goes before it has received the value.
            let _ = answer.send(work.await.map(|value| Unclaimed(Some((value, give_back)))));
        }));
        answered.await.unwrap_or_else(|_| Err(interrupted())).map(Unclaimed::claim)
    }

    /// Runs work in the background that [`finish`](Self::finish) does not wait for.
    pub(super) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.renewals.handle.spawn(self.in_process(work));
    }

    /// Returns the result of the work if it ends within `limit`. Uses the timer of the renewal
    /// thread, because the caller's runtime may have none.
    pub(super) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let first = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(done) = first {
            return Some(done);
        }
        let timer = {
            let _runtime = self.renewals.handle.enter();
            tokio::time::sleep(limit)
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = timer => None,
        }
    }

    /// Waits until all work that was passed to [`spawn`](Self::spawn) is done.
    pub(super) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    pub(super) fn timers(&self) -> &Arc<RenewalTimers> {
        &self.timers
    }
}

/// Value that is given back when it is dropped unclaimed.
struct Unclaimed<T, F: FnOnce(T)>(Option<(T, F)>);

impl<T, F: FnOnce(T)> Unclaimed<T, F> {
    fn claim(mut self) -> T {
        self.0.take().expect("the value is claimed once").0
    }
}

impl<T, F: FnOnce(T)> Drop for Unclaimed<T, F> {
    fn drop(&mut self) {
        if let Some((value, give_back)) = self.0.take() {
            give_back(value);
        }
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        self.timers.queue().closed = true;
        self.timers.wake();
    }
}

impl RuntimeThread {
    /// Starts a thread that ends after `last_work`, which begins when the value is dropped.
    fn start(name: &str, last_work: impl Future<Output = ()> + Send + 'static) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(cannot_start)?;
        let (alive, ended) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let work = move || {
            runtime.block_on(async {
                let _ = ended.await;
                last_work.await;
            });
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(cannot_start)?;
        Ok(Self { handle, _alive: alive })
    }
}

impl RenewalTimers {
    pub(super) fn schedule(&self, due: BootInstant, guard: Weak<dyn Renewable>) -> TimerKey {
        let mut queue = self.queue();
        queue.last_number += 1;
        let key = (due, queue.last_number);
        queue.due.insert(key, guard);
        let is_earliest = queue.next_wakeup.is_none_or(|next| due < next);
        if is_earliest {
            queue.next_wakeup = Some(due);
            drop(queue);
            self.wake();
        }
        key
    }

    /// Cancels a timer. The thread may wake once without need, which is cheaper than waking it now.
    pub(super) fn cancel(&self, key: TimerKey) {
        self.queue().due.remove(&key);
    }

    fn wake(&self) {
        self.wakeup.notify_one();
        #[cfg(feature = "testing")]
        self.simulated_wakeup.notify_one();
    }

    /// Does what [`run`](Self::run) does, as a task of a simulation.
    #[cfg(feature = "testing")]
    async fn run_simulated(self: Arc<Self>, tasks: TaskTracker, process: SimulatedProcess) {
        loop {
            let (due, next_wakeup) = {
                let mut queue = self.queue();
                if queue.closed {
                    return;
                }
                (queue.take_due(BootInstant::now()), queue.next_wakeup)
            };
            for guard in due.iter().filter_map(Weak::upgrade) {
                if let Some(renewal) = guard.on_timer(&self, BootInstant::now()) {
                    tasks.spawn(process.run(renewal));
                }
            }
            let sleep = next_wakeup.map_or(Duration::MAX, |next| next.after(BootInstant::now()));
            tokio::select! {
                biased;
                () = self.simulated_wakeup.notified() => {}
                () = tokio::time::sleep(sleep), if next_wakeup.is_some() => {}
            }
        }
    }

    /// Watches the timers until [`BackgroundThreads`] is dropped. Never calls a store or waits for
    /// one.
    fn run(self: &Arc<Self>, tasks: &TaskTracker, handle: &Handle) {
        loop {
            let due = {
                let mut queue = self.queue();
                loop {
                    if queue.closed {
                        return;
                    }
                    let now = BootInstant::now();
                    let due = queue.take_due(now);
                    if !due.is_empty() {
                        break due;
                    }
                    queue = match queue.sleep_time(now) {
                        Some(sleep) => {
                            let woken = self.wakeup.wait_timeout(queue, sleep);
                            woken.unwrap_or_else(PoisonError::into_inner).0
                        }
                        None => self.wakeup.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    };
                }
            };
            for guard in due.iter().filter_map(Weak::upgrade) {
                if let Some(renewal) = guard.on_timer(self, BootInstant::now()) {
                    tasks.spawn_on(renewal, handle);
                }
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, TimerQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimerQueue {
    fn take_due(&mut self, now: BootInstant) -> Vec<Weak<dyn Renewable>> {
        let due = match self.due.first_key_value() {
            Some(((first, _), _)) if *first <= now => {
                let later = self.due.split_off(&(now.plus(Duration::from_micros(1)), 0));
                std::mem::replace(&mut self.due, later).into_values().collect()
            }
            _ => Vec::new(),
        };
        self.next_wakeup = self.due.first_key_value().map(|((due, _), _)| *due);
        due
    }

    /// Returns the maximum time until the thread looks again; `None` without a timer.
    fn sleep_time(&self, now: BootInstant) -> Option<Duration> {
        self.next_wakeup.map(|next| next.after(now).min(MAX_SLEEP))
    }
}

fn interrupted() -> Error {
    let message = "the runtime of the caller ended before the answer arrived";
    Error::store(StoreErrorKind::Unavailable, message, "try again")
}

fn cannot_start(error: std::io::Error) -> Error {
    let message = "the thread that renews leases cannot be started";
    Error::store(StoreErrorKind::Unavailable, message, "raise the limit of threads of this user")
        .because(error)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A suspended machine wakes up after the end of a lease, and the timers of the thread have not run on.
    #[test]
    fn the_thread_reads_the_clock_again_long_before_a_late_timer() {
        let now = BootInstant::now();
        let sleep_time = |left| {
            let next_wakeup = Some(now.plus(left));
            TimerQueue { next_wakeup, ..TimerQueue::default() }.sleep_time(now)
        };
        assert_eq!(sleep_time(Duration::from_hours(1)), Some(MAX_SLEEP));
        assert_eq!(sleep_time(MAX_SLEEP / 2), Some(MAX_SLEEP / 2));
        assert_eq!(TimerQueue::default().sleep_time(now), None);
    }

    #[tokio::test]
    async fn a_value_that_the_caller_has_not_received_is_given_back() {
        let threads = BackgroundThreads::start().unwrap();
        let (sender, unclaimed) = std::sync::mpsc::channel();
        let give_back = move |value: u32| sender.send(value).unwrap();
        let mut call = Box::pin(threads.run_to_completion(|_| async { Ok(7) }, give_back));
        assert!((&mut call).now_or_never().is_none());
        while !threads.tasks.is_empty() {
            tokio::task::yield_now().await;
        }
        // The value has been sent; the caller has not been polled since.
        drop(call);
        assert_eq!(unclaimed.try_recv(), Ok(7));
        let received = threads.run_to_completion(|_| async { Ok(8) }, |_: u32| panic!("it was received"));
        assert_eq!(received.await.unwrap(), 8);
    }
}
