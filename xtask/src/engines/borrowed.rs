//! Engines for the length of a run: those that are there, or our own, which end with it whatever happens.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::command::{Manner, up};
use super::process::Process;
use super::programs::Programs;
use super::state::State;
use super::{Kind, Skip};

/// Holds the engines while something uses them. Dropped, it ends those that were started for it.
pub(crate) struct Borrowed {
    root: PathBuf,
    /// What to tell whoever uses them.
    pub(crate) variables: Vec<(String, String)>,
}

impl Borrowed {
    /// Takes the engines that run, or starts them. One that the environment names already is used as it is.
    pub(crate) fn new(root: &Path, skip: &Skip) -> Result<Self> {
        let mut wanted = skip.wanted();
        wanted.retain(|kind| std::env::var_os(kind.variable()).is_none());
        let mut borrowed = Self { root: root.to_owned(), variables: Vec::new() };
        let skipped = skip.list();
        if !skipped.is_empty() {
            println!("without {skipped}: their tests do nothing");
            borrowed.variables.push(("LEASEHOLD_TEST_SKIP".to_owned(), skipped));
        }
        if wanted.is_empty() {
            return Ok(borrowed);
        }
        borrowed.start(&wanted, false)?;
        Ok(borrowed)
    }

    /// For measuring: they wait for the disk as they must. None if the environment names them.
    pub(crate) fn durable(root: &Path) -> Result<Self> {
        let mut borrowed = Self { root: root.to_owned(), variables: Vec::new() };
        let mut wanted = vec![Kind::Postgres, Kind::Redis];
        if wanted.iter().all(|kind| std::env::var_os(kind.bench_variable()).is_some()) {
            return Ok(borrowed);
        }
        match Programs::prepare(&[Kind::Etcd]) {
            Ok(_) => wanted.push(Kind::Etcd),
            Err(error) => eprintln!("etcd's lock is not measured: {error:#}"),
        }
        borrowed.start(&wanted, true)?;
        let names = |kind: &Kind| borrowed.variables.iter().any(|(name, _)| *name == kind.bench_variable());
        let hint = "the engines that run do not wait for the disk: cargo xtask engines down, then once more";
        ensure!(wanted.iter().filter(|kind| **kind != Kind::Etcd).all(names), hint);
        Ok(borrowed)
    }

    fn start(&mut self, wanted: &[Kind], durable: bool) -> Result<()> {
        end_with_this_process(&self.root)?;
        let owner = Some(Process::this()?);
        let state = up(&self.root, wanted, &Manner { durable, owner })?;
        let names: Vec<_> = state.processes.iter().map(|(name, _)| name.as_str()).collect();
        eprintln!("engines: {}", names.join(", "));
        let unnamed = |(name, _): &(String, String)| std::env::var_os(name).is_none();
        self.variables.extend(state.exports.iter().filter(|export| unnamed(export)).cloned());
        Ok(())
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        stop_own(&self.root);
    }
}

/// A signal that ends this process ends its engines first.
fn end_with_this_process(root: &Path) -> Result<()> {
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

/// Read from the file, where every engine stands from the moment of its start.
fn stop_own(root: &Path) {
    let stopped = match (State::load(root), Process::this()) {
        (Ok(Some(state)), Ok(this)) if state.owner == Some(this) => state.stop(),
        (state, this) => state.and(this.map(drop)),
    };
    if let Err(error) = stopped {
        eprintln!("the engines could not be stopped: {error:#}");
    }
}
