//! Rows of the report: medians, and ratios within each round.

use serde::Serialize;

use super::Target;
use crate::plan::{Case, Layer};
use crate::probe::Probe;
use crate::rounds::{Round, Sample};
use crate::run_command::Commands;
use crate::stats::median;

/// Report of all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Number of cores of the machine.
    pub(crate) cores: usize,
    /// State of the machine before each round.
    pub(crate) probes: Vec<Probe>,
    pub(crate) lines: Vec<ReportRow>,
    /// `None` if the commands were not selected.
    pub(crate) commands: Option<Commands>,
    #[serde(rename = "aims")]
    pub(crate) targets: Vec<Target>,
}

/// Row over all rounds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReportRow {
    pub(crate) case: Case,
    #[serde(rename = "floor")]
    pub(crate) layer: Layer,
    /// Cycles or hand-overs per second: median of the rounds.
    pub(crate) per_second: f64,
    pub(crate) p50_nanos: f64,
    pub(crate) p99_nanos: f64,
    /// Median of the ratios to the raw row of the same round.
    pub(crate) of_raw: f64,
    /// Rate of every round.
    pub(crate) rounds: Vec<f64>,
    /// Minimum and maximum number of cycles or turns of a client, in the round with the largest spread.
    pub(crate) shares: (u64, u64),
    /// Maximum number of turns that one client requested and got while another client was waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overtaken: Option<u64>,
    /// Fraction of the time for which the lock was held: median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_use: Option<f64>,
    /// Number of commands that clients sent to the server for each turn: median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commands: Option<f64>,
}

impl Report {
    pub(crate) fn new(rounds: &[Round], commands: Option<Commands>) -> Self {
        let mut rows: Vec<_> =
            rounds.iter().take(1).flat_map(|round| &round.samples).map(|row| (row.case, row.layer)).collect();
        rows.dedup();
        let lines: Vec<_> =
            rows.into_iter().map(|(case, layer)| ReportRow::new(rounds, case, layer)).collect();
        let targets = Target::all(&lines, commands.as_ref());
        let probes = rounds.iter().map(|round| round.probe.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Self { cores, probes, lines, commands, targets }
    }
}

impl ReportRow {
    fn new(rounds: &[Round], case: Case, layer: Layer) -> Self {
        let of_layer = |layer: Layer| -> Vec<&Sample> {
            let samples = rounds.iter().flat_map(|round| &round.samples);
            samples.filter(|sample| sample.case == case && sample.layer == layer).collect()
        };
        let (samples, raw) = (of_layer(layer), of_layer(Layer::Raw));
        let of = |value: fn(&Sample) -> f64| -> Vec<f64> { samples.iter().map(|f| value(f)).collect() };
        let ratios: Vec<_> = samples.iter().zip(&raw).map(|(sample, raw)| sample.rate / raw.rate).collect();
        let spread = |(least, most): (u64, u64)| (most + 1) * 1000 / (least + 1);
        let shares = samples.iter().map(|sample| sample.shares).max_by_key(|shares| spread(*shares));
        Self {
            case,
            layer,
            per_second: median(&of(|sample| sample.rate)),
            p50_nanos: median(&of(|sample| sample.p50)),
            p99_nanos: median(&of(|sample| sample.p99)),
            of_raw: median(&ratios),
            rounds: of(|sample| sample.rate),
            shares: shares.unwrap_or((0, 0)),
            overtaken: samples.iter().filter_map(|sample| sample.overtaken).max(),
            in_use: median_of(samples.iter().filter_map(|sample| sample.in_use).collect()),
            commands: median_of(samples.iter().filter_map(|sample| sample.commands).collect()),
        }
    }
}

/// Returns the median; `None` without values.
#[expect(clippy::needless_pass_by_value, reason = "all callers collect the values for this call")]
fn median_of(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| median(&values))
}
