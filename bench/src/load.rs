//! The clients of one process, put to work together.

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
    RedisLine, Rslock, StoreClient, create_raw_sqlite, etcd, pgbench, raw_postgres, raw_redis,
};
use crate::measure::{Notes, Window, work};
use crate::pgbench::Pgbench;
use crate::place::{Place, runtime};
use crate::plan::{Engine, Floor, Keys};

/// What the clients of one process have to do.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) engine: Engine,
    pub(crate) floor: Floor,
    pub(crate) keys: Keys,
    /// The numbers of the clients.
    pub(crate) clients: Range<u32>,
    /// How long each turn lasts, if all want the same lock.
    pub(crate) hold_millis: u32,
    /// Where the data is.
    pub(crate) folder: PathBuf,
}

impl Load {
    /// Makes what has to be there before any client comes.
    pub(crate) fn prepare(&self) -> Result<()> {
        match (self.floor, self.engine, self.keys) {
            (Floor::Raw, Engine::Holders | Engine::Full, _) => {
                let names: Vec<_> = self.clients.clone().map(|number| self.name(number)).collect();
                create_raw_sqlite(&self.place().raw_file(), &names)
            }
            (Floor::Raw | Floor::Own, Engine::Postgres, _) => {
                runtime()?.block_on(raw_postgres::create(&self.place().remote()?, &self.place().space()))
            }
            (Floor::Raw, Engine::Redis, Keys::One) => {
                runtime()?.block_on(RedisLine::prepare(&self.place().remote()?, &self.key(0)))
            }
            _ => Ok(()),
        }
    }

    /// Removes what it has left on a server.
    pub(crate) fn clean_up(&self) -> Result<()> {
        self.place().clean_up()
    }

    /// How many commands clients have sent to the server so far, if it tells.
    pub(crate) fn commands(&self) -> Result<Option<u64>> {
        match (self.engine, self.floor) {
            (Engine::Redis, Floor::Client) => {
                runtime()?.block_on(raw_redis::commands_sent(&self.place().remote()?)).map(Some)
            }
            (Engine::Postgres, Floor::Client) => {
                runtime()?.block_on(raw_postgres::commands_sent(&self.place().remote()?))
            }
            _ => Ok(None),
        }
    }

    /// Makes the clients, asks for the window once all is ready, and lets them work until it is over.
    pub(crate) fn run(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        match (self.floor, self.engine) {
            (Floor::Raw, Engine::Memory) => self.raw_memory(window),
            (Floor::Raw, Engine::Holders | Engine::Full) => self.raw_sqlite(window),
            (Floor::Raw, Engine::Postgres) => self.raw_postgres(window),
            (Floor::Raw, Engine::Redis) => self.raw_redis(window),
            (Floor::Own, _) => self.pgbench(window),
            (Floor::Peer, Engine::Postgres) => self.etcd(window),
            (Floor::Peer, _) => self.rslock(window),
            (Floor::Store, _) => self.store(window),
            (Floor::Client, _) => self.library(window),
        }
    }

    fn raw_memory(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
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

    fn raw_sqlite(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let file = self.place().raw_file();
        let client = |number| RawSqlite::open(&file, self.engine, self.name(number), number);
        self.on_threads(client, window)
    }

    fn raw_postgres(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let (runtime, url, schema) = (runtime()?, self.place().remote()?, self.place().space());
        let client = |number| runtime.block_on(RawPostgres::open(&url, &schema, self.name(number), number));
        self.on_tasks(&runtime, client, window)
    }

    fn raw_redis(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let (runtime, url) = (runtime()?, self.place().remote()?);
        if self.keys == Keys::Own {
            let client = |number| runtime.block_on(RawRedis::open(&url, self.key(number), number));
            self.on_tasks(&runtime, client, window)
        } else {
            let client = |number| runtime.block_on(RedisLine::open(&url, self.key(number)));
            self.on_tasks(&runtime, client, window)
        }
    }

    fn rslock(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let (runtime, url) = (runtime()?, self.place().remote()?);
        self.on_tasks(&runtime, |number| Ok(Rslock::new(&url, self.key(number))), window)
    }

    fn pgbench(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let program = Pgbench::find().context("pgbench is not there")?;
        pgbench::run(&program, &self.place(), u32::try_from(self.clients.len())?, window()?)
    }

    fn etcd(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let (runtime, url) = (runtime()?, etcd::address()?);
        let client = |number| runtime.block_on(Etcd::open(&url, self.key(number)));
        self.on_tasks(&runtime, client, window)
    }

    fn store(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let runtime = runtime()?;
        let url = StoreUrl::parse(&self.place().url()?)?;
        let store: Arc<dyn Store> = runtime.block_on(connect(&url))?;
        let client = |number| StoreClient::new(store.clone(), LockName::new(self.name(number))?, number);
        self.on_tasks(&runtime, client, window)
    }

    fn library(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let runtime = runtime()?;
        let leasehold = runtime.block_on(Leasehold::connect(&self.place().url()?))?;
        let client = |number| {
            let name = LockName::new(self.name(number))?;
            Ok(LibraryClient::new(leasehold.clone(), name, self.keys))
        };
        self.on_tasks(&runtime, client, window)
    }

    /// Each client is a task, as in a program that uses the library.
    fn on_tasks<C: Client>(
        &self,
        runtime: &Runtime,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Notes> {
        let clients: Vec<_> = self.clients.clone().map(client).collect::<Result<_>>()?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let tasks: Vec<_> = (self.clients.clone().zip(clients))
            .map(|(number, client)| runtime.spawn(work(client, number, keys, hold, window)))
            .collect();
        let mut all = Notes::new()?;
        for task in tasks {
            all.add(&runtime.block_on(task)??)?;
        }
        Ok(all)
    }

    /// Each client is a thread, for those that block.
    fn on_threads<C: Client>(
        &self,
        client: impl Fn(u32) -> Result<C>,
        window: impl FnOnce() -> Result<Window>,
    ) -> Result<Notes> {
        let clients: Vec<_> = self.clients.clone().map(client).collect::<Result<_>>()?;
        let (keys, hold, window) = (self.keys, self.hold(), window()?);
        let block = move |client, number| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(work(client, number, keys, hold, window))
        };
        let threads: Vec<_> = (self.clients.clone().zip(clients))
            .map(|(number, client)| std::thread::spawn(move || block(client, number)))
            .collect();
        let mut all = Notes::new()?;
        for thread in threads {
            all.add(&thread.join().map_err(|_| anyhow!("a client's thread has panicked"))??)?;
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

    fn place(&self) -> Place {
        Place { engine: self.engine, folder: self.folder.clone() }
    }

    fn key(&self, number: u32) -> String {
        format!("{}:{}", self.place().space(), self.name(number))
    }
}
