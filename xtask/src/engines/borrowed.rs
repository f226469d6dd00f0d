//! Engines for the length of a test run: those that are there, or our own, which end with it whatever happens.

use std::path::{Path, PathBuf};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::Skip;
use super::command::{Manner, up};
use super::process::Process;
use super::state::State;

/// Holds the engines while the tests run. Dropped, it ends those that were started for it.
pub(crate) struct Borrowed {
    root: PathBuf,
    /// What to tell the tests.
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
        end_with_this_process(root)?;
        let owner = Some(Process::this()?);
        let state = up(root, &wanted, &Manner { durable: false, owner })?;
        let names: Vec<_> = state.processes.iter().map(|(name, _)| name.as_str()).collect();
        println!("engines: {}", names.join(", "));
        let unnamed = |(name, _): &(String, String)| std::env::var_os(name).is_none();
        borrowed.variables.extend(state.exports.iter().filter(|export| unnamed(export)).cloned());
        Ok(borrowed)
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
