//! Engines, layers, and the data location of one measurement: a separate folder, and a separate namespace on a
//! server.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::clients::{raw_postgres, raw_redis};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Returns the variable with the URL of the server, if the engine has one.
    pub(crate) fn variable(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Holders | Self::Full => None,
            Self::Postgres => Some("LEASEHOLD_BENCH_POSTGRES"),
            Self::Redis => Some("LEASEHOLD_BENCH_REDIS"),
        }
    }

    /// Whether the engine can be measured: it needs no server, or its variable is set.
    pub(crate) fn is_available(self) -> bool {
        self.variable().is_none_or(|variable| std::env::var_os(variable).is_some())
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Layer {
    /// The engine without leasehold
    Raw,
    /// The engine without leasehold, one task at a time
    RawSingle,
    /// The same statements by the engine's own benchmark
    Own,
    /// Another lock library for the same engine
    Peer,
    /// `LockStore` or `TaskStore`
    Store,
    /// The library, as callers use it, with default settings
    Client,
}

/// Assignment of locks to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Keys {
    /// One lock for each client
    Own,
    /// One lock for all clients
    One,
}

/// Creates the folder of a benchmark in this folder, by default in the folder for temporary files.
pub(crate) fn create_folder(parent: Option<&Path>) -> Result<TempDir> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(&parent);
    folder.with_context(|| format!("cannot create a folder in {}", parent.display()))
}

/// Separate data location.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    pub(crate) engine: Engine,
    /// Folder of the database. Its name is used for the schema or the key prefix on a server.
    pub(crate) folder: PathBuf,
}

impl Sandbox {
    /// Returns the store URL for leasehold.
    pub(crate) fn url(&self) -> Result<String> {
        let file = self.folder.join("leasehold.db");
        Ok(match self.engine {
            Engine::Memory => "memory:".to_owned(),
            Engine::Holders => format!("sqlite:{}", file.display()),
            Engine::Full => format!("sqlite:{}?sync=full", file.display()),
            // Without TLS, like the raw clients.
            Engine::Postgres => format!("{}?sslmode=disable&schema={}", self.remote()?, self.namespace()),
            Engine::Redis => format!("{}?prefix={}", self.remote()?, self.namespace()),
        })
    }

    pub(crate) fn remote(&self) -> Result<String> {
        let variable = self.engine.variable().context("this engine has no server")?;
        std::env::var(variable).with_context(|| format!("{variable} is not set"))
    }

    /// Returns the namespace on a server: a schema or a key prefix.
    pub(crate) fn namespace(&self) -> String {
        let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let letters = folder.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase());
        std::iter::once("bench_".to_owned()).chain(letters.map(String::from)).collect()
    }

    pub(crate) fn raw_file(&self) -> PathBuf {
        self.folder.join("raw.db")
    }

    /// Removes the data on a server. Files are removed with their folder.
    pub(crate) fn clean_up(&self) -> Result<()> {
        match self.engine {
            Engine::Postgres => runtime()?.block_on(raw_postgres::remove(&self.remote()?, &self.namespace())),
            Engine::Redis => runtime()?.block_on(raw_redis::remove(&self.remote()?, &self.namespace())),
            Engine::Memory | Engine::Holders | Engine::Full => Ok(()),
        }
    }
}

/// Creates the runtime for clients that are tasks of one process.
pub(crate) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime cannot be started")
}
