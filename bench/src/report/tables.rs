//! The report for people: as tables in a terminal, or in Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle, presets};

use super::{Line, Report};
use crate::plan::{Floor, Keys};
use crate::stats::{duration, grouped};

/// For a terminal.
pub(crate) fn plain(report: &Report) -> String {
    write(report, presets::NOTHING, "")
}

/// For a page.
pub(crate) fn markdown(report: &Report) -> String {
    write(report, presets::ASCII_MARKDOWN, "### ")
}

fn write(report: &Report, style: TableStyle, heading: &str) -> String {
    let parts = [
        ("Machine", Some(machine(report))),
        ("Uncontended: each client its own lock", lines(report, Keys::Own)),
        ("Contended: all clients want the same lock", lines(report, Keys::One)),
        ("A command under a lock", commands(report)),
        ("Aims", aims(report)),
    ];
    let mut texts = Vec::new();
    for (title, table) in parts {
        if let Some(mut table) = table {
            table.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
            texts.push(format!("{heading}{title}\n\n{}", table.trim_fmt()));
        }
    }
    if let Some(Err(why)) = &report.commands {
        texts.push(format!("`leasehold run` was not measured: {why}"));
    }
    texts.join("\n\n")
}

fn machine(report: &Report) -> Table {
    let mut table = Table::new();
    table.set_header(["round", "cores", "load before", "4 KiB write + fdatasync"]);
    for (number, probe) in (1..).zip(&report.probes) {
        let fsync = duration(probe.fsync_micros * 1e3);
        table.add_row([number.to_string(), report.cores.to_string(), format!("{:.1}", probe.load), fsync]);
    }
    to_the_right(table, &[0, 1, 2, 3])
}

fn lines(report: &Report, keys: Keys) -> Option<Table> {
    let wanted: Vec<_> = report.lines.iter().filter(|line| line.case.keys == keys).collect();
    if wanted.is_empty() {
        return None;
    }
    let mut header = vec!["load", "by", "per second", "p50", "p99", "of raw", "per client"];
    if keys == Keys::One {
        header.extend(["overtaken", "in use", "commands"]);
    }
    let mut table = Table::new();
    table.set_header(header);
    for line in wanted {
        table.add_row(cells(line));
    }
    Some(to_the_right(table, &[2, 3, 4, 5, 6, 7, 8, 9]))
}

fn cells(line: &Line) -> Vec<String> {
    let mut cells = vec![
        line.case.to_string(),
        line.case.describe(line.floor).to_owned(),
        grouped(line.per_second),
        duration(line.p50_nanos),
        duration(line.p99_nanos),
        if line.floor == Floor::Raw { String::new() } else { format!("{:.2}", line.of_raw) },
    ];
    let (least, most) = line.shares;
    cells.push(if line.case.clients == 1 { String::new() } else { format!("{least} to {most}") });
    if line.case.keys == Keys::One {
        cells.push(line.overtaken.map(|overtaken| overtaken.to_string()).unwrap_or_default());
        cells.push(line.in_use.map(|part| format!("{:.0} %", part * 100.0)).unwrap_or_default());
        cells.push(line.commands.map(|count| format!("{count:.1}")).unwrap_or_default());
    }
    cells
}

fn commands(report: &Report) -> Option<Table> {
    let started = report.commands.as_ref()?.as_ref().ok()?;
    let mut table = Table::new();
    table.set_header(["command", "ms", "of flock"]);
    for one in started {
        let row =
            [one.command.to_owned(), format!("{:.2}", one.median_millis), format!("{:.2}", one.of_flock)];
        table.add_row(row);
    }
    Some(to_the_right(table, &[1, 2]))
}

fn aims(report: &Report) -> Option<Table> {
    let mut table = Table::new();
    table.set_header(["", "aim", "found"]);
    for aim in &report.aims {
        table.add_row([if aim.met { "✓" } else { "✗" }, &aim.text, &aim.found]);
    }
    (!report.aims.is_empty()).then_some(table)
}

pub(crate) fn to_the_right(mut table: Table, columns: &[usize]) -> Table {
    for at in columns {
        if let Some(column) = table.column_mut(*at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
