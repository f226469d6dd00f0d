//! From rounds to lines: medians, and ratios that were taken within each round.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::aims::Aim;
use super::figure::Figure;
use super::peers::PeerFigures;
use super::plan::{By, Case, Load};
use super::rounds::{Round, Row};
use crate::probe::Probe;
use crate::stats::{float, median};

/// Everything that was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// How many cores the machine has.
    pub(super) cores: usize,
    /// How it was before each round.
    pub(super) probes: Vec<Probe>,
    /// By what PostgreSQL is driven in the raw rows.
    pub(super) raw_postgres: &'static str,
    pub(super) lines: Vec<Line>,
    pub(super) peers: Vec<PeerLine>,
    pub(super) aims: Vec<Aim>,
}

/// One row over all rounds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) case: Case,
    pub(super) by: By,
    /// Tasks per second: the median of the rounds.
    pub(super) per_second: Option<f64>,
    /// Of all rounds together.
    pub(super) p50_nanos: Option<f64>,
    pub(super) p99_nanos: Option<f64>,
    /// The median of the ratios to the raw row of the same round.
    pub(super) of_raw: Option<f64>,
    /// Every round's rate.
    pub(super) rounds: Vec<f64>,
    /// Why there are no figures, or fewer than there are rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<String>,
}

/// A peer over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct PeerLine {
    pub(super) name: &'static str,
    /// The medians.
    pub(super) figures: PeerFigures,
    /// The median of the ratios of our worker's drain, as it is by default, to its best one in the same round.
    pub(super) drain_of_it: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<String>,
}

impl Report {
    pub(super) fn new(rounds: &[Round], leases: &[Row], raw_postgres: &'static str) -> Self {
        let rows = rounds.iter().take(1).flat_map(|round| &round.rows).chain(leases);
        let lines: Vec<_> = rows.map(|row| Line::new(rounds, leases, row.case, row.by)).collect();
        let names = rounds.iter().take(1).flat_map(|round| &round.peers).map(|peer| peer.name);
        let peers: Vec<_> = names.map(|name| PeerLine::new(rounds, name)).collect();
        let aims = Aim::all(&lines, &peers);
        let probes = rounds.iter().map(|round| round.probe.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self { cores, probes, raw_postgres, lines, peers, aims }
    }
}

impl Line {
    fn new(rounds: &[Round], leases: &[Row], case: Case, by: By) -> Self {
        let in_round = |round: &Round| rate(&round.rows, case, by);
        let ratio = |round: &Round| Some(in_round(round)? / rate(&round.rows, case, By::Raw)?);
        let rates: Vec<_> = rounds.iter().filter_map(in_round).collect();
        let rows = rounds.iter().flat_map(|round| &round.rows).chain(leases);
        let rows: Vec<_> = rows.filter(|row| row.case == case && row.by == by).collect();
        let all = Figure { rate: None, times: together(&rows) };
        Self {
            case,
            by,
            per_second: some(&rates),
            p50_nanos: all.quantile(0.5),
            p99_nanos: all.quantile(0.99),
            of_raw: if by == By::Raw {
                None
            } else {
                some(&rounds.iter().filter_map(ratio).collect::<Vec<_>>())
            },
            rounds: rates,
            wrong: rows.iter().find_map(|row| row.figure.as_ref().err().cloned()),
        }
    }

    /// Tasks that were leased from a backlog of so many.
    pub(super) fn pending(&self) -> Option<u64> {
        match self.case.load {
            Load::Lease { pending } => Some(pending),
            _ => None,
        }
    }
}

impl PeerLine {
    fn new(rounds: &[Round], name: &'static str) -> Self {
        let found = |round: &Round| {
            let row = round.peers.iter().find(|peer| peer.name == name);
            row.and_then(|row| row.found.as_ref().ok().cloned())
        };
        let all: Vec<_> = rounds.iter().filter_map(found).collect();
        let of =
            |value: fn(&PeerFigures) -> Option<f64>| some(&all.iter().filter_map(value).collect::<Vec<_>>());
        let ratio = |round: &Round| {
            let ours = round.rows.iter().find(|row| {
                row.by == By::Client
                    && row.case == Case { engine: engine_of(name), load: Load::Drain { processes: 1 } }
            })?;
            Some(ours.figure.as_ref().ok()?.rate? / found(round)?.best_drain()?)
        };
        let mut wrong = rounds.iter().flat_map(|round| &round.peers).filter(|peer| peer.name == name);
        Self {
            name,
            figures: PeerFigures {
                enqueue: of(|found| found.enqueue),
                bulk: of(|found| found.bulk),
                drain_default: of(|found| found.drain_default),
                drain_tuned: of(|found| found.drain_tuned),
                p50_millis: of(|found| found.p50_millis),
                p99_millis: of(|found| found.p99_millis),
            },
            drain_of_it: some(&rounds.iter().filter_map(ratio).collect::<Vec<_>>()),
            wrong: wrong.find_map(|peer| peer.found.as_ref().err().cloned()),
        }
    }
}

impl PeerFigures {
    fn best_drain(&self) -> Option<f64> {
        self.drain_default.into_iter().chain(self.drain_tuned).reduce(f64::max)
    }
}

/// On which engine a peer stands.
pub(super) fn engine_of(name: &str) -> crate::plan::Engine {
    if name == "bullmq" { crate::plan::Engine::Redis } else { crate::plan::Engine::Postgres }
}

fn rate(rows: &[Row], case: Case, by: By) -> Option<f64> {
    let row = rows.iter().find(|row| row.case == case && row.by == by)?;
    row.figure.as_ref().ok()?.rate
}

fn together(rows: &[&Row]) -> Option<Histogram<u64>> {
    let times = rows.iter().filter_map(|row| row.figure.as_ref().ok()?.times.clone());
    times.reduce(|mut all, more| {
        // Both have the same precision, and grow as they must.
        let _ = all.add(more);
        all
    })
}

fn some(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

/// By how much longer a lease takes with this backlog than with the small one of the same engine.
pub(super) fn against_shallow(lines: &[Line], line: &Line) -> Option<f64> {
    let pending = line.pending()?;
    let of_engine = lines.iter().filter(|other| other.case.engine == line.case.engine);
    let least = of_engine
        .filter_map(|other| Some((other.pending()?, other.p50_nanos?)))
        .min_by_key(|(least, _)| *least)?;
    (pending > least.0).then(|| line.p50_nanos.map(|p50| p50 / least.1)).flatten()
}

/// As a part of a second.
pub(super) fn nanos(millis: f64) -> f64 {
    millis * float(1_000_000)
}
