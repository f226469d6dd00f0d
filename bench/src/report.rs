//! Report over all rounds: medians, ratios within each round, targets and tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle, presets};
use serde::Serialize;

use crate::measure::{duration, grouped, median};
use crate::plan::{Case, Keys, Layer};
use crate::rounds::{Probe, Round, Sample};
use crate::run_command::Commands;
use crate::sandbox::Engine;

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

/// Performance target.
#[derive(Debug, Serialize)]
pub(crate) struct Target {
    pub(crate) text: String,
    /// Result of this run.
    pub(crate) found: String,
    pub(crate) met: bool,
}

/// Row that a target refers to.
struct RowKey {
    engine: Engine,
    keys: Keys,
    clients: u32,
    processes: u32,
    layer: Layer,
}

impl Target {
    /// Returns the targets that have a result.
    pub(crate) fn all(rows: &[ReportRow], commands: Option<&Commands>) -> Vec<Self> {
        let own = |engine, clients, layer| RowKey { engine, keys: Keys::Own, clients, processes: 1, layer };
        let one =
            |engine| RowKey { engine, keys: Keys::One, clients: 16, processes: 1, layer: Layer::Client };
        let mut all = Vec::new();
        for layer in [Layer::Store, Layer::Client] {
            for clients in [1, 16] {
                all.extend(at_least_per_second(rows, &own(Engine::Memory, clients, layer), 1e6));
            }
        }
        for layer in [Layer::Store, Layer::Client] {
            all.extend(at_least_of_raw(rows, &own(Engine::Holders, 1, layer), 0.8));
            all.extend(at_least_of_raw(rows, &own(Engine::Full, 1, layer), 0.8));
            all.extend(at_least_of_raw(rows, &own(Engine::Full, 64, layer), 10.0));
        }
        all.extend(at_least_per_second(rows, &one(Engine::Holders), 1e4));
        for clients in [1, 16, 64] {
            all.extend(at_least_of_raw(rows, &own(Engine::Postgres, clients, Layer::Client), 0.9));
        }
        all.extend(at_least_of_raw(rows, &one(Engine::Postgres), 10.0));
        for (clients, least) in [(1, 0.95), (16, 2.0), (64, 2.0)] {
            all.extend(at_least_of_raw(rows, &own(Engine::Redis, clients, Layer::Client), least));
        }
        all.extend(at_least_of_raw(rows, &one(Engine::Redis), 0.5));
        for row in rows.iter().filter(|row| row.layer == Layer::Client) {
            all.extend(row.in_use.map(|part| Self {
                text: format!("{}: in use ≥ 90 % of the time", row.case),
                found: format!("{:.0} %", part * 100.0),
                met: part >= 0.9,
            }));
            all.extend(row.commands.filter(|_| row.case.hold_millis == 0).map(|count| Self {
                text: format!("{}: ≤ 4 commands for each hand-over", row.case),
                found: format!("{count:.1}"),
                met: count <= 4.0,
            }));
        }
        for row in rows.iter().filter(|row| row.layer == Layer::Client) {
            all.extend(row.overtaken.map(|overtaken| Self {
                text: format!("{}: no second turn before a waiter", row.case),
                found: format!("overtaken {overtaken} times at most"),
                met: overtaken <= 1,
            }));
        }
        all.extend(commands.and_then(at_most_of_flock));
        all
    }
}

fn at_least_per_second(rows: &[ReportRow], key: &RowKey, least: f64) -> Option<Target> {
    let row = find(rows, key)?;
    Some(Target {
        text: format!("{}, {}: ≥ {}/s", row.case, row.case.describe(row.layer), grouped(least)),
        found: format!("{}/s", grouped(row.per_second)),
        met: row.per_second >= least,
    })
}

fn at_least_of_raw(rows: &[ReportRow], key: &RowKey, least: f64) -> Option<Target> {
    let row = find(rows, key)?;
    let raw = row.case.describe(Layer::Raw).trim_start_matches("raw: ");
    Some(Target {
        text: format!("{}, {}: ≥ {least} × {raw}", row.case, row.case.describe(row.layer)),
        found: format!("{:.2}", row.of_raw),
        met: row.of_raw >= least,
    })
}

fn at_most_of_flock(commands: &Commands) -> Option<Target> {
    let started = commands.as_ref().ok()?.last()?;
    Some(Target {
        text: format!("{}: ≤ 1.5 × flock", started.command),
        found: format!("{:.2}", started.of_flock),
        met: started.of_flock <= 1.5,
    })
}

fn find<'a>(rows: &'a [ReportRow], key: &RowKey) -> Option<&'a ReportRow> {
    rows.iter().find(|row| {
        let case = &row.case;
        (case.engine, case.keys, case.clients) == (key.engine, key.keys, key.clients)
            && (case.processes, row.layer, case.hold_millis) == (key.processes, key.layer, 0)
    })
}

/// Formats the report for a terminal.
pub(crate) fn plain(report: &Report) -> String {
    write(report, presets::NOTHING, "")
}

/// Formats the report in Markdown.
pub(crate) fn markdown(report: &Report) -> String {
    write(report, presets::ASCII_MARKDOWN, "### ")
}

fn write(report: &Report, style: TableStyle, heading: &str) -> String {
    let parts = [
        ("Machine", Some(machine(report.cores, &report.probes))),
        ("Uncontended: each client its own lock", rows(report, Keys::Own)),
        ("Contended: all clients want the same lock", rows(report, Keys::One)),
        ("A command under a lock", commands(report)),
        ("Targets", targets(report)),
    ];
    let mut texts = Vec::new();
    for (title, table) in parts {
        if let Some(mut table) = table {
            table.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
            texts.push(format!("{heading}{title}\n\n{}", table.trim_fmt()));
        }
    }
    if let Some(Err(error)) = &report.commands {
        texts.push(format!("`leasehold run` was not measured: {error}"));
    }
    texts.join("\n\n")
}

/// Returns the table of the machine before each round.
pub(crate) fn machine(cores: usize, probes: &[Probe]) -> Table {
    let mut table = Table::new();
    table.set_header(["round", "cores", "load before", "4 KiB write + fdatasync"]);
    for (number, probe) in (1..).zip(probes) {
        let fsync = duration(probe.fsync_micros * 1e3);
        table.add_row([number.to_string(), cores.to_string(), format!("{:.1}", probe.load), fsync]);
    }
    align_right(table, &[0, 1, 2, 3])
}

fn rows(report: &Report, keys: Keys) -> Option<Table> {
    let wanted: Vec<_> = report.lines.iter().filter(|row| row.case.keys == keys).collect();
    if wanted.is_empty() {
        return None;
    }
    let mut header = vec!["load", "by", "per second", "p50", "p99", "of raw", "per client"];
    if keys == Keys::One {
        header.extend(["overtaken", "in use", "commands"]);
    }
    let mut table = Table::new();
    table.set_header(header);
    for row in wanted {
        table.add_row(cells(row));
    }
    Some(align_right(table, &[2, 3, 4, 5, 6, 7, 8, 9]))
}

fn cells(row: &ReportRow) -> Vec<String> {
    let mut cells = vec![
        row.case.to_string(),
        row.case.describe(row.layer).to_owned(),
        grouped(row.per_second),
        duration(row.p50_nanos),
        duration(row.p99_nanos),
        if row.layer == Layer::Raw { String::new() } else { format!("{:.2}", row.of_raw) },
    ];
    let (least, most) = row.shares;
    cells.push(if row.case.clients == 1 { String::new() } else { format!("{least} to {most}") });
    if row.case.keys == Keys::One {
        cells.push(row.overtaken.map(|overtaken| overtaken.to_string()).unwrap_or_default());
        cells.push(row.in_use.map(|part| format!("{:.0} %", part * 100.0)).unwrap_or_default());
        cells.push(row.commands.map(|count| format!("{count:.1}")).unwrap_or_default());
    }
    cells
}

fn commands(report: &Report) -> Option<Table> {
    let started = report.commands.as_ref()?.as_ref().ok()?;
    let mut table = Table::new();
    table.set_header(["command", "ms", "of flock"]);
    for command in started {
        let row = [
            command.command.to_owned(),
            format!("{:.2}", command.median_millis),
            format!("{:.2}", command.of_flock),
        ];
        table.add_row(row);
    }
    Some(align_right(table, &[1, 2]))
}

fn targets(report: &Report) -> Option<Table> {
    let mut table = Table::new();
    table.set_header(["", "target", "result"]);
    for target in &report.targets {
        table.add_row([if target.met { "✓" } else { "✗" }, &target.text, &target.found]);
    }
    (!report.targets.is_empty()).then_some(table)
}

pub(crate) fn align_right(mut table: Table, columns: &[usize]) -> Table {
    for at in columns {
        if let Some(column) = table.column_mut(*at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
