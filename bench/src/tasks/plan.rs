//! Loads of the task benchmark, the layers on which each is measured, and the size of a measurement.

use std::fmt;

use crate::measure::{Window, float};
use crate::pgbench::Pgbench;
use crate::report::grouped;
use crate::rounds::Workload;
use crate::sandbox::{Engine, Layer};

/// Number of tasks per call in batched loads.
pub(super) const BATCH: u32 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Enqueues `batch` tasks with each call.
    Enqueue { clients: u32, batch: u32 },
    /// Drains a backlog with one worker in this process, or with one worker in each of several processes.
    Drain { processes: u32 },
    /// Drains a backlog with one worker in this process while another client keeps a transaction open, so that
    /// the server cannot remove old versions of rows.
    DrainBesideTransaction,
    /// Time from enqueue to the start of the handler, with an idle worker.
    Start { other_process: bool },
    /// Leases ten of many pending tasks.
    Lease { pending: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) engine: Engine,
    pub(super) load: Load,
}

pub(super) const ENGINES: [Engine; 4] = [Engine::Memory, Engine::Full, Engine::Postgres, Engine::Redis];

pub(super) fn cases() -> Vec<Case> {
    let loads = [
        Load::Enqueue { clients: 1, batch: 1 },
        Load::Enqueue { clients: 16, batch: 1 },
        Load::Enqueue { clients: 1, batch: BATCH },
        Load::Drain { processes: 1 },
        Load::Drain { processes: 2 },
        Load::Start { other_process: false },
        Load::Start { other_process: true },
    ];
    let all = ENGINES.into_iter().flat_map(|engine| loads.map(|load| Case { engine, load }));
    let beside = Case { engine: Engine::Postgres, load: Load::DrainBesideTransaction };
    all.filter(|case| case.engine != Engine::Memory || !case.load.needs_processes()).chain([beside]).collect()
}

impl Load {
    fn needs_processes(self) -> bool {
        matches!(self, Self::Drain { processes: 2.. } | Self::Start { other_process: true })
    }
}

impl Case {
    /// Returns the layers on which it is measured, the raw engine first.
    pub(super) fn by(&self) -> &'static [Layer] {
        match (self.engine, self.load) {
            (Engine::Memory, Load::Drain { .. }) => &[Layer::Store, Layer::Client],
            (Engine::Postgres, Load::Start { other_process: false }) => &[Layer::Raw, Layer::Client],
            (_, Load::Start { .. } | Load::DrainBesideTransaction) | (Engine::Memory, _) => &[Layer::Client],
            (_, Load::Drain { processes: 1 }) => &[Layer::Raw, Layer::RawSingle, Layer::Store, Layer::Client],
            (_, Load::Lease { .. }) => &[Layer::Store],
            _ => &[Layer::Raw, Layer::Client],
        }
    }
}

impl Workload for Case {
    fn describe(&self, by: Layer) -> &'static str {
        match (by, self.load, self.engine) {
            (Layer::Store, Load::Drain { .. }, _) => "store, 100 at a time",
            (Layer::Store, ..) => "store",
            (Layer::Client, ..) => "client",
            (_, Load::Enqueue { batch: 1, .. }, Engine::Postgres) => "raw: INSERT",
            (_, Load::Enqueue { .. }, Engine::Postgres) => "raw: INSERT of many rows",
            (_, Load::Start { .. }, Engine::Postgres) => "raw: INSERT, then SKIP LOCKED",
            (Layer::RawSingle, _, Engine::Postgres) => "raw: SKIP LOCKED + DELETE, 1 at a time",
            (_, _, Engine::Postgres) => "raw: SKIP LOCKED + DELETE, 100 at a time",
            (_, Load::Enqueue { .. }, Engine::Redis) => "raw: LPUSH",
            (Layer::RawSingle, _, Engine::Redis) => "raw: RPOPLPUSH + LREM, 1 at a time",
            (_, _, Engine::Redis) => "raw: RPOPLPUSH + LREM, 100 at a time",
            (_, Load::Enqueue { .. }, _) => "raw: one connection",
            (Layer::RawSingle, ..) => "raw: one connection, 1 at a time",
            _ => "raw: one connection, 100 at a time",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.engine)?;
        match self.load {
            Load::Enqueue { clients: 1, batch: 1 } => f.write_str("enqueue, 1 client"),
            Load::Enqueue { clients, batch: 1 } => write!(f, "enqueue, {clients} clients"),
            Load::Enqueue { batch, .. } => write!(f, "enqueue, {batch} with each call"),
            Load::Drain { processes: 1 } => f.write_str("drain, 1 worker"),
            Load::Drain { processes } => write!(f, "drain, {processes} processes"),
            Load::DrainBesideTransaction => f.write_str("drain, beside an open transaction"),
            Load::Start { other_process: false } => f.write_str("start, same process"),
            Load::Start { other_process: true } => f.write_str("start, other process"),
            Load::Lease { pending } => write!(f, "lease, {} pending", grouped(float(pending))),
        }
    }
}

/// Amount of work of each measurement.
#[derive(Debug, Clone)]
pub(super) struct RunSize {
    pub(super) seconds: f64,
    pub(super) tasks: u64,
    pub(super) start_seconds: f64,
    pub(super) pgbench: Option<Pgbench>,
}

impl RunSize {
    pub(super) fn window(&self) -> Window {
        Window::after_warm_up(std::time::Duration::from_secs_f64(self.seconds))
    }

    /// Returns a tenth of the tasks: draining one task at a time takes much longer.
    pub(super) fn tenth(&self) -> Self {
        Self { tasks: (self.tasks / 10).max(1), ..self.clone() }
    }
}
