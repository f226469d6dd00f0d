//! Engines for the duration of a run: engines that are already running, or new ones, which stop with the run.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::command::{StartOptions, up};
use super::process::Process;
use super::programs::Programs;
use super::state::State;
use super::{Kind, Skip};

/// Engines that a run uses. Dropping it stops those that were started for the run.
pub(crate) struct ScopedEngines {
    root: PathBuf,
    /// Environment variables for the processes that use the engines.
    pub(crate) variables: Vec<(String, String)>,
}

impl ScopedEngines {
    /// Uses the engines that are running, or starts them. An engine that the environment names is used
    /// as it is.
    pub(crate) fn new(root: &Path, skip: &Skip) -> Result<Self> {
        let mut wanted = skip.wanted();
        wanted.retain(|kind| std::env::var_os(kind.variable()).is_none());
        let mut engines = Self { root: root.to_owned(), variables: Vec::new() };
        let skipped = skip.list();
        if !skipped.is_empty() {
            println!("skipped engines: {skipped}; their tests do nothing");
            engines.variables.push(("LEASEHOLD_TEST_SKIP".to_owned(), skipped));
        }
        if wanted.is_empty() {
            return Ok(engines);
        }
        engines.start(&wanted, false)?;
        Ok(engines)
    }

    /// Engines for benchmarks, which sync to disk. Starts none if the environment names them.
    pub(crate) fn durable(root: &Path) -> Result<Self> {
        let mut engines = Self { root: root.to_owned(), variables: Vec::new() };
        let mut wanted = vec![Kind::Postgres, Kind::Redis];
        if wanted.iter().all(|kind| std::env::var_os(kind.bench_variable()).is_some()) {
            return Ok(engines);
        }
        match Programs::prepare(&[Kind::Etcd]) {
            Ok(_) => wanted.push(Kind::Etcd),
            Err(error) => eprintln!("etcd's lock is not measured: {error:#}"),
        }
        engines.start(&wanted, true)?;
        let is_exported =
            |kind: &Kind| engines.variables.iter().any(|(name, _)| *name == kind.bench_variable());
        let hint = "the running engines do not sync to disk: run cargo xtask engines down, then try again";
        ensure!(wanted.iter().filter(|kind| **kind != Kind::Etcd).all(is_exported), hint);
        Ok(engines)
    }

    fn start(&mut self, wanted: &[Kind], durable: bool) -> Result<()> {
        stop_on_signal(&self.root)?;
        let owner = Some(Process::this()?);
        let state = up(&self.root, wanted, &StartOptions { durable, owner })?;
        let names: Vec<_> = state.processes.iter().map(|(name, _)| name.as_str()).collect();
        eprintln!("engines: {}", names.join(", "));
        let is_unset = |(name, _): &(String, String)| std::env::var_os(name).is_none();
        self.variables.extend(state.exports.iter().filter(|export| is_unset(export)).cloned());
        Ok(())
    }
}

impl Drop for ScopedEngines {
    fn drop(&mut self) {
        stop_own(&self.root);
    }
}

/// Stops the engines before a signal ends this process.
fn stop_on_signal(root: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let root = root.to_owned();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            stop_own(&root);
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// Stops the engines of this process, according to the state file, which contains every engine from
/// its start.
fn stop_own(root: &Path) {
    let stopped = match (State::load(root), Process::this()) {
        (Ok(Some(state)), Ok(this)) if state.owner == Some(this) => state.stop(),
        (state, this) => state.and(this.map(drop)),
    };
    if let Err(error) = stopped {
        eprintln!("the engines could not be stopped: {error:#}");
    }
}
