//! Where the data of one measurement is: a folder of its own, and a name of its own on a server.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use crate::clients::{raw_postgres, raw_redis};
use crate::plan::Engine;

/// A place that nobody else uses.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) engine: Engine,
    /// Where the database is. Its name is that of the schema or the prefix, where there is no file.
    pub(crate) folder: PathBuf,
}

impl Place {
    /// Where leasehold finds it.
    pub(crate) fn url(&self) -> Result<String> {
        let file = self.folder.join("leasehold.db");
        Ok(match self.engine {
            Engine::Memory => "memory:".to_owned(),
            Engine::Holders => format!("sqlite:{}", file.display()),
            Engine::Full => format!("sqlite:{}?sync=full", file.display()),
            // Without encryption, as the bare clients speak.
            Engine::Postgres => format!("{}?sslmode=disable&schema={}", self.remote()?, self.space()),
            Engine::Redis => format!("{}?prefix={}", self.remote()?, self.space()),
        })
    }

    /// Where the server is.
    pub(crate) fn remote(&self) -> Result<String> {
        let variable = self.engine.variable().context("this engine has no server")?;
        std::env::var(variable).with_context(|| format!("{variable} is not set"))
    }

    /// A name of its own on a server.
    pub(crate) fn space(&self) -> String {
        let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let letters = folder.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase());
        std::iter::once("bench_".to_owned()).chain(letters.map(String::from)).collect()
    }

    /// The file of the bare engine.
    pub(crate) fn raw_file(&self) -> PathBuf {
        self.folder.join("raw.db")
    }

    /// Removes what was left on a server. Files go with their folder.
    pub(crate) fn clean_up(&self) -> Result<()> {
        match self.engine {
            Engine::Postgres => runtime()?.block_on(raw_postgres::remove(&self.remote()?, &self.space())),
            Engine::Redis => runtime()?.block_on(raw_redis::remove(&self.remote()?, &self.space())),
            Engine::Memory | Engine::Holders | Engine::Full => Ok(()),
        }
    }
}

/// For clients that are tasks of one process.
pub(crate) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime cannot be started")
}
