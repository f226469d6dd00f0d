//! What is measured: the loads, and the floors on which each is measured.

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::clients::etcd;
use crate::pgbench::Pgbench;

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
    /// `postgres://…`
    Postgres,
    /// `redis://…`
    Redis,
}

impl Engine {
    /// Where the instance of an engine that is no file of ours is said to be.
    pub(crate) fn variable(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Holders | Self::Full => None,
            Self::Postgres => Some("LEASEHOLD_BENCH_POSTGRES"),
            Self::Redis => Some("LEASEHOLD_BENCH_REDIS"),
        }
    }

    /// Whether it can be measured: its server is known, or it needs none.
    pub(crate) fn is_there(self) -> bool {
        self.variable().is_none_or(|variable| std::env::var_os(variable).is_some())
    }
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Floor {
    /// Without leasehold: what the engine itself can do
    Raw,
    /// The same by the engine's own benchmark
    Own,
    /// Another lock library for the same engine
    Peer,
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
    /// How long each turn lasts, if all want the same lock.
    pub(crate) hold_millis: u32,
}

/// Every load.
pub(crate) fn cases() -> Vec<Case> {
    let case = |engine, keys, clients, processes| Case { engine, keys, clients, processes, hold_millis: 0 };
    let mut all = vec![case(Engine::Memory, Keys::Own, 1, 1), case(Engine::Memory, Keys::Own, 16, 1)];
    for engine in [Engine::Holders, Engine::Full] {
        all.extend([1, 16, 64].map(|clients| case(engine, Keys::Own, clients, 1)));
        all.push(case(engine, Keys::Own, 16, 8));
    }
    all.push(case(Engine::Memory, Keys::One, 16, 1));
    all.push(case(Engine::Holders, Keys::One, 16, 1));
    all.push(case(Engine::Holders, Keys::One, 16, 8));
    for engine in [Engine::Postgres, Engine::Redis] {
        all.extend([1, 16, 64].map(|clients| case(engine, Keys::Own, clients, 1)));
        all.extend([1, 8].map(|processes| case(engine, Keys::One, 16, processes)));
        all.push(Case { hold_millis: 2, ..case(engine, Keys::One, 16, 8) });
    }
    all
}

impl Case {
    /// The floors on which it is measured, the raw one first.
    pub(crate) fn floors(&self) -> Vec<Floor> {
        let peer = match self.engine {
            Engine::Redis => self.keys == Keys::Own,
            Engine::Postgres => etcd::address().is_ok(),
            Engine::Memory | Engine::Holders | Engine::Full => false,
        };
        let store = self.keys == Keys::Own && self.processes == 1;
        let own = store && self.engine == Engine::Postgres && Pgbench::find().is_some();
        let all = [
            (Floor::Raw, true),
            (Floor::Own, own),
            (Floor::Peer, peer),
            (Floor::Store, store),
            (Floor::Client, true),
        ];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(floor, _)| floor).collect()
    }

    /// What the floor is in this load.
    pub(crate) fn describe(&self, floor: Floor) -> &'static str {
        match (floor, self.engine, self.keys, self.clients) {
            (Floor::Store, ..) => "store",
            (Floor::Client, ..) => "client",
            (Floor::Own, ..) => "pgbench: the same",
            (Floor::Peer, Engine::Postgres, ..) => "etcd's lock",
            (Floor::Peer, ..) => "rslock",
            (Floor::Raw, Engine::Postgres, Keys::Own, _) => "raw: one upsert, one update",
            (Floor::Raw, Engine::Postgres, Keys::One, _) => "raw: polling every 10 ms",
            (Floor::Raw, Engine::Redis, Keys::Own, _) => "raw: SET NX PX + script",
            (Floor::Raw, Engine::Redis, Keys::One, _) => "raw: RPUSH + BLPOP",
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
            Self::Postgres => "postgres",
            Self::Redis => "redis",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, keys, clients, processes, hold_millis } = self;
        let one = if *keys == Keys::One { ", one lock" } else { "" };
        let ends = if *clients == 1 { "" } else { "s" };
        write!(f, "{engine}, {clients} client{ends}{one}")?;
        if *processes > 1 {
            write!(f, ", {processes} processes")?;
        }
        if *hold_millis > 0 { write!(f, ", held {hold_millis} ms") } else { Ok(()) }
    }
}
