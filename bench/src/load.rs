//! Runs the clients of one process.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use leasehold::Leasehold;
use leasehold::model::LockName;
use leasehold::store::{Store, StoreUrl, connect};
use tokio::runtime::Runtime;

use crate::clients::{
    Client, Etcd, FairMap, FairMapClient, LibraryClient, Map, MapClient, RawPostgres, RawRedis, RawSqlite,
    RedisQueue, Rslock, StoreClient, create_raw_sqlite, etcd, pgbench, raw_postgres, raw_redis,
};
use crate::measure::{Measurements, Window, work};
use crate::pgbench::Pgbench;
use crate::plan::{Keys, Layer};
use crate::sandbox::{Engine, Sandbox, runtime};

/// Load of the clients of one process.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) engine: Engine,
    pub(crate) layer: Layer,
    pub(crate) keys: Keys,
    /// Numbers of the clients.
    pub(crate) clients: Range<u32>,
    /// Hold time of each turn, if all clients use the same lock.
    pub(crate) hold_millis: u32,
    /// Folder of the data.
    pub(crate) folder: PathBuf,
}

impl Load {
    /// Creates the data that must exist before the clients start.
    pub(crate) fn prepare(&self) -> Result<()> {
        match (self.layer, self.engine, self.keys) {
            (Layer::Raw, Engine::Holders | Engine::Full, _) => {
                let names: Vec<_> = self.clients.clone().map(|number| self.name(number)).collect();
                create_raw_sqlite(&self.sandbox().raw_file(), &names)
            }
            (Layer::Raw | Layer::Own, Engine::Postgres, _) => runtime()?
                .block_on(raw_postgres::create(&self.sandbox().remote()?, &self.sandbox().namespace())),
            (Layer::Raw, Engine::Redis, Keys::One) => {
                runtime()?.block_on(RedisQueue::prepare(&self.sandbox().remote()?, &self.key(0)))
            }
            _ => Ok(()),
        }
    }

    /// Removes its data on a server.
    pub(crate) fn clean_up(&self) -> Result<()> {
        self.sandbox().clean_up()
    }

    /// Returns the number of commands that clients have sent to the server so far, if it counts them.
    pub(crate) fn commands(&self) -> Result<Option<u64>> {
        match (self.engine, self.layer) {
            (Engine::Redis, Layer::Client) => {
                runtime()?.block_on(raw_redis::commands_sent(&self.sandbox().remote()?)).map(Some)
            }
            (Engine::Postgres, Layer::Client) => {
                runtime()?.block_on(raw_postgres::commands_sent(&self.sandbox().remote()?))
            }
            _ => Ok(None),
        }
    }

    /// Creates the clients, gets the window once all are ready, and runs the clients until it ends.
    pub(crate) fn run(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        match (self.layer, self.engine) {
            (Layer::Raw, Engine::Memory) => self.raw_memory(window),
            (Layer::Raw, Engine::Holders | Engine::Full) => self.raw_sqlite(window),
            (Layer::Raw, Engine::Postgres) => self.raw_postgres(window),
            (Layer::Raw, Engine::Redis) => self.raw_redis(window),
            (Layer::Own, _) => self.pgbench(window),
            (Layer::Peer, Engine::Postgres) => self.etcd(window),
            (Layer::Peer, _) => self.rslock(window),
            (Layer::Store, _) => self.store(window),
            (Layer::Client, _) => self.library(window),
        }
    }

    fn raw_memory(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let runtime = runtime()?;
        if self.keys == Keys::Own {
            let map = Map::default();
            let client = |number| Ok(MapClient { map: map.clone(), name: self.name(number) });
            self.on_tasks(&runtime, client, window)
        } else {
            let map = FairMap::default();
            let client =
                |number| Ok(FairMapClient { map: map.clone(), name: self.name(number), guard: None });
            self.on_tasks(&runtime, client, window)
        }
    }

    fn raw_sqlite(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let file = self.sandbox().raw_file();
        let client = |number| RawSqlite::open(&file, self.engine, self.name(number), number);
        self.on_threads(client, window)
    }

    fn raw_postgres(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let (runtime, url, schema) = (runtime()?, self.sandbox().remote()?, self.sandbox().namespace());
        let client = |number| runtime.block_on(RawPostgres::open(&url, &schema, self.name(number), number));
        self.on_tasks(&runtime, client, window)
    }

    fn raw_redis(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let (runtime, url) = (runtime()?, self.sandbox().remote()?);
        if self.keys == Keys::Own {
            let client = |number| runtime.block_on(RawRedis::open(&url, self.key(number), number));
            self.on_tasks(&runtime, client, window)
        } else {
            let client = |number| runtime.block_on(RedisQueue::open(&url, self.key(number)));
            self.on_tasks(&runtime, client, window)
        }
    }

    fn rslock(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let (runtime, url) = (runtime()?, self.sandbox().remote()?);
        self.on_tasks(&runtime, |number| Ok(Rslock::new(&url, self.key(number))), window)
    }

    fn pgbench(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let program = Pgbench::find().context("pgbench is not installed")?;
        pgbench::run(&program, &self.sandbox(), u32::try_from(self.clients.len())?, window()?)
    }

    fn etcd(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let (runtime, url) = (runtime()?, etcd::address()?);
        let client = |number| runtime.block_on(Etcd::open(&url, self.key(number)));
        self.on_tasks(&runtime, client, window)
    }

    fn store(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let runtime = runtime()?;
        let url = StoreUrl::parse(&self.sandbox().url()?)?;
        let store: Arc<dyn Store> = runtime.block_on(connect(&url))?;
        let client = |number| StoreClient::new(store.clone(), LockName::new(self.name(number))?, number);
        self.on_tasks(&runtime, client, window)
    }

    fn library(&self, window: impl FnOnce() -> Result<Window>) -> Result<Measurements> {
        let runtime = runtime()?;
        let leasehold = runtime.block_on(Leasehold::connect(&self.sandbox().url()?))?;
        let client = |number| {
            let name = LockName::new(self.name(number))?;
            Ok(LibraryClient::new(leasehold.clone(), name, self.keys))
        };
        self.on_tasks(&runtime, client, window)
    }

    /// Runs each client as a task, like a program that uses the library.
    fn on_tasks<C: Client>(
        &self,
        runtime: &Runtime,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Measurements> {
        let clients: Vec<_> = self.clients.clone().map(client).collect::<Result<_>>()?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let tasks: Vec<_> = (self.clients.clone().zip(clients))
            .map(|(number, client)| runtime.spawn(work(client, number, keys, hold, window)))
            .collect();
        let mut all = Measurements::new()?;
        for task in tasks {
            all.add(&runtime.block_on(task)??)?;
        }
        Ok(all)
    }

    /// Runs each client on a thread, for clients that block.
    fn on_threads<C: Client>(
        &self,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Measurements> {
        let clients: Vec<_> = self.clients.clone().map(client).collect::<Result<_>>()?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let block = move |client, number| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(work(client, number, keys, hold, window))
        };
        let threads: Vec<_> = (self.clients.clone().zip(clients))
            .map(|(number, client)| std::thread::spawn(move || block(client, number)))
            .collect();
        let mut all = Measurements::new()?;
        for thread in threads {
            all.add(&thread.join().map_err(|_| anyhow!("the thread of a client has panicked"))??)?;
        }
        Ok(all)
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

    fn sandbox(&self) -> Sandbox {
        Sandbox { engine: self.engine, folder: self.folder.clone() }
    }

    fn key(&self, number: u32) -> String {
        format!("{}:{}", self.sandbox().namespace(), self.name(number))
    }
}
