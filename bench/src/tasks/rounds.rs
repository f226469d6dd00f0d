//! Measures every row once per round, so that changes of the machine affect all rows alike.

use std::path::Path;

use anyhow::{Result, bail};

use super::drain;
use super::peers::{Peer, PeerRow};
use super::plan::{BATCH, Case, Layer, Load, RunSize, Sample};
use super::raw::{postgres, redis, sqlite};
use crate::measure::{duration, grouped};
use crate::rounds::Probe;
use crate::sandbox::{Engine, Sandbox};

/// Result of one row in one round.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) by: Layer,
    /// Sample, or the error.
    pub(super) sample: Result<Sample, String>,
}

/// Round: the state of the machine, and every row.
pub(super) struct Round {
    pub(super) probe: Probe,
    pub(super) rows: Vec<Row>,
    pub(super) peers: Vec<PeerRow>,
}

/// Measures a row right after its raw row; every other round runs in reverse order.
pub(super) fn round(
    number: u32,
    rows: &[(Case, Layer)],
    peers: &[Peer],
    size: &RunSize,
    folder: &Path,
) -> Result<Round> {
    let probe = Probe::take(folder)?;
    eprintln!("round {}: fsync {:.0} µs, load {:.1}", number + 1, probe.fsync_micros, probe.load);
    let mut order = rows.to_vec();
    if number % 2 == 1 {
        order.reverse();
    }
    let mut rows = Vec::new();
    for (case, by) in order {
        let sample = measure(&case, by, size, folder).map_err(|error| format!("{error:#}"));
        rows.push(Row { case, by, sample });
        eprintln!("  {}", rows[rows.len() - 1].line());
    }
    let peers = peers.iter().map(|peer| peer.measure(size)).collect();
    Ok(Round { probe, rows, peers })
}

impl Row {
    /// Formats the row for progress output.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{}, {}:", self.case, self.case.describe(self.by));
        match &self.sample {
            Err(error) => line = format!("{line} {error}"),
            Ok(sample) => {
                line.extend(sample.rate.map(|rate| format!(" {}/s", grouped(rate))));
                line.extend(sample.quantile(0.5).map(|p50| format!(" p50 {}", duration(p50))));
                line.extend(sample.quantile(0.99).map(|p99| format!(" p99 {}", duration(p99))));
            }
        }
        line
    }
}

/// Measures one row in a new folder, which is removed afterwards.
fn measure(case: &Case, by: Layer, size: &RunSize, folder: &Path) -> Result<Sample> {
    let folder = tempfile::tempdir_in(folder)?;
    let sandbox = Sandbox { engine: case.engine, folder: folder.path().to_owned() };
    let sample = match by {
        Layer::Raw => raw(&sandbox, case.load, size, BATCH),
        Layer::RawSingle => raw(&sandbox, case.load, &size.tenth(), 1),
        Layer::Store | Layer::Client => leasehold(&sandbox, case.load, by, size),
    };
    sandbox.clean_up()?;
    sample
}

fn leasehold(sandbox: &Sandbox, load: Load, by: Layer, size: &RunSize) -> Result<Sample> {
    match load {
        Load::Enqueue { clients, batch } => drain::measure(sandbox, clients, batch, || size.window()),
        Load::Drain { .. } if by == Layer::Store => drain::by_store(sandbox, size.tasks, BATCH),
        Load::Drain { processes: 1 } => drain::by_worker(sandbox, size.tasks),
        Load::Drain { processes } => drain::by_processes(sandbox, size.tasks, processes),
        Load::Start { other_process: false } => drain::in_this_process(sandbox, size.start_seconds),
        Load::Start { other_process: true } => drain::in_other_process(sandbox, size.start_seconds),
        Load::Lease { .. } => bail!("leases are measured separately"),
    }
}

fn raw(sandbox: &Sandbox, load: Load, size: &RunSize, batch: u32) -> Result<Sample> {
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
