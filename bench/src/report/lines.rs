//! From rounds to lines: medians, and ratios that were taken within each round.

use serde::Serialize;

use super::Aim;
use crate::command::Commands;
use crate::plan::{Case, Floor};
use crate::probe::Probe;
use crate::rounds::{Figure, Round};
use crate::stats::median;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// How many cores the machine has.
    pub(crate) cores: usize,
    /// How it was before each round.
    pub(crate) probes: Vec<Probe>,
    pub(crate) lines: Vec<Line>,
    /// None if nobody asked for it.
    pub(crate) commands: Option<Commands>,
    pub(crate) aims: Vec<Aim>,
}

/// One row over all rounds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    pub(crate) case: Case,
    pub(crate) floor: Floor,
    /// Cycles or hand-overs per second: the median of the rounds.
    pub(crate) per_second: f64,
    pub(crate) p50_nanos: f64,
    pub(crate) p99_nanos: f64,
    /// The median of the ratios to the raw row of the same round.
    pub(crate) of_raw: f64,
    /// Every round's rate.
    pub(crate) rounds: Vec<f64>,
    /// The fewest and the most cycles or turns that a client had, in the round in which they were furthest apart.
    pub(crate) shares: (u64, u64),
    /// The most turns that one client asked for and got while another was already waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overtaken: Option<u64>,
    /// What part of the time somebody had the lock: the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_use: Option<f64>,
    /// Commands that clients sent to the server for each turn: the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commands: Option<f64>,
}

impl Report {
    pub(crate) fn new(rounds: &[Round], commands: Option<Commands>) -> Self {
        let mut rows: Vec<_> =
            rounds.iter().take(1).flat_map(|round| &round.figures).map(|row| (row.case, row.floor)).collect();
        rows.dedup();
        let lines: Vec<_> = rows.into_iter().map(|(case, floor)| Line::new(rounds, case, floor)).collect();
        let aims = Aim::all(&lines, commands.as_ref());
        let probes = rounds.iter().map(|round| round.probe.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self { cores, probes, lines, commands, aims }
    }
}

impl Line {
    fn new(rounds: &[Round], case: Case, floor: Floor) -> Self {
        let of_floor = |floor: Floor| -> Vec<&Figure> {
            let figures = rounds.iter().flat_map(|round| &round.figures);
            figures.filter(|figure| figure.case == case && figure.floor == floor).collect()
        };
        let (figures, raw) = (of_floor(floor), of_floor(Floor::Raw));
        let of = |value: fn(&Figure) -> f64| -> Vec<f64> { figures.iter().map(|f| value(f)).collect() };
        let ratios: Vec<_> = figures.iter().zip(&raw).map(|(figure, raw)| figure.rate / raw.rate).collect();
        let spread = |(least, most): (u64, u64)| (most + 1) * 1000 / (least + 1);
        let shares = figures.iter().map(|figure| figure.shares).max_by_key(|shares| spread(*shares));
        Self {
            case,
            floor,
            per_second: median(&of(|figure| figure.rate)),
            p50_nanos: median(&of(|figure| figure.p50)),
            p99_nanos: median(&of(|figure| figure.p99)),
            of_raw: median(&ratios),
            rounds: of(|figure| figure.rate),
            shares: shares.unwrap_or((0, 0)),
            overtaken: figures.iter().filter_map(|figure| figure.overtaken).max(),
            in_use: some(figures.iter().filter_map(|figure| figure.in_use).collect()),
            commands: some(figures.iter().filter_map(|figure| figure.commands).collect()),
        }
    }
}

/// The median, if there is anything.
#[expect(clippy::needless_pass_by_value, reason = "made for this")]
fn some(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| median(&values))
}
