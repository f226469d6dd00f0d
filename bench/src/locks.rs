//! `bench locks`: measures the loads and prints the report.

use anyhow::{Context, Result, ensure};

use crate::cli::LocksArgs;
use crate::clients::etcd;
use crate::plan::cases;
use crate::report::{self, Report};
use crate::rounds::round;
use crate::run_command;
use crate::sandbox::Engine;

/// Name of the commands for `--only`.
const RUN: &str = "run";
/// Sync time below which a folder is assumed to be in memory.
const MEMORY_DISK_MICROS: f64 = 5.0;

/// Measures everything and prints it.
pub(crate) fn run(options: &LocksArgs) -> Result<()> {
    ensure!((0.05..=600.0).contains(&options.seconds), "--seconds must be 0.05 to 600");
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(&parent);
    let folder = folder.with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let (wanted, absent): (Vec<_>, Vec<_>) = named.partition(|case| case.engine.is_available());
    for case in &absent {
        let variable = case.engine.variable().unwrap_or_default();
        eprintln!("{case}: not measured, because {variable} is not set");
    }
    if wanted.iter().any(|case| case.engine == Engine::Postgres)
        && let Err(error) = etcd::address()
    {
        eprintln!("etcd's lock: not measured, because {error}");
    }
    let run = RUN.contains(&options.only);
    ensure!(run || !wanted.is_empty(), "no load has a name that contains '{}'", options.only);

    let mut rounds = Vec::new();
    for number in 0..options.rounds {
        if !wanted.is_empty() {
            rounds.push(round(number, &wanted, options.seconds, folder.path())?);
        }
    }
    let commands =
        run.then(|| run_command::measure(options.leasehold.as_ref(), options.starts, folder.path()));
    if rounds.iter().any(|round| round.probe.fsync_micros < MEMORY_DISK_MICROS) {
        eprintln!(
            "{} is not on a disk: durable rows mean nothing there; choose another folder with --dir",
            parent.display()
        );
    }
    let report = Report::new(&rounds, commands);
    match options {
        LocksArgs { json: true, .. } => println!("{}", serde_json::to_string_pretty(&report)?),
        LocksArgs { markdown: true, .. } => println!("{}", report::markdown(&report)),
        _ => println!("{}", report::plain(&report)),
    }
    Ok(())
}
