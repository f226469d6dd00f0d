//! Runs the worker processes, injects faults, and collects the history.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::model::{TaskId, Ttl};
use leasehold::{BootInstant, Leasehold};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::checker::Checker;
use crate::ends::Ends;
use crate::history::{Event, FORMAT, Header, Record, write_line};
use crate::proxy::{self, Proxy, Target};
use crate::schedule::EverySecond;
use crate::sink::Sink;
use crate::worker::{DRAIN, RETRIES, WorkerPlan};
use crate::{EngineFault, Error, FaultKind, Report};

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

/// Time between two faults, in milliseconds.
const FAULT_PERIOD: std::ops::Range<u64> = 100..500;

/// Maximum time, besides ten TTLs, from the last fault or the last end of a task until the next task ends.
/// The tasks that are left may take longer in all: on a slow machine they are many.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Time that a worker has to end by itself.
const STOP_TIME: Duration = Duration::from_secs(15);

/// Time in which the caller of a run replaces the files of a store, in milliseconds.
const REPLACED_FOR_MILLIS: u64 = 10_000;

/// How a run is observed and ended.
pub struct Session<'a> {
    /// Output for the history.
    pub record: Option<&'a mut dyn Write>,
    /// Called about five times a second.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Number of times that the user has requested the end of the run. The first time, the run ends before
    /// its time and is checked; the second time, it ends at once.
    pub stops: watch::Receiver<u32>,
}

/// Runs the plan, checks what the workers see, and returns the report.
pub async fn run<'a>(plan: &'a Plan, session: Session<'a>) -> Result<Report, Error> {
    execute(plan, session, None::<std::future::Ready<_>>).await
}

/// Runs the plan beside `disturb`, which disturbs the engine and returns what it has done. The
/// workers end when the duration of the plan is over and `disturb` has ended. They run no schedule:
/// the engine may lose it.
pub async fn run_beside<'a>(
    plan: &'a Plan,
    session: Session<'a>,
    disturb: impl Future<Output = Vec<EngineFault>>,
) -> Result<Report, Error> {
    execute(plan, session, Some(disturb)).await
}

async fn execute<'a>(
    plan: &'a Plan,
    session: Session<'a>,
    disturb: Option<impl Future<Output = Vec<EngineFault>>>,
) -> Result<Report, Error> {
    let mut second_stop = session.stops.clone();
    let run = async {
        let mut coordinator = Coordinator::start(plan, session, disturb.is_some()).await?;
        let result = coordinator.run(disturb).await;
        if result.is_err()
            && let Some(schedule) = &coordinator.schedule
        {
            schedule.abandon().await;
        }
        coordinator.stop().await;
        result?;
        coordinator.finish()
    };
    tokio::select! {
        report = run => report,
        // Dropping the coordinator kills its workers, also stopped ones.
        Ok(_) = second_stop.wait_for(|stops| *stops > 1) => Err(Error::Interrupted),
    }
}

struct Coordinator<'a> {
    plan: &'a Plan,
    session: Session<'a>,
    leasehold: Leasehold,
    header: Header,
    target: Option<Target>,
    sink: Sink,
    rng: fastrand::Rng,
    slots: Vec<Slot>,
    processes: u32,
    sender: mpsc::UnboundedSender<Record>,
    receiver: mpsc::UnboundedReceiver<Record>,
    checker: CheckerThread,
    ends: Option<Ends>,
    /// Acknowledged tasks that are read when the engine is not disturbed any more.
    unread: Vec<TaskId>,
    schedule: Option<EverySecond>,
    /// Whether the caller disturbs the engine.
    is_disturbed: bool,
    /// Processes that start nothing new.
    drained: BTreeSet<u32>,
    progress: Progress,
    started: Instant,
}

/// Checks the records on a thread of its own: a check takes longer than a proxy may be delayed.
struct CheckerThread {
    records: std::sync::mpsc::Sender<Record>,
    checking: thread::JoinHandle<Report>,
}

impl CheckerThread {
    fn start(mut checker: Checker) -> std::io::Result<Self> {
        let (records, receiver) = std::sync::mpsc::channel();
        let check = move || {
            for record in receiver {
                checker.push(record);
            }
            Report::finish(checker)
        };
        Ok(Self { records, checking: thread::Builder::new().name("checker".into()).spawn(check)? })
    }
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
    async fn start(plan: &'a Plan, mut session: Session<'a>, is_disturbed: bool) -> Result<Self, Error> {
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
        // A store that cannot be used fails here, and not in each operation of the workers.
        let test = leasehold.lock(format!("{}/test", prefix(plan.seed))).ttl(ttl.as_duration());
        test.acquire().await?.release().await?;
        if let Some(record) = &mut session.record {
            write_line(*record, &header).map_err(Error::Record)?;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        // What a disturbed engine may have lost is known at the end only.
        let (checker, ends, schedule) = if is_disturbed {
            (Checker::with_parts(header.clone(), usize::MAX), None, None)
        } else {
            let ends = leasehold.tasks().ok().map(|tasks| Ends::start(tasks, sender.clone()));
            let schedule = EverySecond::start(&leasehold, &prefix(plan.seed), RETRIES).await?;
            (Checker::new(header.clone()), ends, schedule)
        };
        let mut coordinator = Self {
            plan,
            session,
            checker: CheckerThread::start(checker)?,
            ends,
            unread: Vec::new(),
            schedule,
            is_disturbed,
            drained: BTreeSet::new(),
            header,
            target,
            sink: Sink::start(sender.clone()).await?,
            rng: fastrand::Rng::with_seed(plan.seed),
            slots: Vec::new(),
            processes: 0,
            sender,
            receiver,
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
        // The signals of a terminal are for the coordinator alone.
        command.process_group(0);
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
            replaced_for_millis: if self.is_disturbed { REPLACED_FOR_MILLIS } else { 0 },
            ticks: self.schedule.as_ref().map(|schedule| schedule.name.clone()),
        };
        let mut slot = Slot { process, child, input, errors, proxy, fault: None };
        slot.send(&serde_json::to_string(&plan).map_err(std::io::Error::other)?).await;
        self.record(Event::Started { worker: process });
        Ok(slot)
    }

    fn record(&self, event: Event) {
        let record = Record { at: BootInstant::now().as_micros(), process: 0, event };
        // The receiver exists as long as the coordinator.
        let _ = self.sender.send(record);
    }

    fn take_records(&mut self) -> Result<(), Error> {
        while let Ok(record) = self.receiver.try_recv() {
            match &record.event {
                Event::Granted { .. } => self.progress.grants += 1,
                Event::Enqueued { task, .. } => {
                    self.progress.tasks += 1;
                    match (&mut self.ends, task.parse::<TaskId>()) {
                        (Some(ends), Ok(id)) => ends.add(id),
                        (None, Ok(id)) => self.unread.push(id),
                        (_, Err(_)) => {}
                    }
                }
                Event::Fault { .. } => self.progress.faults += 1,
                Event::Drained => drop(self.drained.insert(record.process)),
                _ => {}
            }
            if let Some(output) = &mut self.session.record {
                write_line(*output, &record).map_err(Error::Record)?;
            }
            // The thread exists as long as the coordinator.
            let _ = self.checker.records.send(record);
        }
        self.progress.elapsed = self.started.elapsed();
        Ok(())
    }

    async fn run(&mut self, disturb: Option<impl Future<Output = Vec<EngineFault>>>) -> Result<(), Error> {
        let faults = self.faults();
        let mut next_fault = self.started + Duration::from_secs(1);
        let mut ticks = 0_u32;
        let (is_disturbed, mut engine_faults) = (disturb.is_some(), None);
        let disturb = async {
            match disturb {
                Some(disturb) => disturb.await,
                None => Vec::new(),
            }
        };
        tokio::pin!(disturb);
        while engine_faults.is_none() || self.started.elapsed() < self.plan.duration {
            if *self.session.stops.borrow() > 0 {
                self.record(Event::Interrupted);
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                done = &mut disturb, if engine_faults.is_none() => engine_faults = Some(done),
            }
            self.take_records()?;
            self.end_faults(Instant::now());
            self.find_failure().await?;
            if Instant::now() >= next_fault && !faults.is_empty() {
                next_fault = Instant::now() + Duration::from_millis(self.rng.u64(FAULT_PERIOD));
                self.inject(&faults).await?;
            }
            ticks += 1;
            if ticks.is_multiple_of(10) {
                (self.session.progress)(self.progress);
            }
        }
        if is_disturbed {
            self.read_again(engine_faults.unwrap_or_default()).await?;
        }
        self.drain().await
    }

    /// Records the faults of the engine, and connects again to read the tasks: a store that was
    /// replaced is not used any more by clients that had opened it.
    async fn read_again(&mut self, faults: Vec<EngineFault>) -> Result<(), Error> {
        for fault in faults {
            let _ = self.sender.send(fault.record());
        }
        self.leasehold = Leasehold::connect(&self.plan.store).await?;
        self.ends = self.leasehold.tasks().ok().map(|tasks| Ends::start(tasks, self.sender.clone()));
        if let Some(ends) = &mut self.ends {
            self.unread.drain(..).for_each(|id| ends.add(id));
        }
        Ok(())
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

    /// Fails if a worker has ended although no fault has ended it, or if tasks cannot be read.
    async fn find_failure(&mut self) -> Result<(), Error> {
        if let Some(ends) = &mut self.ends
            && ends.has_failed()
        {
            return ends.finish().await;
        }
        for slot in &mut self.slots {
            if let Some(status) = slot.child.try_wait()? {
                let last = (&mut slot.errors).await.unwrap_or_default();
                return Err(Error::WorkerEnded(format!("{status}: {last}")));
            }
        }
        Ok(())
    }

    /// Ends all faults, and waits until every acknowledged task has ended.
    async fn drain(&mut self) -> Result<(), Error> {
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
        let max_wait = DRAIN_TIME + 10 * Duration::from_millis(self.header.ttl_millis);
        let mut until = Instant::now() + max_wait;
        if let Some(ends) = &self.ends {
            ends.drain();
        }
        let mut open = usize::MAX;
        loop {
            tokio::time::sleep(10 * TICK).await;
            self.take_records()?;
            self.find_failure().await?;
            (self.session.progress)(self.progress);
            // A worker that has not drained may still add tasks.
            let is_drained = self.slots.iter().all(|slot| self.drained.contains(&slot.process));
            let are_known = self.ends.as_ref().is_none_or(Ends::are_known);
            let still_open = self.ends.as_ref().map_or(0, Ends::open);
            if still_open < open {
                until = Instant::now() + max_wait;
            }
            open = still_open;
            if is_drained && are_known || Instant::now() >= until {
                break;
            }
        }
        if let Some(ends) = &mut self.ends {
            ends.finish().await?;
        }
        if let Some(schedule) = &self.schedule {
            let events = schedule.finish(until.max(Instant::now() + STOP_TIME)).await?;
            for event in events {
                self.record(event);
            }
        }
        self.record(Event::Complete);
        Ok(())
    }

    /// Waits for the check, and returns its report.
    fn finish(mut self) -> Result<Report, Error> {
        self.take_records()?;
        if let Some(output) = &mut self.session.record {
            output.flush().map_err(Error::Record)?;
        }
        let CheckerThread { records, checking } = self.checker;
        drop(records);
        checking.join().map_err(|_| std::io::Error::other("the check has panicked").into())
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
