//! Loads, and the layers on which each is measured.

use std::fmt;

use crate::clients::etcd;
use crate::pgbench::Pgbench;
use crate::rounds::Workload;
use crate::sandbox::{Engine, Keys, Layer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) engine: Engine,
    pub(crate) keys: Keys,
    /// Total number of clients.
    pub(crate) clients: u32,
    /// Number of processes of the clients.
    pub(crate) processes: u32,
    /// Hold time of each turn, if all clients use the same lock.
    pub(crate) hold_millis: u32,
}

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
    /// Returns the layers on which it is measured, the raw one first.
    pub(crate) fn layers(&self) -> Vec<Layer> {
        let peer = match self.engine {
            Engine::Redis => self.keys == Keys::Own,
            Engine::Postgres => etcd::address().is_ok(),
            Engine::Memory | Engine::Holders | Engine::Full => false,
        };
        let store = self.keys == Keys::Own && self.processes == 1;
        let own = store && self.engine == Engine::Postgres && Pgbench::find().is_some();
        let all = [
            (Layer::Raw, true),
            (Layer::Own, own),
            (Layer::Peer, peer),
            (Layer::Store, store),
            (Layer::Client, true),
        ];
        all.into_iter().filter(|(_, wanted)| *wanted).map(|(layer, _)| layer).collect()
    }
}

impl Workload for Case {
    fn describe(&self, layer: Layer) -> &'static str {
        match (layer, self.engine, self.keys, self.clients) {
            (Layer::Store, ..) => "store",
            (Layer::Client, ..) => "client",
            (Layer::Own, ..) => "pgbench: the same",
            (Layer::Peer, Engine::Postgres, ..) => "etcd's lock",
            (Layer::Peer, ..) => "rslock",
            (_, Engine::Postgres, Keys::Own, _) => "raw: one upsert, one update",
            (_, Engine::Postgres, Keys::One, _) => "raw: polling every 10 ms",
            (_, Engine::Redis, Keys::Own, _) => "raw: SET NX PX + script",
            (_, Engine::Redis, Keys::One, _) => "raw: RPUSH + BLPOP",
            (_, Engine::Memory, Keys::Own, _) => "raw: mutex + map",
            (_, Engine::Memory, Keys::One, _) => "raw: fair mutex + map",
            (_, _, Keys::Own, 1) => "raw: bare transactions",
            (_, _, Keys::Own, _) => "raw: a connection each",
            (_, _, Keys::One, _) => "raw: a connection each, polling every 1 ms",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, keys, clients, processes, hold_millis } = self;
        let one = if *keys == Keys::One { ", one lock" } else { "" };
        let plural = if *clients == 1 { "" } else { "s" };
        write!(f, "{engine}, {clients} client{plural}{one}")?;
        if *processes > 1 {
            write!(f, ", {processes} processes")?;
        }
        if *hold_millis > 0 { write!(f, ", held {hold_millis} ms") } else { Ok(()) }
    }
}
