//! What is measured: the loads, and the floors on which each is measured.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

/// Where the locks live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// `memory:`
    Memory,
    /// `sqlite:` as it is by default, against `synchronous=NORMAL`
    Holders,
    /// `sqlite:` with `sync=full`, against `synchronous=FULL`
    Full,
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Floor {
    /// Without leasehold: what the engine itself can do
    Raw,
    /// `LockStore::apply`
    Store,
    /// `Leasehold::lock(…).acquire()` and `Guard::release()`
    Client,
}

/// Who wants what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keys {
    /// Each client a lock of its own
    Own,
    /// All the same one
    One,
}

/// One load. It is measured on several floors, each against the raw one of the same round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) engine: Engine,
    pub(crate) keys: Keys,
    /// In all.
    pub(crate) clients: u32,
    /// Over which they are spread.
    pub(crate) processes: u32,
}

/// Every load.
pub(crate) fn cases() -> Vec<Case> {
    let case = |engine, keys, clients, processes| Case { engine, keys, clients, processes };
    let mut all = vec![case(Engine::Memory, Keys::Own, 1, 1), case(Engine::Memory, Keys::Own, 16, 1)];
    for engine in [Engine::Holders, Engine::Full] {
        all.extend([1, 16, 64].map(|clients| case(engine, Keys::Own, clients, 1)));
        all.push(case(engine, Keys::Own, 16, 8));
    }
    all.push(case(Engine::Memory, Keys::One, 16, 1));
    all.push(case(Engine::Holders, Keys::One, 16, 1));
    all.push(case(Engine::Holders, Keys::One, 16, 8));
    all
}

impl Case {
    /// The floors on which it is measured, the raw one first.
    pub(crate) fn floors(&self) -> &'static [Floor] {
        match (self.keys, self.processes) {
            (Keys::Own, 1) => &[Floor::Raw, Floor::Store, Floor::Client],
            _ => &[Floor::Raw, Floor::Client],
        }
    }

    /// What the floor is in this load.
    pub(crate) fn describe(&self, floor: Floor) -> &'static str {
        match (floor, self.engine, self.keys, self.clients) {
            (Floor::Store, ..) => "store",
            (Floor::Client, ..) => "client",
            (Floor::Raw, Engine::Memory, Keys::Own, _) => "raw: mutex + map",
            (Floor::Raw, Engine::Memory, Keys::One, _) => "raw: fair mutex + map",
            (Floor::Raw, _, Keys::Own, 1) => "raw: bare transactions",
            (Floor::Raw, _, Keys::Own, _) => "raw: a connection each",
            (Floor::Raw, _, Keys::One, _) => "raw: a connection each, polling every 1 ms",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Holders => "sqlite holders",
            Self::Full => "sqlite full",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, keys, clients, processes } = self;
        let one = if *keys == Keys::One { ", one lock" } else { "" };
        let ends = if *clients == 1 { "" } else { "s" };
        write!(f, "{engine}, {clients} client{ends}{one}")?;
        if *processes > 1 { write!(f, ", {processes} processes") } else { Ok(()) }
    }
}
