//! `bench tasks`, from its options to its report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::Leasehold;

use super::depth;
use super::peers::Peer;
use super::plan::{By, Case, ENGINES, Load, cases};
use super::report::Report;
use super::rounds::{Row, round};
use super::row::Extent;
use super::tables;
use crate::cli::TasksArgs;
use crate::pgbench::Pgbench;
use crate::place::{Place, runtime};
use crate::plan::Engine;

/// Measures everything and prints it.
pub(crate) fn run(options: &TasksArgs) -> Result<()> {
    ensure!((0.05..=60.0).contains(&options.seconds), "--seconds is 0.05 to 60");
    let place = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(&place);
    let folder = folder.with_context(|| format!("cannot make a folder in {}", place.display()))?;
    let (mut wanted, mut deep) = (rows(options), lease_engines(options));
    let without = without_tasks(&wanted, &deep, folder.path())?;
    wanted.retain(|(case, by)| matches!(by, By::Raw | By::RawSingle) || !without.contains(&case.engine));
    deep.retain(|engine| !without.contains(engine));
    ensure!(!wanted.is_empty() || !deep.is_empty(), "no load has '{}' in its name", options.only);

    let pgbench = Pgbench::find();
    let raw_postgres =
        if pgbench.is_some() { "pgbench" } else { "our own driver, because pgbench is not there" };
    let (seconds, tasks, start_seconds) = (options.seconds, options.tasks, options.start_seconds);
    let extent = Extent { seconds, tasks, start_seconds, pgbench };
    let peers = match (&options.peers_dir, options.peers) {
        (_, false) => Vec::new(),
        (Some(kept), true) => Peer::install_all(kept)?,
        (None, true) => Peer::install_all(folder.path())?,
    };
    let mut rounds = Vec::new();
    for number in 0..options.rounds {
        if !wanted.is_empty() {
            rounds.push(round(number, &wanted, &peers, &extent, folder.path())?);
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

/// The rows of the rounds that are asked for and can be measured.
fn rows(options: &TasksArgs) -> Vec<(Case, By)> {
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let there = named.filter(|case| case.engine.is_there());
    there.flat_map(|case| case.by().iter().map(move |by| (case, *by))).collect()
}

/// The engines of which leases are measured.
fn lease_engines(options: &TasksArgs) -> Vec<Engine> {
    let case = |engine| Case { engine, load: Load::Lease { pending: options.deep } };
    let wanted = |engine: &Engine| case(*engine).to_string().contains(&options.only) && engine.is_there();
    ENGINES.into_iter().filter(wanted).collect()
}

/// The engines on which leasehold has no tasks; of those, only the bare engine is measured.
fn without_tasks(wanted: &[(Case, By)], deep: &[Engine], folder: &Path) -> Result<Vec<Engine>> {
    let mut without = Vec::new();
    for engine in ENGINES {
        if deep.contains(&engine) || wanted.iter().any(|(case, _)| case.engine == engine) {
            let folder = tempfile::tempdir_in(folder)?;
            let place = Place { engine, folder: folder.path().to_owned() };
            let leasehold = runtime()?.block_on(Leasehold::connect(&place.url()?))?;
            if let Err(error) = leasehold.tasks() {
                eprintln!("{engine}: {error}; only the bare engine is measured");
                without.push(engine);
            }
            drop(leasehold);
            place.clean_up()?;
        }
    }
    Ok(without)
}

fn leases(engines: &[Engine], options: &TasksArgs, folder: &Path) -> Vec<Row> {
    let mut all = Vec::new();
    for engine in engines {
        let patience = Duration::from_secs(options.fill_seconds);
        match depth::measure(*engine, options.deep, patience, folder) {
            Ok(rows) => all.extend(rows),
            Err(error) => {
                let case = Case { engine: *engine, load: Load::Lease { pending: options.deep } };
                all.push(Row { case, by: By::Store, figure: Err(format!("{error:#}")) });
            }
        }
    }
    for row in &all {
        eprintln!("  {}", row.line());
    }
    all
}
