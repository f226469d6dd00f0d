//! Runs the clients of a load: in this process, or in several processes, in which this program starts itself.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use leasehold::Leasehold;
use leasehold::model::LockName;
use leasehold::store::{Store, StoreUrl, connect};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::child::{ChildProcess, read_after_ready};
use crate::clients::{
    Client, Etcd, FairMap, FairMapClient, LibraryClient, Map, MapClient, RawPostgres, RawRedis, RawSqlite,
    RedisQueue, Rslock, StoreClient, create_raw_sqlite, etcd, raw_postgres, raw_redis,
};
use crate::measure::{Measurements, Window, from_steps, steps, work};
use crate::pgbench::Pgbench;
use crate::sandbox::{Engine, Keys, Layer, Sandbox, runtime};

/// Load of the clients of one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) sandbox: Sandbox,
    pub(crate) layer: Layer,
    pub(crate) keys: Keys,
    pub(crate) clients: Range<u32>,
    /// Hold time of each turn, if all clients use the same lock.
    pub(crate) hold_millis: u32,
}

impl Load {
    /// Creates the data that must exist before the clients start.
    pub(crate) fn prepare(&self) -> Result<()> {
        match (self.layer, self.sandbox.engine, self.keys) {
            (Layer::Raw, Engine::Holders | Engine::Full, _) => {
                let names: Vec<_> = self.clients.clone().map(|number| self.name(number)).collect();
                create_raw_sqlite(&self.sandbox.raw_file(), &names)
            }
            (Layer::Raw | Layer::Own, Engine::Postgres, _) => {
                runtime()?.block_on(raw_postgres::create(&self.sandbox.remote()?, &self.sandbox.namespace()))
            }
            (Layer::Raw, Engine::Redis, Keys::One) => {
                runtime()?.block_on(RedisQueue::prepare(&self.sandbox.remote()?, &self.key(0)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of commands that clients have sent to the server so far, if it counts them.
    pub(crate) fn commands(&self) -> Result<Option<u64>> {
        match (self.sandbox.engine, self.layer) {
            (Engine::Redis, Layer::Client) => {
                runtime()?.block_on(raw_redis::commands_sent(&self.sandbox.remote()?)).map(Some)
            }
            (Engine::Postgres, Layer::Client) => {
                runtime()?.block_on(raw_postgres::commands_sent(&self.sandbox.remote()?))
            }
            _ => Ok(None),
        }
    }

    /// Creates the clients, gets the window once all are ready, and runs the clients until it ends.
    pub(crate) fn run(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let (runtime, sandbox) = (runtime()?, &self.sandbox);
        match (self.layer, self.sandbox.engine, self.keys) {
            (Layer::Raw, Engine::Memory, Keys::Own) => {
                let map = Map::default();
                let client = |number| Ok(MapClient { map: map.clone(), name: self.name(number) });
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Raw, Engine::Memory, Keys::One) => {
                let map = FairMap::default();
                let client =
                    |number| Ok(FairMapClient { map: map.clone(), name: self.name(number), guard: None });
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Raw, Engine::Holders | Engine::Full, _) => {
                let file = sandbox.raw_file();
                let client = |number| RawSqlite::open(&file, self.sandbox.engine, self.name(number), number);
                self.on_threads(client, window)
            }
            (Layer::Raw, Engine::Postgres, _) => {
                let (url, schema) = (sandbox.remote()?, sandbox.namespace());
                let client =
                    |number| runtime.block_on(RawPostgres::open(&url, &schema, self.name(number), number));
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Raw, Engine::Redis, Keys::Own) => {
                let url = sandbox.remote()?;
                let client = |number| runtime.block_on(RawRedis::open(&url, self.key(number), number));
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Raw, Engine::Redis, Keys::One) => {
                let url = sandbox.remote()?;
                let client = |number| runtime.block_on(RedisQueue::open(&url, self.key(number)));
                self.on_tasks(&runtime, client, window)
            }
            (Layer::RawSingle, ..) => bail!("locks are not measured on this layer"),
            (Layer::Own, ..) => {
                let program = Pgbench::find().context("pgbench is not installed")?;
                program.locks(sandbox, u32::try_from(self.clients.len())?, window()?)
            }
            (Layer::Peer, Engine::Postgres, _) => {
                let url = etcd::address()?;
                let client = |number| runtime.block_on(Etcd::open(&url, self.key(number)));
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Peer, ..) => {
                let url = sandbox.remote()?;
                self.on_tasks(&runtime, |number| Ok(Rslock::new(&url, self.key(number))), window)
            }
            (Layer::Store, ..) => {
                let url = StoreUrl::parse(&sandbox.url()?)?;
                let store: Arc<dyn Store> = runtime.block_on(connect(&url))?;
                let client =
                    |number| StoreClient::new(store.clone(), LockName::new(self.name(number))?, number);
                self.on_tasks(&runtime, client, window)
            }
            (Layer::Client, ..) => {
                let leasehold = runtime.block_on(Leasehold::connect(&sandbox.url()?))?;
                let client = |number| {
                    let name = LockName::new(self.name(number))?;
                    Ok(LibraryClient { leasehold: leasehold.clone(), name, keys: self.keys, guard: None })
                };
                self.on_tasks(&runtime, client, window)
            }
        }
    }

    /// Runs the clients in several processes, which begin at the same time.
    pub(crate) fn run_in_processes(
        &self,
        processes: u32,
        window: impl FnOnce() -> Window,
    ) -> Result<Measurements> {
        let each = u32::try_from(self.clients.len())? / processes;
        let start = |number: u32| {
            let clients = number * each..(number + 1) * each;
            ChildProcess::start("client-process", &Self { clients, ..self.clone() })
        };
        let mut started = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
        for process in &mut started {
            process.wait_until_ready()?;
        }
        let window = serde_json::to_string(&window())?;
        for process in &mut started {
            process.send(&window)?;
        }
        Measurements::sum(started.iter_mut().map(|process| {
            let line = process.read_line()?;
            let (cycles, shares, turns) =
                serde_json::from_str(&line).context("a client process printed no result")?;
            Ok(Measurements { cycles: from_steps(cycles)?, shares, turns })
        }))
    }

    /// Runs each client as a task, like a program that uses the library.
    fn on_tasks<C: Client>(
        &self,
        runtime: &Runtime,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Measurements> {
        let clients = self.create(client)?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let start = |(number, client): (u32, C)| runtime.spawn(work(client, number, keys, hold, window));
        let tasks: Vec<_> = clients.into_iter().map(start).collect();
        Measurements::sum(tasks.into_iter().map(|task| runtime.block_on(task)?))
    }

    /// Runs each client on a thread, for clients that block.
    fn on_threads<C: Client>(
        &self,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Measurements> {
        let clients = self.create(client)?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let start = move |(number, client): (u32, C)| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
                runtime.block_on(work(client, number, keys, hold, window))
            })
        };
        let threads: Vec<_> = clients.into_iter().map(start).collect();
        let join = |thread: JoinHandle<Result<_>>| {
            thread.join().map_err(|_| anyhow!("the thread of a client has panicked"))?
        };
        Measurements::sum(threads.into_iter().map(join))
    }

    fn create<C>(&self, client: impl Fn(u32) -> Result<C>) -> Result<Vec<(u32, C)>> {
        self.clients.clone().map(|number| Ok((number, client(number)?))).collect()
    }

    fn name(&self, number: u32) -> String {
        match self.keys {
            Keys::Own => format!("bench/{number}"),
            Keys::One => "bench/all".to_owned(),
        }
    }

    fn hold(&self) -> Duration {
        Duration::from_millis(u64::from(self.hold_millis))
    }

    fn key(&self, number: u32) -> String {
        format!("{}:{}", self.sandbox.namespace(), self.name(number))
    }
}

/// Runs a client process: prints `ready`, reads its window, prints its measurements.
pub(crate) fn serve(load: &Load) -> Result<()> {
    let window = || serde_json::from_str(&read_after_ready()?).context("the window cannot be read");
    let Measurements { cycles, shares, turns } = load.run(window)?;
    println!("{}", serde_json::to_string(&(steps(&cycles), shares, turns))?);
    Ok(())
}
