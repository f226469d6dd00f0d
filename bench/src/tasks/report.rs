//! Tables of the report: medians, ratios within each round, and targets.

use super::peers::{PeerRow, PeerSample};
use super::plan::{BATCH, Case, Load};
use crate::report::{self, Cell, Report, Table, duration, grouped, median, target};
use crate::rounds::{Rounds, Sample, rate};
use crate::sandbox::{Engine, Layer};

type Row = crate::rounds::Row<Case>;

const DRAIN: Load = Load::Drain { processes: 1 };

/// Returns the report over all rounds of leasehold and of the peers, and over the leases.
pub(super) fn report(
    rounds: &Rounds<Case>,
    peer_rounds: &[Vec<PeerRow>],
    leases: Vec<Sample<Case>>,
) -> Report {
    let (rows, leases) = (Row::all(&rounds.samples), Row::all(&[leases]));
    let names = peer_rounds.iter().take(1).flatten().map(|peer| peer.name);
    let peers: Vec<_> = names.map(|name| PeerSummary::new(rounds, peer_rounds, name)).collect();
    let table = |title, columns: &[&'static str], wanted: fn(Load) -> bool, shown: &[usize]| Table {
        title,
        columns: columns.to_vec(),
        left: 2,
        rows: (rows.iter().filter(|row| wanted(row.load.load)))
            .map(|row| shown.iter().map(|at| row.cells()[*at].clone()).collect())
            .collect(),
    };
    let tables = vec![
        rounds.machine(),
        table(
            "Enqueue",
            &["load", "by", "tasks/s", "p50", "p99", "of raw"],
            |load| matches!(load, Load::Enqueue { .. }),
            &[0, 1, 2, 3, 4, 5],
        ),
        table(
            "Drain: lease, run and settle tasks that do nothing",
            &["load", "by", "tasks/s", "of raw"],
            |load| matches!(load, Load::Drain { .. } | Load::DrainBesideTransaction),
            &[0, 1, 2, 5],
        ),
        table(
            "From enqueue to the start of the handler, 50 tasks/s",
            &["load", "by", "p50", "p99"],
            |load| matches!(load, Load::Start { .. }),
            &[0, 1, 3, 4],
        ),
        Table {
            title: "A lease of 10",
            columns: vec!["load", "p50", "p99", "× the smaller"],
            left: 1,
            rows: leases.iter().map(|row| lease(&leases, row)).collect(),
        },
        Table {
            title: "Peers",
            columns: vec![
                "peer",
                "enqueue/s",
                "100 with each call, tasks/s",
                "drain/s by default",
                "drain/s tuned",
                "start p50",
                "start p99",
                "our drain",
            ],
            left: 1,
            rows: peers.iter().map(|peer| peer.cells.clone()).collect(),
        },
        report::targets(targets(&rows, &peers)),
    ];
    let error = |row: &Row| Some(format!("{}, {}: {}", row.load, row.describe(), row.error.as_ref()?));
    let peer_error = |peer: &PeerSummary| Some(format!("{}: {}", peer.name, peer.error.as_ref()?));
    let remarks = rows.iter().chain(&leases).filter_map(error);
    Report { tables, remarks: remarks.chain(peers.iter().filter_map(peer_error)).collect() }
}

fn lease(all: &[Row], row: &Row) -> Vec<Cell> {
    let [load, _, _, p50, p99, _] = row.cells();
    vec![load, p50, p99, Cell::ratio(against_shallow(all, row))]
}

/// Returns the ratio of a lease with this backlog to one with the smallest backlog of the engine.
fn against_shallow(leases: &[Row], row: &Row) -> Option<f64> {
    let pending = |row: &Row| match row.load.load {
        Load::Lease { pending } => Some(pending),
        _ => None,
    };
    let of_engine = leases.iter().filter(|other| other.load.engine == row.load.engine);
    let (least, p50) =
        of_engine.filter_map(|other| Some((pending(other)?, other.p50?))).min_by_key(|(least, _)| *least)?;
    (pending(row)? > least).then_some(row.p50? / p50)
}

/// Peer over all rounds.
struct PeerSummary {
    name: &'static str,
    /// Medians.
    cells: Vec<Cell>,
    /// Median of the ratios of leasehold's drain with default settings to the peer's best drain of the same
    /// round.
    our_drain: Option<f64>,
    error: Option<String>,
}

impl PeerSummary {
    fn new(rounds: &Rounds<Case>, peer_rounds: &[Vec<PeerRow>], name: &'static str) -> Self {
        let rows: Vec<_> = peer_rounds.iter().flatten().filter(|peer| peer.name == name).collect();
        let of = |value: fn(&PeerSample) -> Option<f64>| {
            median(rows.iter().filter_map(|row| value(row.found.as_ref().ok()?)))
        };
        let load = Case { engine: engine_of(name), load: DRAIN };
        // Each round has one row of the peer.
        let ratios = rounds.samples.iter().zip(&rows).filter_map(|(round, peer)| {
            let found = peer.found.as_ref().ok()?;
            let best = found.drain_default.into_iter().chain(found.drain_tuned).reduce(f64::max)?;
            Some(rate(round, load, Layer::Client)? / best)
        });
        let our_drain = median(ratios);
        let cells = vec![
            Cell::text(name),
            Cell::rate(of(|found| found.enqueue)),
            Cell::rate(of(|found| found.bulk)),
            Cell::rate(of(|found| found.drain_default)),
            Cell::rate(of(|found| found.drain_tuned)),
            Cell::time(of(|found| Some(found.p50_millis? * 1e6))),
            Cell::time(of(|found| Some(found.p99_millis? * 1e6))),
            Cell::number(our_drain, |times| format!("{times:.1} ×")),
        ];
        Self { name, cells, our_drain, error: rows.iter().find_map(|row| row.found.as_ref().err().cloned()) }
    }
}

fn engine_of(name: &str) -> Engine {
    if name == "bullmq" { Engine::Redis } else { Engine::Postgres }
}

fn targets(rows: &[Row], peers: &[PeerSummary]) -> Vec<Vec<Cell>> {
    let find = |engine, load, by: Layer| {
        rows.iter().find(move |row| row.load == Case { engine, load } && row.by == by)
    };
    let of_raw = |load, least| of_raw(find(Engine::Postgres, load, Layer::Client)?, least);
    let mut all = Vec::new();
    all.extend(of_raw(DRAIN, 1.0));
    all.extend(of_best_peer(peers));
    let rate = |load| find(Engine::Postgres, load, Layer::Client)?.per_second;
    all.extend(rate(DRAIN).zip(rate(Load::DrainBesideTransaction)).map(|(usual, beside)| {
        let text = "postgres, drain, beside an open transaction: ≤ 2 × the usual time";
        target(beside * 2.0 >= usual, text, format!("{:.2} ×", usual / beside))
    }));
    for clients in [1, 16] {
        all.extend(of_raw(Load::Enqueue { clients, batch: 1 }, 0.9));
    }
    all.extend(of_raw(Load::Enqueue { clients: 1, batch: BATCH }, 0.9));
    for other_process in [false, true] {
        let row = find(Engine::Postgres, Load::Start { other_process }, Layer::Client);
        all.extend(row.and_then(|row| {
            let p50 = row.p50?;
            Some(target(p50 <= 1e6, format!("{}: p50 ≤ 1 ms", row.load), duration(p50)))
        }));
    }
    all.extend(find(Engine::Full, DRAIN, Layer::Store).and_then(|row| {
        let (found, least) = (row.per_second?, 15_000.0);
        let text = format!("{}, {}: ≥ {}/s", row.load, row.describe(), grouped(least));
        Some(target(found >= least, text, format!("{}/s", grouped(found))))
    }));
    all
}

fn of_raw(row: &Row, least: f64) -> Option<Vec<Cell>> {
    let found = row.of_raw?;
    let text = format!("{}, {}: ≥ {least:.1} × {}", row.load, row.describe(), row.raw());
    Some(target(found >= least, text, format!("{found:.2}")))
}

fn of_best_peer(peers: &[PeerSummary]) -> Option<Vec<Cell>> {
    let on_postgres = peers.iter().filter(|peer| engine_of(peer.name) == Engine::Postgres);
    let measured = on_postgres.filter_map(|peer| Some((peer.name, peer.our_drain?)));
    let (name, found) = measured.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let text = "postgres, drain, 1 worker, client: ≥ 2 × the best peer, tuned";
    Some(target(found >= 2.0, text, format!("{found:.2} × {name}")))
}
