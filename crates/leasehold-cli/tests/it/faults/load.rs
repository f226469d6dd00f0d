//! Load of `leasehold torture` beside a test that disturbs the engine, and the verdict on its history.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold::BootInstant;
use leasehold_torture::history::Event;
use leasehold_torture::{EngineFault, Error, FaultKind, History, Plan, Report, Session, run_beside};
use tokio::sync::{oneshot, watch};

use crate::support::with_usual_signals;

/// Grants before the first fault, and after each one: the load has gone on.
const GRANTS: u64 = 100;
/// Time in which grants happen again after a fault. A busy machine needs most of it; the tests print
/// how long it took.
const RECOVERY: Duration = Duration::from_secs(30);
/// Time in which the load has started.
const START: Duration = Duration::from_mins(1);
/// TTL of the leases.
const TTL: Duration = Duration::from_secs(1);

/// What an engine may lose in a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nothing: every property has to hold.
    Nothing,
    /// Leases and tasks that it had acknowledged. Tokens have to rise (S3, S4), and everything that
    /// is acknowledged after the fault has to hold.
    Acknowledged,
    /// The same, and some keys of an operation without the others: a task may lose its place in the queue, and
    /// never end.
    Keys,
}

/// Report of a load and its recorded history.
type LoadResult = Result<(Report, Vec<u8>), Error>;

/// Workers that use a store until the test ends them.
pub(crate) struct Load {
    grants: Arc<AtomicU64>,
    faults: Vec<EngineFault>,
    end: oneshot::Sender<Vec<EngineFault>>,
    /// `None` once it has ended and its result was read.
    running: Option<JoinHandle<LoadResult>>,
}

impl Load {
    /// Starts worker processes on the store at this URL, and waits until they acquire locks.
    pub(crate) fn start(store: &str) -> Self {
        Self::start_with(store, worker_command(), &[])
    }

    /// Starts worker processes with this command, and disturbs them too.
    pub(crate) fn start_with(store: &str, worker_command: Vec<OsString>, faults: &[FaultKind]) -> Self {
        with_usual_signals();
        let plan = Plan {
            store: store.to_owned(),
            worker_command,
            duration: Duration::from_secs(1),
            workers: 3,
            locks: 2,
            faults: faults.to_vec(),
            seed: BootInstant::now().as_micros(),
            ttl: TTL,
        };
        let grants = Arc::new(AtomicU64::new(0));
        let (end, ended) = oneshot::channel();
        let of_thread = grants.clone();
        let running = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let mut progress = |progress: leasehold_torture::Progress| {
                of_thread.store(progress.grants, Ordering::SeqCst);
            };
            let (mut recorded, (_stop, stops)) = (Vec::new(), watch::channel(0));
            let session = Session { record: Some(&mut recorded), progress: &mut progress, stops };
            let disturb = async { ended.await.unwrap_or_default() };
            let report = runtime.block_on(run_beside(&plan, session, disturb))?;
            Ok((report, recorded))
        });
        let mut load = Self { grants, faults: Vec::new(), end, running: Some(running) };
        load.wait_for_grants("the load has not started", START);
        load
    }

    /// Injects a fault and waits until the load goes on. `inject` returns when the engine should be
    /// available again.
    pub(crate) fn disturb<T>(&mut self, name: &str, loss: Loss, inject: impl FnOnce() -> T) -> T {
        let from = BootInstant::now();
        let result = inject();
        let to = BootInstant::now();
        self.faults.push(EngineFault {
            name: name.to_owned(),
            from,
            to,
            loses: loss != Loss::Nothing,
            loses_parts: loss == Loss::Keys,
        });
        self.wait_for_grants(&format!("no grants after the fault '{name}'"), RECOVERY);
        result
    }

    fn wait_for_grants(&mut self, what: &str, limit: Duration) {
        let (start, before) = (Instant::now(), self.grants.load(Ordering::SeqCst));
        while self.grants.load(Ordering::SeqCst) < before + GRANTS {
            if let Some(ended) = self.running.take_if(|running| running.is_finished()) {
                let error = ended.join().unwrap().err();
                panic!(
                    "{what}: the load has ended: {}",
                    error.map_or_else(String::new, |error| error.to_string())
                );
            }
            assert!(start.elapsed() < limit, "{what} within {} s", limit.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the load, checks its history and asserts that nothing is violated.
    pub(crate) fn assert_fit(self) -> Verdict {
        let Self { faults, end, running, .. } = self;
        // A load that has ended by itself reports why.
        let _ = end.send(faults.clone());
        let ran = running.expect("a load that has ended was reported").join().unwrap();
        let (report, recorded) = ran.unwrap_or_else(|error| panic!("the load has failed: {error}"));
        let history = History::read(&recorded[..]).unwrap();
        if !report.fit {
            let file = format!("{}/faults-{}.jsonl", env!("CARGO_TARGET_TMPDIR"), history.header.seed);
            history.write(std::fs::File::create(&file).unwrap()).unwrap();
            panic!("{report}\nhistory: {file}");
        }
        for fault in &faults {
            let first = recovery(&history, fault).unwrap_or_else(|| panic!("no grant after {}", fault.name));
            let lasted = fault.to.after(fault.from);
            eprintln!(
                "{}: {} ms, the next grant after {} ms",
                fault.name,
                lasted.as_millis(),
                first.as_millis()
            );
        }
        eprintln!("{report}");
        Verdict { report, history }
    }
}

/// Returns the command of a worker process.
pub(crate) fn worker_command() -> Vec<OsString> {
    [env!("CARGO_BIN_EXE_leasehold"), "torture", "worker"].map(OsString::from).into()
}

/// Returns the time from the end of a fault to the first grant of a request that was sent later.
fn recovery(history: &History, fault: &EngineFault) -> Option<Duration> {
    let end = fault.to.as_micros();
    let granted = history.records.iter().find(|record| {
        matches!(record.event, Event::Granted { until, .. } if until >= end) && record.at >= end
    });
    granted.map(|granted| Duration::from_micros(granted.at - end))
}

/// History in which nothing is violated.
pub(crate) struct Verdict {
    pub(crate) report: Report,
    pub(crate) history: History,
}

impl Verdict {
    /// Returns the number of acknowledged tasks that the engine has lost.
    pub(crate) fn missing_tasks(&self) -> usize {
        let is_missing = |event: &Event| matches!(event, Event::Final { state, .. } if state == "missing");
        self.history.records.iter().filter(|record| is_missing(&record.event)).count()
    }

    /// Returns how many requests have failed with this code.
    pub(crate) fn refused(&self, with: &str) -> usize {
        let is_refused = |event: &Event| match event {
            Event::Refused { code, .. } | Event::Released { code: Some(code), .. } => code == with,
            _ => false,
        };
        self.history.records.iter().filter(|record| is_refused(&record.event)).count()
    }
}
