//! Worker process: acquires, waits, takes by force, adds and runs tasks, and records all of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{Holder, LockName, Payload, Reason, RetryPolicy, Ttl};
use leasehold::{Guard, GuardState, HandlerError, Leasehold, LockBuilder, OnLocked, TaskContext};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

use crate::history::{Event, Mode, Recorder};
use crate::sink::SinkClient;

/// What a worker does: the first line of its standard input, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerPlan {
    pub(crate) process: u32,
    pub(crate) seed: u64,
    pub(crate) store: String,
    pub(crate) sink: SocketAddr,
    pub(crate) ttl_millis: u64,
    /// Number of locks that all workers compete for.
    pub(crate) locks: u32,
    /// Begin of the names of locks and queues of this run.
    pub(crate) prefix: String,
    pub(crate) shared_locks: bool,
    pub(crate) tasks: bool,
    pub(crate) workflows: bool,
    /// Time for which the worker tries to connect although the store is broken, because its files may be being
    /// replaced.
    pub(crate) replaced_for_millis: u64,
    /// Queue of the ticks of the schedule that all workers run, if the engine has schedules.
    pub(crate) ticks: Option<String>,
}

/// Line on the standard input of a worker after which it starts nothing new.
pub(crate) const DRAIN: &str = "drain";

/// More attempts than faults can use up.
pub(crate) const RETRIES: RetryPolicy =
    RetryPolicy { attempts: 100, initial_delay: Ttl::from_millis(50), max_delay: Ttl::from_millis(500) };

/// Runs a worker until its standard input ends. The coordinator starts this in processes of its own.
pub fn run_worker() -> Result<(), crate::Error> {
    run_worker_on(Leasehold::connect)
}

/// Runs a worker whose store is opened by `open` from the URL.
pub fn run_worker_on(open: impl AsyncFn(&str) -> leasehold::Result<Leasehold>) -> Result<(), crate::Error> {
    // A worker that is stopped cannot see that its standard input ends.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(std::io::Error::from)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut input = BufReader::new(tokio::io::stdin()).lines();
        let first = input.next_line().await?.unwrap_or_default();
        let plan: WorkerPlan = serde_json::from_str(&first).map_err(std::io::Error::other)?;
        let recorder = Arc::new(Recorder::new(plan.process));
        let worker = tokio::select! {
            worker = Worker::connect(plan, recorder.clone(), open) => Arc::new(worker?),
            // A fault has prevented the connection until the end of the run.
            more = next_is_drain(&mut input) => {
                if more? {
                    recorder.record(Event::Drained);
                    while input.next_line().await?.is_some() {}
                }
                return Ok(());
            }
        };
        let mut loops = worker.start();
        let handlers = worker.handlers()?;
        if next_is_drain(&mut input).await? {
            worker.draining.store(true, Ordering::Relaxed);
            while loops.join_next().await.is_some() {}
            recorder.record(Event::Drained);
            while input.next_line().await?.is_some() {}
        }
        loops.shutdown().await;
        if let Some(handlers) = handlers {
            handlers.stop(Duration::from_secs(2)).await;
        }
        Ok(())
    })
}

/// Whether the coordinator requests that nothing new be started; `false` if it has closed the standard input.
async fn next_is_drain(input: &mut tokio::io::Lines<BufReader<tokio::io::Stdin>>) -> std::io::Result<bool> {
    Ok(input.next_line().await?.is_some_and(|line| line == DRAIN))
}

struct Worker {
    plan: WorkerPlan,
    leasehold: Leasehold,
    recorder: Arc<Recorder>,
    draining: AtomicBool,
}

impl Worker {
    /// Connects, and tries again as long as a fault prevents it: also while the caller of the run replaces the
    /// files of the store.
    async fn connect(
        plan: WorkerPlan,
        recorder: Arc<Recorder>,
        open: impl AsyncFn(&str) -> leasehold::Result<Leasehold>,
    ) -> Result<Self, crate::Error> {
        let began = Instant::now();
        loop {
            let may_be_replaced = began.elapsed() < Duration::from_millis(plan.replaced_for_millis);
            match open(&plan.store).await {
                Ok(leasehold) => return Ok(Self { plan, leasehold, recorder, draining: false.into() }),
                Err(error) if error.is_retryable() || (may_be_replaced && error.code() == "STORE_BROKEN") => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Starts the loops that use locks and add tasks.
    fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut loops = JoinSet::new();
        loops.spawn(self.clone().detect_stalls());
        let own = format!("own-{}", self.plan.process);
        loops.spawn(self.clone().use_lock(1, Mode::Exclusive, Some(own)));
        for number in 2..4 {
            loops.spawn(self.clone().use_lock(number, Mode::Exclusive, None));
        }
        loops.spawn(self.clone().take_by_force());
        if self.plan.shared_locks {
            for (number, mode) in [(5, Mode::Shared), (6, Mode::Exclusive)] {
                loops.spawn(self.clone().use_lock(number, mode, Some("shared".into())));
            }
            loops.spawn(self.clone().use_lock(7, Mode::Slots(2), Some("slots".into())));
        }
        if self.plan.tasks {
            loops.spawn(self.clone().add_tasks());
        }
        if self.plan.workflows {
            loops.spawn(self.clone().start_workflows());
        }
        loops
    }

    fn rng(&self, number: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.plan.seed ^ (u64::from(self.plan.process) << 32) ^ number)
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.plan.ttl_millis)
    }

    fn lock_name(&self, name: &str) -> String {
        format!("{}/{name}", self.plan.prefix)
    }

    /// Returns one of the locks that all workers compete for.
    fn hot_lock(&self, rng: &mut fastrand::Rng) -> String {
        self.lock_name(&format!("hot-{}", rng.u32(0..self.plan.locks)))
    }

    async fn detect_stalls(self: Arc<Self>) {
        const PERIOD: Duration = Duration::from_millis(50);
        while !self.is_draining() {
            let start = Instant::now();
            tokio::time::sleep(PERIOD).await;
            let late = start.elapsed().saturating_sub(PERIOD);
            if late > Duration::from_millis(300) {
                self.recorder.record(Event::Stalled { millis: millis(late) });
            }
        }
    }

    /// Acquires, holds and releases locks; without a name those that all workers compete for.
    async fn use_lock(self: Arc<Self>, number: u64, mode: Mode, name: Option<String>) {
        let mut rng = self.rng(number);
        let Ok(mut sink) = SinkClient::connect(self.plan.process, self.plan.sink).await else { return };
        while !self.is_draining() {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..10))).await;
            let name = name.as_ref().map_or_else(|| self.hot_lock(&mut rng), |name| self.lock_name(name));
            let waits = rng.u8(0..10) < 8;
            let held = match rng.u8(0..100) {
                0..80 => Duration::from_millis(rng.u64(0..8)),
                80..98 => self.ttl().mul_f64(0.2 * rng.f64()),
                // The lease has to be renewed.
                _ => self.ttl().mul_f64(1.2 + 0.4 * rng.f64()),
            };
            let op = self.recorder.op();
            self.recorder.record(Event::Acquire { op, lock: name.clone(), mode });
            match self.builder(op, &name, mode, waits).acquire().await {
                Ok(guard) => self.hold(op, &name, mode, guard, held, &mut sink).await,
                Err(error) => self.recorder.record(Event::Refused { op, code: error.code().into() }),
            }
        }
    }

    fn builder(&self, op: u32, name: &str, mode: Mode, waits: bool) -> LockBuilder {
        let recorder = self.recorder.clone();
        let first = AtomicBool::new(true);
        let builder = self.leasehold.lock(name).ttl(self.ttl()).on_wait(move |_, _| {
            if first.swap(false, Ordering::Relaxed) {
                recorder.record(Event::Queued { op });
            }
        });
        let builder = if waits { builder.wait(Duration::from_secs(20)) } else { builder };
        match mode {
            Mode::Exclusive => builder,
            Mode::Shared => builder.shared(),
            Mode::Slots(slots) => builder.slots(slots),
        }
    }

    async fn hold(
        &self,
        op: u32,
        lock: &str,
        mode: Mode,
        guard: Guard,
        held: Duration,
        sink: &mut SinkClient,
    ) {
        let (mut status, token, lease_id) = (guard.watch(), guard.token(), guard.lease_id());
        let until = status.borrow_and_update().valid_until.as_micros();
        let lease = lease_id.to_string();
        self.recorder.record(Event::Granted { op, lease, token: token.get(), until });
        let work = async {
            if mode != Mode::Exclusive {
                return tokio::time::sleep(held).await;
            }
            let Ok(Some(seen)) = sink.read(op, lock, token).await else { return };
            tokio::time::sleep(held).await;
            // Not checked against the lease: the fence of the sink has to do that.
            let _ = sink.write(op, lock, token, seen).await;
        };
        let lost = async {
            while status.changed().await.is_ok() {
                let (state, until) = {
                    let status = status.borrow_and_update();
                    (status.state, status.valid_until.as_micros())
                };
                if state == GuardState::Lost {
                    return;
                }
                self.recorder.record(Event::Extended { op, until });
            }
        };
        let lost = tokio::select! {
            () = work => false,
            () = lost => true,
        };
        self.recorder.record(Event::Ended { op, lost });
        let code = guard.release().await.err().map(|error| error.code().to_owned());
        self.recorder.record(Event::Released { op, code });
        if op.is_multiple_of(8) {
            // A release that arrives twice must not end the lease of the next holder.
            let _ = self.leasehold.locks().release(lock, lease_id, token).await;
        }
    }

    /// Ends the lease of a holder by force from time to time.
    async fn take_by_force(self: Arc<Self>) {
        let mut rng = self.rng(4);
        while !self.is_draining() {
            tokio::time::sleep(Duration::from_millis(rng.u64(500..3000))).await;
            let lock = self.hot_lock(&mut rng);
            let (Ok(by), Ok(reason)) = (Holder::new("torture"), Reason::new("a fault that torture injects"))
            else {
                return;
            };
            let Ok(status) = self.leasehold.locks().status(lock.as_str()).await else { continue };
            let Some(holder) = status.holders.first() else { continue };
            let (op, token) = (self.recorder.op(), holder.token);
            self.recorder.record(Event::Force { op, lock: lock.clone(), token: token.get() });
            let result = self.leasehold.locks().force_release(lock.as_str(), token, by, reason).await;
            let code = result.err().map(|error| error.code().to_owned());
            self.recorder.record(Event::Released { op, code });
        }
    }

    /// Number that all workers share for a while, so that they use the same keys.
    fn shared_number(period: u64) -> u64 {
        leasehold::BootInstant::now().as_micros() / 1000 / period
    }

    async fn add_tasks(self: Arc<Self>) {
        let mut rng = self.rng(8);
        let queue = &self.plan.prefix;
        while !self.is_draining() {
            tokio::time::sleep(Duration::from_millis(rng.u64(20..120))).await;
            let Ok(payload) = Payload::of(&rng.u32(..)) else { return };
            let mut task = self.leasehold.enqueue_to(queue.as_str(), payload).retries(RETRIES);
            let key = rng.bool().then(|| format!("key-{}", Self::shared_number(250)));
            if let Some(key) = &key {
                task = task.key(key.as_str());
            }
            if self.plan.workflows && rng.u8(0..3) == 0 {
                task = task.lock(self.lock_name(&format!("task-{}", rng.u8(0..2))));
            }
            let op = self.recorder.op();
            self.recorder.record(Event::Enqueue { op, queue: queue.clone(), key });
            match task.await {
                Ok(added) => {
                    let task = added.id.to_string();
                    self.recorder.record(Event::Enqueued { op, task, duplicate: added.duplicate });
                }
                Err(error) => self.recorder.record(Event::Refused { op, code: error.code().into() }),
            }
        }
    }

    async fn start_workflows(self: Arc<Self>) {
        let mut rng = self.rng(9);
        let name = &self.plan.prefix;
        while !self.is_draining() {
            tokio::time::sleep(Duration::from_millis(rng.u64(100..400))).await;
            let key = format!("event-{}", Self::shared_number(1000));
            let op = self.recorder.op();
            let (queue, of_event) = (format!("workflow:{name}"), Some(key.clone()));
            self.recorder.record(Event::Enqueue { op, queue, key: of_event });
            let start = self.leasehold.workflow(name.as_str()).key(key).on_locked(OnLocked::Queue(10_000));
            match start.start("input").await {
                Ok(result) => {
                    let duplicate = matches!(result, leasehold::StartResult::Duplicate(_));
                    if let Some(execution) = result.execution() {
                        let task = execution.id.task().to_string();
                        self.recorder.record(Event::Enqueued { op, task, duplicate });
                    }
                }
                Err(error) => self.recorder.record(Event::Refused { op, code: error.code().into() }),
            }
        }
    }

    /// Starts the worker of the library that runs the tasks and executions of this run.
    fn handlers(self: &Arc<Self>) -> Result<Option<leasehold::Worker>, crate::Error> {
        if !self.plan.tasks {
            return Ok(None);
        }
        let (worker, name) = (self.clone(), self.plan.prefix.as_str());
        let handle = move |task: TaskContext<Payload>| worker.clone().attempt(task);
        let mut builder = self.leasehold.worker().slots(4).handle_queue(name, self.ttl(), handle);
        builder = builder.recover_every(Duration::from_millis(500));
        if let Some(ticks) = &self.plan.ticks {
            let worker = self.clone();
            let handle = move |task: TaskContext<Payload>| worker.clone().attempt(task);
            builder = builder.handle_queue(ticks.as_str(), self.ttl(), handle);
        }
        if self.plan.workflows {
            let worker = self.clone();
            let handle = move |task: TaskContext<String>| worker.clone().attempt(task);
            builder = builder.workflow(name, self.ttl(), handle);
        }
        Ok(Some(builder.start()?))
    }

    /// Attempts a task: records how long the attempt believes to hold it.
    async fn attempt<T: Send>(self: Arc<Self>, task: TaskContext<T>) -> Result<u64, HandlerError> {
        let op = self.recorder.op();
        let mut until = task.valid_until();
        let lock = task.task().lock.as_ref().map(LockName::to_string);
        self.recorder.record(Event::Attempt {
            op,
            task: task.id().to_string(),
            lock,
            token: task.token().get(),
            until: until.as_micros(),
        });
        let ending = Ending { recorder: &self.recorder, op, is_done: false };
        let mut rng = self.rng(u64::from(op) << 8);
        let held = match rng.u8(0..20) {
            0 => self.ttl().mul_f64(1.2),
            1..4 => self.ttl().mul_f64(0.3),
            _ => Duration::from_millis(rng.u64(0..8)),
        };
        let fails = rng.u8(0..20) == 0;
        let work = tokio::time::sleep(held);
        tokio::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => break,
                renewed = task.renewed(until) => {
                    until = renewed;
                    self.recorder.record(Event::Extended { op, until: until.as_micros() });
                }
            }
        }
        ending.done();
        if fails && task.execution().is_none() {
            return Err(HandlerError::retry_in(Duration::from_millis(20), "a failure that torture injects"));
        }
        Ok(task.token().get())
    }
}

/// Records the end of an attempt, also if its future is dropped.
struct Ending<'a> {
    recorder: &'a Recorder,
    op: u32,
    is_done: bool,
}

impl Ending<'_> {
    fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.recorder.record(Event::Ended { op: self.op, lost: !self.is_done });
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
