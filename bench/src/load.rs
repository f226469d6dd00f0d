//! The clients of one process, put to work together.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use leasehold::Leasehold;
use leasehold::model::LockName;
use leasehold::store::{Store, StoreUrl, connect};
use tokio::runtime::Runtime;

use crate::clients::{
    Client, FairMap, FairMapClient, LibraryClient, Map, MapClient, RawSqlite, StoreClient, create_raw_sqlite,
};
use crate::measure::{Notes, Window, work};
use crate::plan::{Engine, Floor, Keys};

/// What the clients of one process have to do.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) engine: Engine,
    pub(crate) floor: Floor,
    pub(crate) keys: Keys,
    /// The numbers of the clients.
    pub(crate) clients: Range<u32>,
    /// Where the database is.
    pub(crate) folder: PathBuf,
}

impl Load {
    /// Makes what has to be there before any client comes.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.floor == Floor::Raw && self.engine != Engine::Memory {
            let names: Vec<_> = self.clients.clone().map(|number| self.name(number)).collect();
            create_raw_sqlite(&self.raw_file(), &names)?;
        }
        Ok(())
    }

    /// Makes the clients, asks for the window once all is ready, and lets them work until it is over.
    pub(crate) fn run(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        match (self.floor, self.engine) {
            (Floor::Raw, Engine::Memory) => self.raw_memory(window),
            (Floor::Raw, _) => self.raw_sqlite(window),
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
        let file = self.raw_file();
        let client = |number| RawSqlite::open(&file, self.engine, self.name(number), number);
        self.on_threads(client, window)
    }

    fn store(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let runtime = runtime()?;
        let url = StoreUrl::parse(&self.url())?;
        let store: Arc<dyn Store> = runtime.block_on(connect(&url))?;
        let client = |number| StoreClient::new(store.clone(), LockName::new(self.name(number))?, number);
        self.on_tasks(&runtime, client, window)
    }

    fn library(&self, window: impl FnOnce() -> Result<Window>) -> Result<Notes> {
        let runtime = runtime()?;
        let leasehold = runtime.block_on(Leasehold::connect(&self.url()))?;
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
        let (keys, window) = (self.keys, window()?);
        let tasks: Vec<_> = (self.clients.clone().zip(clients))
            .map(|(number, client)| runtime.spawn(work(client, number, keys, window)))
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
        let (keys, window) = (self.keys, window()?);
        let block = move |client, number| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
            runtime.block_on(work(client, number, keys, window))
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

    fn raw_file(&self) -> PathBuf {
        self.folder.join("raw.db")
    }

    fn url(&self) -> String {
        let file = self.folder.join("leasehold.db");
        match self.engine {
            Engine::Memory => "memory:".to_owned(),
            Engine::Holders => format!("sqlite:{}", file.display()),
            Engine::Full => format!("sqlite:{}?sync=full", file.display()),
        }
    }
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime cannot be started")
}
