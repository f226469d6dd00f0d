//! Rows of the report: medians, ratios within each round, and targets.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::peers::PeerSample;
use super::plan::{BATCH, Case, Layer, Load, Sample};
use super::rounds::{Round, Row};
use crate::measure::{duration, float, grouped, median};
use crate::rounds::Probe;
use crate::sandbox::Engine;

/// Report of all rounds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Number of cores of the machine.
    pub(super) cores: usize,
    /// State of the machine before each round.
    pub(super) probes: Vec<Probe>,
    /// Driver of PostgreSQL in the raw rows.
    pub(super) raw_postgres: &'static str,
    pub(super) lines: Vec<ReportRow>,
    pub(super) peers: Vec<PeerReportRow>,
    #[serde(rename = "aims")]
    pub(super) targets: Vec<Target>,
}

/// Row over all rounds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportRow {
    pub(super) case: Case,
    pub(super) by: Layer,
    /// Tasks per second: median of the rounds.
    pub(super) per_second: Option<f64>,
    /// Median time of all rounds together.
    pub(super) p50_nanos: Option<f64>,
    pub(super) p99_nanos: Option<f64>,
    /// Median of the ratios to the raw row of the same round.
    pub(super) of_raw: Option<f64>,
    /// Rate of every round.
    pub(super) rounds: Vec<f64>,
    /// Error of a round without a sample.
    #[serde(rename = "wrong", skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// Row of a peer over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct PeerReportRow {
    pub(super) name: &'static str,
    /// Medians.
    pub(super) figures: PeerSample,
    /// Median of the ratios of leasehold's drain with default settings to the peer's best drain of the same
    /// round.
    pub(super) drain_of_it: Option<f64>,
    #[serde(rename = "wrong", skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl Report {
    pub(super) fn new(rounds: &[Round], leases: &[Row], raw_postgres: &'static str) -> Self {
        let rows = rounds.iter().take(1).flat_map(|round| &round.rows).chain(leases);
        let lines: Vec<_> = rows.map(|row| ReportRow::new(rounds, leases, row.case, row.by)).collect();
        let names = rounds.iter().take(1).flat_map(|round| &round.peers).map(|peer| peer.name);
        let peers: Vec<_> = names.map(|name| PeerReportRow::new(rounds, name)).collect();
        let targets = Target::all(&lines, &peers);
        let probes = rounds.iter().map(|round| round.probe.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self { cores, probes, raw_postgres, lines, peers, targets }
    }
}

impl ReportRow {
    fn new(rounds: &[Round], leases: &[Row], case: Case, by: Layer) -> Self {
        let in_round = |round: &Round| rate(&round.rows, case, by);
        let ratio = |round: &Round| Some(in_round(round)? / rate(&round.rows, case, Layer::Raw)?);
        let rates: Vec<_> = rounds.iter().filter_map(in_round).collect();
        let rows = rounds.iter().flat_map(|round| &round.rows).chain(leases);
        let rows: Vec<_> = rows.filter(|row| row.case == case && row.by == by).collect();
        let all = Sample { rate: None, times: merged_times(&rows) };
        Self {
            case,
            by,
            per_second: median_of(&rates),
            p50_nanos: all.quantile(0.5),
            p99_nanos: all.quantile(0.99),
            of_raw: if by == Layer::Raw {
                None
            } else {
                median_of(&rounds.iter().filter_map(ratio).collect::<Vec<_>>())
            },
            rounds: rates,
            error: rows.iter().find_map(|row| row.sample.as_ref().err().cloned()),
        }
    }

    /// Returns the size of the backlog of a lease row.
    pub(super) fn pending(&self) -> Option<u64> {
        match self.case.load {
            Load::Lease { pending } => Some(pending),
            _ => None,
        }
    }
}

impl PeerReportRow {
    fn new(rounds: &[Round], name: &'static str) -> Self {
        let found = |round: &Round| {
            let row = round.peers.iter().find(|peer| peer.name == name);
            row.and_then(|row| row.found.as_ref().ok().cloned())
        };
        let all: Vec<_> = rounds.iter().filter_map(found).collect();
        let of = |value: fn(&PeerSample) -> Option<f64>| {
            median_of(&all.iter().filter_map(value).collect::<Vec<_>>())
        };
        let ratio = |round: &Round| {
            let ours = round.rows.iter().find(|row| {
                row.by == Layer::Client
                    && row.case == Case { engine: engine_of(name), load: Load::Drain { processes: 1 } }
            })?;
            Some(ours.sample.as_ref().ok()?.rate? / found(round)?.best_drain()?)
        };
        let mut rows = rounds.iter().flat_map(|round| &round.peers).filter(|peer| peer.name == name);
        Self {
            name,
            figures: PeerSample {
                enqueue: of(|found| found.enqueue),
                bulk: of(|found| found.bulk),
                drain_default: of(|found| found.drain_default),
                drain_tuned: of(|found| found.drain_tuned),
                p50_millis: of(|found| found.p50_millis),
                p99_millis: of(|found| found.p99_millis),
            },
            drain_of_it: median_of(&rounds.iter().filter_map(ratio).collect::<Vec<_>>()),
            error: rows.find_map(|peer| peer.found.as_ref().err().cloned()),
        }
    }
}

impl PeerSample {
    fn best_drain(&self) -> Option<f64> {
        self.drain_default.into_iter().chain(self.drain_tuned).reduce(f64::max)
    }
}

/// Returns the engine of a peer.
fn engine_of(name: &str) -> crate::sandbox::Engine {
    if name == "bullmq" { crate::sandbox::Engine::Redis } else { crate::sandbox::Engine::Postgres }
}

fn rate(rows: &[Row], case: Case, by: Layer) -> Option<f64> {
    let row = rows.iter().find(|row| row.case == case && row.by == by)?;
    row.sample.as_ref().ok()?.rate
}

fn merged_times(rows: &[&Row]) -> Option<Histogram<u64>> {
    let times = rows.iter().filter_map(|row| row.sample.as_ref().ok()?.times.clone());
    times.reduce(|mut all, more| {
        // Both have the same precision and resize themselves, so this cannot fail.
        let _ = all.add(more);
        all
    })
}

fn median_of(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

/// Returns the ratio of a lease with this backlog to one with the smallest backlog of the engine.
pub(super) fn against_shallow(lines: &[ReportRow], line: &ReportRow) -> Option<f64> {
    let pending = line.pending()?;
    let of_engine = lines.iter().filter(|other| other.case.engine == line.case.engine);
    let least = of_engine
        .filter_map(|other| Some((other.pending()?, other.p50_nanos?)))
        .min_by_key(|(least, _)| *least)?;
    (pending > least.0).then(|| line.p50_nanos.map(|p50| p50 / least.1)).flatten()
}

/// Converts milliseconds to nanoseconds.
pub(super) fn nanos(millis: f64) -> f64 {
    millis * float(1_000_000)
}

/// Performance target.
#[derive(Debug, Serialize)]
pub(super) struct Target {
    pub(super) text: String,
    /// Result of this run.
    pub(super) found: String,
    pub(super) met: bool,
}

const DRAIN: Load = Load::Drain { processes: 1 };

impl Target {
    /// Returns the targets that have a result.
    pub(super) fn all(rows: &[ReportRow], peers: &[PeerReportRow]) -> Vec<Self> {
        let find =
            |engine, load, by| rows.iter().find(|row| row.case == Case { engine, load } && row.by == by);
        let of_raw = |load, least| of_raw(find(Engine::Postgres, load, Layer::Client)?, least);
        let mut all = Vec::new();
        all.extend(of_raw(DRAIN, 1.0));
        all.extend(of_best_peer(peers));
        for clients in [1, 16] {
            all.extend(of_raw(Load::Enqueue { clients, batch: 1 }, 0.9));
        }
        all.extend(of_raw(Load::Enqueue { clients: 1, batch: BATCH }, 0.9));
        for other_process in [false, true] {
            all.extend(
                find(Engine::Postgres, Load::Start { other_process }, Layer::Client)
                    .and_then(starts_within_1_ms),
            );
        }
        all.extend(find(Engine::Full, DRAIN, Layer::Store).and_then(|row| per_second(row, 15_000.0)));
        all
    }
}

fn of_raw(row: &ReportRow, least: f64) -> Option<Target> {
    let (found, raw) = (row.of_raw?, row.case.describe(Layer::Raw).trim_start_matches("raw: "));
    Some(Target {
        text: format!("{}, {}: ≥ {least:.1} × {raw}", row.case, row.case.describe(row.by)),
        found: format!("{found:.2}"),
        met: found >= least,
    })
}

fn of_best_peer(peers: &[PeerReportRow]) -> Option<Target> {
    let on_postgres = peers.iter().filter(|peer| engine_of(peer.name) == Engine::Postgres);
    let measured = on_postgres.filter_map(|peer| Some((peer.name, peer.drain_of_it?)));
    let (name, found) = measured.min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Target {
        text: "postgres, drain, 1 worker, client: ≥ 2 × the best peer, tuned".to_owned(),
        found: format!("{found:.2} × {name}"),
        met: found >= 2.0,
    })
}

fn starts_within_1_ms(row: &ReportRow) -> Option<Target> {
    let p50 = row.p50_nanos?;
    Some(Target { text: format!("{}: p50 ≤ 1 ms", row.case), found: duration(p50), met: p50 <= 1e6 })
}

fn per_second(row: &ReportRow, least: f64) -> Option<Target> {
    let found = row.per_second?;
    Some(Target {
        text: format!("{}, {}: ≥ {}/s", row.case, row.case.describe(row.by), grouped(least)),
        found: format!("{}/s", grouped(found)),
        met: found >= least,
    })
}
