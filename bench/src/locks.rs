//! `bench locks`, from its options to its report.

use anyhow::{Context, Result, ensure};

use crate::cli::LocksArgs;
use crate::clients::etcd;
use crate::command;
use crate::plan::{Engine, cases};
use crate::report::{Report, json, tables};
use crate::rounds::round;

/// What the commands are called for `--only`.
const RUN: &str = "run";
/// A disk that syncs faster than this is none.
const MEMORY_DISK_MICROS: f64 = 5.0;

/// Measures everything and prints it.
pub(crate) fn run(options: &LocksArgs) -> Result<()> {
    ensure!((0.05..=600.0).contains(&options.seconds), "--seconds is 0.05 to 600");
    let place = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(&place);
    let folder = folder.with_context(|| format!("cannot make a folder in {}", place.display()))?;
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let (wanted, absent): (Vec<_>, Vec<_>) = named.partition(|case| case.engine.is_there());
    for case in &absent {
        let variable = case.engine.variable().unwrap_or_default();
        eprintln!("{case}: not measured, because {variable} does not say where a server is");
    }
    if wanted.iter().any(|case| case.engine == Engine::Postgres)
        && let Err(error) = etcd::address()
    {
        eprintln!("etcd's lock: not measured, because {error}");
    }
    let run = RUN.contains(&options.only);
    ensure!(run || !wanted.is_empty(), "no load has '{}' in its name", options.only);

    let mut rounds = Vec::new();
    for number in 0..options.rounds {
        if !wanted.is_empty() {
            rounds.push(round(number, &wanted, options.seconds, folder.path())?);
        }
    }
    let commands = run.then(|| command::measure(options.leasehold.as_ref(), options.starts, folder.path()));
    if rounds.iter().any(|round| round.probe.fsync_micros < MEMORY_DISK_MICROS) {
        eprintln!(
            "{} is no disk: durable rows mean nothing there; choose another with --dir",
            place.display()
        );
    }
    let report = Report::new(&rounds, commands);
    match options {
        LocksArgs { json: true, .. } => println!("{}", json::write(&report)?),
        LocksArgs { markdown: true, .. } => println!("{}", tables::markdown(&report)),
        _ => println!("{}", tables::plain(&report)),
    }
    Ok(())
}
