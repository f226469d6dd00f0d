//! Runs the worker processes, injects faults, and collects the history.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold::model::{TaskId, Ttl};
use leasehold::{BootInstant, Leasehold, Tasks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::history::{Event, FORMAT, Header, History, Record};
use crate::proxy::{self, Proxy};
use crate::sink::Sink;
use crate::target::Target;
use crate::worker::{DRAIN, WorkerPlan};
use crate::{Error, FaultKind, MISSING};

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// URL of the store.
    pub store: String,
    /// Command that calls [`run_worker`](crate::run_worker).
    pub worker_command: Vec<OsString>,
    /// Time in which faults are injected.
    pub duration: Duration,
    /// Number of worker processes.
    pub workers: u32,
    /// Number of locks that all workers compete for.
    pub locks: u32,
    /// Kinds of faults to inject.
    pub faults: Vec<FaultKind>,
    /// Seed of all random choices.
    pub seed: u64,
    /// TTL of leases; raised to the minimum of the engine.
    pub ttl: Duration,
}

/// State of a run, for a line that shows its progress.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Time since the begin of the run.
    pub elapsed: Duration,
    /// Number of leases that were granted.
    pub grants: u64,
    /// Number of tasks that were added.
    pub tasks: u64,
    /// Number of faults that were injected.
    pub faults: u64,
    /// Whether the run waits for the end of all tasks.
    pub is_draining: bool,
}

/// Period in which the coordinator looks at its workers.
const TICK: Duration = Duration::from_millis(20);

/// Time that acknowledged tasks have to end after the last fault, besides ten TTLs.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Time that a worker has to end by itself.
const STOP_TIME: Duration = Duration::from_secs(15);

/// Runs the plan and returns the history. Calls `progress` about five times a second.
pub async fn run(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<History, Error> {
    let mut coordinator = Coordinator::start(plan).await?;
    let result = coordinator.run(&mut progress).await;
    coordinator.stop().await;
    result?;
    coordinator.take_records();
    Ok(History::new(coordinator.header, coordinator.records))
}

struct Coordinator<'a> {
    plan: &'a Plan,
    leasehold: Leasehold,
    header: Header,
    target: Option<Target>,
    sink: Sink,
    rng: fastrand::Rng,
    slots: Vec<Slot>,
    processes: u32,
    sender: mpsc::UnboundedSender<Record>,
    receiver: mpsc::UnboundedReceiver<Record>,
    records: Vec<Record>,
    progress: Progress,
    started: Instant,
}

/// One of the worker processes that run at the same time.
struct Slot {
    process: u32,
    child: Child,
    input: Option<ChildStdin>,
    /// Last line of the standard error of the process.
    errors: JoinHandle<String>,
    proxy: Option<Proxy>,
    fault: Option<(FaultKind, Instant)>,
}

impl<'a> Coordinator<'a> {
    async fn start(plan: &'a Plan) -> Result<Self, Error> {
        let leasehold = Leasehold::connect(&plan.store).await?;
        let capabilities = leasehold.capabilities();
        if !capabilities.persistent {
            return Err(Error::OneProcess(leasehold.url()));
        }
        let ttl = Ttl::new(plan.ttl).map_err(leasehold::Error::from)?.max(capabilities.min_ttl);
        let target = Target::of(&plan.store);
        let header = Header {
            format: FORMAT,
            store: leasehold.url(),
            engine: capabilities.engine.to_owned(),
            seed: plan.seed,
            ttl_millis: ttl.as_micros() / 1000,
            workers: plan.workers,
            proxied: target.is_some(),
            queues: capabilities.queues,
            tasks: leasehold.tasks().is_ok(),
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut coordinator = Self {
            plan,
            header,
            target,
            sink: Sink::start(sender.clone()).await?,
            rng: fastrand::Rng::with_seed(plan.seed),
            slots: Vec::new(),
            processes: 0,
            sender,
            receiver,
            records: Vec::new(),
            progress: Progress {
                elapsed: Duration::ZERO,
                grants: 0,
                tasks: 0,
                faults: 0,
                is_draining: false,
            },
            started: Instant::now(),
            leasehold,
        };
        for _ in 0..plan.workers {
            let proxy = match &coordinator.target {
                Some(target) => Some(Proxy::start(target.address).await?),
                None => None,
            };
            let slot = coordinator.spawn(proxy).await?;
            coordinator.slots.push(slot);
        }
        Ok(coordinator)
    }

    /// Starts a worker process.
    async fn spawn(&mut self, proxy: Option<Proxy>) -> Result<Slot, Error> {
        self.processes += 1;
        let process = self.processes;
        let (program, arguments) = self.plan.worker_command.split_first().ok_or(Error::NoWorkerCommand)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let Some(output) = output else { return };
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // A killed process may have written a part of a line.
                if let Ok(record) = serde_json::from_str(&line) {
                    let _ = sender.send(record);
                }
            }
        });
        let errors = tokio::spawn(async move {
            let mut last = String::new();
            // Read to its end: a worker whose standard error is full would block.
            if let Some(errors) = errors {
                let mut lines = BufReader::new(errors).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if !line.trim().is_empty() {
                        last = line;
                    }
                }
            }
            last
        });
        let store = match (&self.target, &proxy) {
            (Some(target), Some(proxy)) => target.redirected(proxy.address()),
            _ => self.plan.store.clone(),
        };
        let capabilities = self.leasehold.capabilities();
        let plan = WorkerPlan {
            process,
            seed: self.plan.seed,
            store,
            sink: self.sink.address,
            ttl_millis: self.header.ttl_millis,
            locks: self.plan.locks.max(1),
            prefix: prefix(self.plan.seed),
            shared_locks: capabilities.shared_locks,
            tasks: self.header.tasks,
            workflows: self.header.tasks && capabilities.tasks.locks,
        };
        let mut slot = Slot { process, child, input, errors, proxy, fault: None };
        slot.send(&serde_json::to_string(&plan).map_err(std::io::Error::other)?).await;
        self.record(Event::Started { worker: process });
        Ok(slot)
    }

    fn record(&self, event: Event) {
        let record = Record { at: BootInstant::now().as_micros(), process: 0, event };
        // The receiver lives as long as the coordinator.
        let _ = self.sender.send(record);
    }

    fn take_records(&mut self) {
        while let Ok(record) = self.receiver.try_recv() {
            match record.event {
                Event::Granted { .. } => self.progress.grants += 1,
                Event::Enqueued { .. } => self.progress.tasks += 1,
                Event::Fault { .. } => self.progress.faults += 1,
                _ => {}
            }
            self.records.push(record);
        }
        self.progress.elapsed = self.started.elapsed();
    }

    async fn run(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let faults = self.faults();
        let mut next_fault = self.started + Duration::from_secs(1);
        let mut ticks = 0_u32;
        while self.started.elapsed() < self.plan.duration {
            tokio::time::sleep(TICK).await;
            self.take_records();
            self.end_faults(Instant::now());
            self.find_ended_worker().await?;
            if Instant::now() >= next_fault && !faults.is_empty() {
                next_fault = Instant::now() + Duration::from_millis(self.rng.u64(100..700));
                self.inject(&faults).await?;
            }
            ticks += 1;
            if ticks.is_multiple_of(10) {
                progress(self.progress);
            }
        }
        self.drain(progress).await
    }

    /// Returns the kinds of faults that are possible with this store.
    fn faults(&self) -> Vec<FaultKind> {
        let is_http = self.target.as_ref().is_some_and(|target| target.is_http);
        let is_possible = |kind: &FaultKind| match kind {
            FaultKind::Duplicate => is_http,
            kind => !kind.needs_proxy() || self.target.is_some(),
        };
        self.plan.faults.iter().copied().filter(is_possible).collect()
    }

    /// Injects a random fault into a random process that has none.
    async fn inject(&mut self, faults: &[FaultKind]) -> Result<(), Error> {
        let idle: Vec<usize> =
            (0..self.slots.len()).filter(|number| self.slots[*number].fault.is_none()).collect();
        let (Some(kind), Some(number)) = (self.rng.choice(faults.iter().copied()), self.rng.choice(idle))
        else {
            return Ok(());
        };
        let ttl = Duration::from_millis(self.header.ttl_millis);
        let duration = kind.duration(ttl, &mut self.rng);
        let worker = self.slots[number].process;
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.record(Event::Fault { worker, fault: kind.to_string(), millis });
        if kind == FaultKind::Kill {
            return self.replace(number).await;
        }
        let of_proxy = kind.of_proxy(duration, &mut self.rng);
        let slot = &mut self.slots[number];
        match (kind, &slot.proxy) {
            (FaultKind::Stop, _) => slot.signal(Signal::SIGSTOP),
            (FaultKind::Cut, Some(proxy)) => proxy.cut(),
            (_, Some(proxy)) => proxy.set(of_proxy),
            (_, None) => {}
        }
        slot.fault = Some((kind, Instant::now() + duration));
        Ok(())
    }

    /// Kills a worker process, and starts another one.
    async fn replace(&mut self, number: usize) -> Result<(), Error> {
        self.slots[number].child.kill().await?;
        let proxy = self.slots[number].proxy.take();
        self.slots[number] = self.spawn(proxy).await?;
        Ok(())
    }

    fn end_faults(&mut self, now: Instant) {
        for slot in &mut self.slots {
            let Some((kind, _)) = slot.fault.take_if(|(_, until)| *until <= now) else { continue };
            // The proxy ends these itself, with the request or response that they are for.
            let ends_itself =
                matches!(kind, FaultKind::LateRequest | FaultKind::LateResponse | FaultKind::Duplicate);
            match &slot.proxy {
                _ if kind == FaultKind::Stop => slot.signal(Signal::SIGCONT),
                Some(proxy) if !ends_itself => proxy.set(proxy::Fault::None),
                _ => {}
            }
        }
    }

    /// Fails if a worker has ended although no fault has ended it.
    async fn find_ended_worker(&mut self) -> Result<(), Error> {
        for slot in &mut self.slots {
            if let Some(status) = slot.child.try_wait()? {
                let last = (&mut slot.errors).await.unwrap_or_default();
                return Err(Error::WorkerEnded(format!("{status}: {last}")));
            }
        }
        Ok(())
    }

    /// Ends all faults, and waits until every acknowledged task has ended.
    async fn drain(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        for slot in &mut self.slots {
            if let Some(proxy) = &slot.proxy {
                proxy.set(proxy::Fault::None);
            }
            slot.signal(Signal::SIGCONT);
            slot.fault = None;
        }
        self.record(Event::Draining);
        self.progress.is_draining = true;
        for slot in &mut self.slots {
            slot.send(DRAIN).await;
        }
        let Ok(tasks) = self.leasehold.tasks() else { return Ok(()) };
        let until = Instant::now() + DRAIN_TIME + 10 * Duration::from_millis(self.header.ttl_millis);
        let (mut open, mut drained, mut known) = (BTreeSet::new(), BTreeSet::new(), 0);
        loop {
            tokio::time::sleep(10 * TICK).await;
            self.take_records();
            self.find_ended_worker().await?;
            progress(self.progress);
            for record in &self.records[known..] {
                match &record.event {
                    Event::Enqueued { task, .. } => open.extend(task.parse::<TaskId>().ok()),
                    Event::Drained => drop(drained.insert(record.process)),
                    _ => {}
                }
            }
            known = self.records.len();
            let is_over = Instant::now() >= until;
            self.record_ends(&tasks, &mut open, is_over).await?;
            // A worker that has not drained may still add tasks.
            let is_drained = self.slots.iter().all(|slot| drained.contains(&slot.process));
            if is_drained && open.is_empty() || is_over {
                return Ok(());
            }
        }
    }

    /// Records the tasks that have ended, and at last also those that have not.
    async fn record_ends(
        &self,
        tasks: &Tasks,
        open: &mut BTreeSet<TaskId>,
        is_over: bool,
    ) -> Result<(), Error> {
        for id in open.clone() {
            let task = match tasks.get(id).await {
                Ok(task) => task,
                Err(leasehold::Error::UnknownTask(_)) => {
                    open.remove(&id);
                    let (task, state) = (id.to_string(), MISSING.to_owned());
                    self.record(Event::Final { task, state, token: 0, terminal: false });
                    continue;
                }
                Err(error) if error.is_retryable() && !is_over => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let terminal = task.state.is_terminal();
            if terminal || is_over {
                open.remove(&id);
                let (task, state, token) = (id.to_string(), task.state.to_string(), task.token.get());
                self.record(Event::Final { task, state, token, terminal });
            }
        }
        Ok(())
    }

    /// Ends all workers.
    async fn stop(&mut self) {
        for slot in &mut self.slots {
            slot.signal(Signal::SIGCONT);
            slot.input = None;
        }
        for slot in &mut self.slots {
            if tokio::time::timeout(STOP_TIME, slot.child.wait()).await.is_err() {
                let _ = slot.child.kill().await;
            }
        }
    }
}

impl Slot {
    /// Sends a line to the worker. A worker that has ended is found by the next tick.
    async fn send(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
            let _ = input.flush().await;
        }
    }

    fn signal(&self, signal: Signal) {
        // `id` is `None` once the process was waited for: its number is not signalled again.
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(id), signal);
        }
    }
}

/// Returns the begin of the names of locks and queues of a run.
fn prefix(seed: u64) -> String {
    format!("torture-{seed}")
}
