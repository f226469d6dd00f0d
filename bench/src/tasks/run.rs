//! `bench tasks`: measures the loads and prints the report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::Leasehold;

use super::peers::Peer;
use super::plan::{Case, ENGINES, Layer, Load, RunSize, cases};
use super::report::Report;
use super::rounds::{Row, round};
use super::{depth, tables};
use crate::cli::TasksArgs;
use crate::pgbench::Pgbench;
use crate::sandbox::{Engine, Sandbox, runtime};

/// Measures everything and prints it.
pub(crate) fn run(options: &TasksArgs) -> Result<()> {
    ensure!((0.05..=60.0).contains(&options.seconds), "--seconds must be 0.05 to 60");
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(&parent);
    let folder = folder.with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let (mut wanted, mut deep) = (rows(options), lease_engines(options));
    let without = without_tasks(&wanted, &deep, folder.path())?;
    wanted
        .retain(|(case, by)| matches!(by, Layer::Raw | Layer::RawSingle) || !without.contains(&case.engine));
    deep.retain(|engine| !without.contains(engine));
    ensure!(!wanted.is_empty() || !deep.is_empty(), "no load has a name that contains '{}'", options.only);

    let pgbench = Pgbench::find();
    let raw_postgres = if pgbench.is_some() {
        "pgbench"
    } else {
        "the driver of the benchmark, because pgbench is not installed"
    };
    let (seconds, tasks, start_seconds) = (options.seconds, options.tasks, options.start_seconds);
    let size = RunSize { seconds, tasks, start_seconds, pgbench };
    let peers = match (&options.peers_dir, options.peers) {
        (_, false) => Vec::new(),
        (Some(folder), true) => Peer::install_all(folder)?,
        (None, true) => Peer::install_all(folder.path())?,
    };
    let mut rounds = Vec::new();
    for number in 0..options.rounds {
        if !wanted.is_empty() {
            rounds.push(round(number, &wanted, &peers, &size, folder.path())?);
        }
    }
    let leases = leases(&deep, options, folder.path());
    let report = Report::new(&rounds, &leases, raw_postgres);
    match options {
        TasksArgs { json: true, .. } => println!("{}", serde_json::to_string_pretty(&report)?),
        TasksArgs { markdown: true, .. } => println!("{}", tables::markdown(&report)),
        _ => println!("{}", tables::plain(&report)),
    }
    Ok(())
}

/// Returns the rows that are selected and can be measured.
fn rows(options: &TasksArgs) -> Vec<(Case, Layer)> {
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let there = named.filter(|case| case.engine.is_available());
    there.flat_map(|case| case.by().iter().map(move |by| (case, *by))).collect()
}

/// Returns the engines whose leases are measured.
fn lease_engines(options: &TasksArgs) -> Vec<Engine> {
    let case = |engine| Case { engine, load: Load::Lease { pending: options.deep } };
    let wanted = |engine: &Engine| case(*engine).to_string().contains(&options.only) && engine.is_available();
    ENGINES.into_iter().filter(wanted).collect()
}

/// Returns the engines without tasks; for these, only the raw engine is measured.
fn without_tasks(wanted: &[(Case, Layer)], deep: &[Engine], folder: &Path) -> Result<Vec<Engine>> {
    let mut without = Vec::new();
    for engine in ENGINES {
        if deep.contains(&engine) || wanted.iter().any(|(case, _)| case.engine == engine) {
            let folder = tempfile::tempdir_in(folder)?;
            let sandbox = Sandbox { engine, folder: folder.path().to_owned() };
            let leasehold = runtime()?.block_on(Leasehold::connect(&sandbox.url()?))?;
            if let Err(error) = leasehold.tasks() {
                eprintln!("{engine}: {error}; only the raw engine is measured");
                without.push(engine);
            }
            drop(leasehold);
            sandbox.clean_up()?;
        }
    }
    Ok(without)
}

fn leases(engines: &[Engine], options: &TasksArgs, folder: &Path) -> Vec<Row> {
    let mut all = Vec::new();
    for engine in engines {
        let fill_timeout = Duration::from_secs(options.fill_seconds);
        match depth::measure(*engine, options.deep, fill_timeout, folder) {
            Ok(rows) => all.extend(rows),
            Err(error) => {
                let case = Case { engine: *engine, load: Load::Lease { pending: options.deep } };
                all.push(Row { case, by: Layer::Store, sample: Err(format!("{error:#}")) });
            }
        }
    }
    for row in &all {
        eprintln!("  {}", row.line());
    }
    all
}
