//! What is measured of tasks: the loads, and by what each is done.

use std::fmt;

use serde::Serialize;

use crate::plan::Engine;
use crate::stats::{float, grouped};

/// So many at once, where many go at once.
pub(super) const BATCH: u32 = 100;

/// What is done with tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Load {
    /// Adding them, so many with each call.
    Enqueue { clients: u32, batch: u32 },
    /// Working off a backlog: by one worker in this process, or by one in each of several others.
    Drain { processes: u32 },
    /// From adding a task to the start of its handler, when there is nothing else to do.
    Start { elsewhere: bool },
    /// Leasing ten of so many that could run.
    Lease { pending: u64 },
}

/// By what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    /// The engine without leasehold.
    Raw,
    /// The same, one task at a time.
    RawSingle,
    /// `TaskStore`.
    Store,
    /// `Leasehold::enqueue` and `Worker`, with the settings that they have by default.
    Client,
}

/// One load on one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Case {
    pub(super) engine: Engine,
    #[serde(flatten)]
    pub(super) load: Load,
}

/// The engines.
pub(super) const ENGINES: [Engine; 4] = [Engine::Memory, Engine::Full, Engine::Postgres, Engine::Redis];

/// Every load of the rounds.
pub(super) fn cases() -> Vec<Case> {
    let loads = [
        Load::Enqueue { clients: 1, batch: 1 },
        Load::Enqueue { clients: 16, batch: 1 },
        Load::Enqueue { clients: 1, batch: BATCH },
        Load::Drain { processes: 1 },
        Load::Drain { processes: 2 },
        Load::Start { elsewhere: false },
        Load::Start { elsewhere: true },
    ];
    let all = ENGINES.into_iter().flat_map(|engine| loads.map(|load| Case { engine, load }));
    all.filter(|case| case.engine != Engine::Memory || !case.load.needs_processes()).collect()
}

impl Load {
    fn needs_processes(self) -> bool {
        matches!(self, Self::Drain { processes: 2.. } | Self::Start { elsewhere: true })
    }
}

impl Case {
    /// By what it is done, the bare engine first.
    pub(super) fn by(&self) -> &'static [By] {
        match (self.engine, self.load) {
            (Engine::Memory, Load::Drain { .. }) => &[By::Store, By::Client],
            (Engine::Postgres, Load::Start { elsewhere: false }) => &[By::Raw, By::Client],
            (_, Load::Start { .. }) | (Engine::Memory, _) => &[By::Client],
            (_, Load::Drain { processes: 1 }) => &[By::Raw, By::RawSingle, By::Store, By::Client],
            (_, Load::Lease { .. }) => &[By::Store],
            _ => &[By::Raw, By::Client],
        }
    }

    /// What that is, in this load.
    pub(super) fn describe(&self, by: By) -> &'static str {
        match (by, self.load, self.engine) {
            (By::Store, Load::Drain { .. }, _) => "store, 100 at a time",
            (By::Store, ..) => "store",
            (By::Client, ..) => "client",
            (_, Load::Enqueue { batch: 1, .. }, Engine::Postgres) => "raw: INSERT",
            (_, Load::Enqueue { .. }, Engine::Postgres) => "raw: INSERT of many rows",
            (_, Load::Start { .. }, Engine::Postgres) => "raw: INSERT, then SKIP LOCKED",
            (By::RawSingle, _, Engine::Postgres) => "raw: SKIP LOCKED + DELETE, 1 at a time",
            (_, _, Engine::Postgres) => "raw: SKIP LOCKED + DELETE, 100 at a time",
            (_, Load::Enqueue { .. }, Engine::Redis) => "raw: LPUSH",
            (By::RawSingle, _, Engine::Redis) => "raw: RPOPLPUSH + LREM, 1 at a time",
            (_, _, Engine::Redis) => "raw: RPOPLPUSH + LREM, 100 at a time",
            (_, Load::Enqueue { .. }, _) => "raw: one connection",
            (By::RawSingle, ..) => "raw: one connection, 1 at a time",
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
            Load::Start { elsewhere: false } => f.write_str("start, same process"),
            Load::Start { elsewhere: true } => f.write_str("start, other process"),
            Load::Lease { pending } => write!(f, "lease, {} pending", grouped(float(pending))),
        }
    }
}
