//! Report as tables, for a terminal or in Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle, presets};

use super::{Report, ReportRow};
use crate::plan::{Keys, Layer};
use crate::probe::Probe;
use crate::stats::{duration, grouped};

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
