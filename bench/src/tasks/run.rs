//! `bench tasks`: measures the loads and prints the report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use leasehold::Leasehold;

use super::peers::Peer;
use super::plan::{BATCH, Case, ENGINES, Load, RunSize, cases};
use super::raw::{postgres, redis, sqlite};
use super::{depth, drain, report};
use crate::chart;
use crate::cli::TasksArgs;
use crate::pgbench::Pgbench;
use crate::rounds::{Figures, Rounds, Sample};
use crate::sandbox::{Engine, Layer, Sandbox, create_folder, runtime};

pub(crate) fn run(options: &TasksArgs) -> Result<()> {
    ensure!((0.05..=60.0).contains(&options.seconds), "--seconds must be 0.05 to 60");
    let folder = create_folder(options.dir.as_deref())?;
    let (mut wanted, mut deep) = (rows(options), lease_engines(options));
    let without = without_tasks(&wanted, &deep, folder.path())?;
    wanted
        .retain(|(case, by)| matches!(by, Layer::Raw | Layer::RawSingle) || !without.contains(&case.engine));
    deep.retain(|engine| !without.contains(engine));
    ensure!(!wanted.is_empty() || !deep.is_empty(), "no load has a name that contains '{}'", options.only);

    let pgbench = Pgbench::find();
    let driver = match &pgbench {
        Some(_) => "pgbench",
        None => "the driver of the benchmark, because pgbench is not installed",
    };
    let (seconds, tasks, start_seconds) = (options.seconds, options.tasks, options.start_seconds);
    let size = RunSize { seconds, tasks, start_seconds, pgbench };
    let peers = match (&options.peers_dir, options.peers) {
        (_, false) => Vec::new(),
        (Some(folder), true) => Peer::install_all(folder)?,
        (None, true) => Peer::install_all(folder.path())?,
    };
    let (mut rounds, mut peer_rounds) = (Rounds::new(), Vec::new());
    let count = if wanted.is_empty() { 0 } else { options.rounds };
    for _ in 0..count {
        rounds.add(&wanted, folder.path(), |case, by| {
            Ok(measure(case, by, &size, folder.path()).map_err(|error| format!("{error:#}")))
        })?;
        peer_rounds.push(peers.iter().map(|peer| peer.measure(&size)).collect::<Vec<_>>());
    }
    let leases = leases(&deep, options, folder.path());
    let mut report = report::report(&rounds, &peer_rounds, leases);
    report.remarks.push(format!("Raw rows of PostgreSQL: by {driver}."));
    chart::publish(&report, "tasks", &options.format)
}

/// Returns the rows that are selected and can be measured.
fn rows(options: &TasksArgs) -> Vec<(Case, Layer)> {
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let there = named.filter(|case| case.engine.is_available());
    there.flat_map(|case| case.by().iter().map(move |by| (case, *by))).collect()
}

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

fn leases(engines: &[Engine], options: &TasksArgs, folder: &Path) -> Vec<Sample<Case>> {
    let mut all = Vec::new();
    for engine in engines {
        let fill_timeout = Duration::from_secs(options.fill_seconds);
        match depth::measure(*engine, options.deep, fill_timeout, folder) {
            Ok(rows) => all.extend(rows),
            Err(error) => {
                let load = Case { engine: *engine, load: Load::Lease { pending: options.deep } };
                all.push(Sample { load, by: Layer::Store, result: Err(format!("{error:#}")) });
            }
        }
    }
    all.iter().for_each(Sample::log);
    all
}

/// Measures one row in a new folder, which is removed afterwards.
fn measure(case: &Case, by: Layer, size: &RunSize, folder: &Path) -> Result<Figures> {
    let folder = tempfile::tempdir_in(folder)?;
    let sandbox = Sandbox { engine: case.engine, folder: folder.path().to_owned() };
    let figures = match by {
        Layer::Raw => raw(&sandbox, case.load, size, BATCH),
        Layer::RawSingle => raw(&sandbox, case.load, &size.tenth(), 1),
        Layer::Own | Layer::Peer | Layer::Store | Layer::Client => leasehold(&sandbox, case.load, by, size),
    };
    sandbox.clean_up()?;
    figures
}

fn leasehold(sandbox: &Sandbox, load: Load, by: Layer, size: &RunSize) -> Result<Figures> {
    match load {
        Load::Enqueue { clients, batch } => drain::measure(sandbox, clients, batch, || size.window()),
        Load::Drain { .. } if by == Layer::Store => drain::by_store(sandbox, size.tasks, BATCH),
        Load::Drain { processes: 1 } => drain::by_worker(sandbox, size.tasks),
        Load::Drain { processes } => drain::by_processes(sandbox, size.tasks, processes),
        Load::DrainBesideTransaction => {
            postgres::beside_transaction(sandbox, || drain::by_worker(sandbox, size.tasks))
        }
        Load::Start { other_process: false } => drain::in_this_process(sandbox, size.start_seconds),
        Load::Start { other_process: true } => drain::in_other_process(sandbox, size.start_seconds),
        Load::Lease { .. } => bail!("leases are measured separately"),
    }
}

fn raw(sandbox: &Sandbox, load: Load, size: &RunSize, batch: u32) -> Result<Figures> {
    match (sandbox.engine, load, &size.pgbench) {
        (Engine::Postgres, Load::Enqueue { clients, batch }, Some(pgbench)) => {
            pgbench.enqueue(sandbox, clients, batch, size.seconds)
        }
        (Engine::Postgres, Load::Enqueue { clients, batch }, None) => {
            postgres::enqueue(sandbox, clients, batch, || size.window())
        }
        (Engine::Redis, Load::Enqueue { clients, batch }, _) => {
            redis::enqueue(sandbox, clients, batch, || size.window())
        }
        (_, Load::Enqueue { batch, .. }, _) => sqlite::enqueue(sandbox, batch, size.window()),
        (Engine::Postgres, Load::Start { .. }, _) => postgres::start(sandbox, size.start_seconds),
        (Engine::Postgres, _, Some(pgbench)) => pgbench.drain(sandbox, size.tasks, batch),
        (Engine::Postgres, _, None) => postgres::drain(sandbox, size.tasks, batch),
        (Engine::Redis, ..) => redis::drain(sandbox, size.tasks, batch),
        _ => sqlite::drain(sandbox, size.tasks, batch),
    }
}
