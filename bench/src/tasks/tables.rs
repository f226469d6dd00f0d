//! Report as tables, for a terminal or in Markdown.

use comfy_table::{ContentArrangement, Table, TableStyle, presets};

use super::plan::Load;
use super::report::{Report, ReportRow, against_shallow, nanos};
use crate::measure::{duration, grouped};
use crate::report::{align_right, machine};

/// Formats the report for a terminal.
pub(super) fn plain(report: &Report) -> String {
    write(report, presets::NOTHING, "")
}

/// Formats the report in Markdown.
pub(super) fn markdown(report: &Report) -> String {
    write(report, presets::ASCII_MARKDOWN, "### ")
}

fn write(report: &Report, style: TableStyle, heading: &str) -> String {
    let of = |wanted: fn(Load) -> bool| {
        report.lines.iter().filter(|row| wanted(row.case.load)).collect::<Vec<_>>()
    };
    let parts = [
        ("Machine", machine(report.cores, &report.probes)),
        ("Enqueue", enqueue(&of(|load| matches!(load, Load::Enqueue { .. })))),
        (
            "Drain: lease, run and settle tasks that do nothing",
            drain(&of(|load| matches!(load, Load::Drain { .. }))),
        ),
        (
            "From enqueue to the start of the handler, 50 tasks/s",
            start(&of(|load| matches!(load, Load::Start { .. }))),
        ),
        ("A lease of 10", lease(&report.lines, &of(|load| matches!(load, Load::Lease { .. })))),
        ("Peers", peers(report)),
        ("Targets", targets(report)),
    ];
    let mut texts = Vec::new();
    for (title, mut table) in parts {
        if !table.is_empty() {
            table.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
            texts.push(format!("{heading}{title}\n\n{}", table.trim_fmt()));
        }
    }
    let error = |row: &ReportRow| {
        let error = row.error.as_ref()?;
        Some(format!("{}, {}: {error}", row.case, row.case.describe(row.by)))
    };
    texts.extend(report.lines.iter().filter_map(error));
    texts.extend(
        report.peers.iter().filter_map(|peer| Some(format!("{}: {}", peer.name, peer.error.as_ref()?))),
    );
    texts.push(format!("Raw rows of PostgreSQL: by {}.", report.raw_postgres));
    texts.join("\n\n")
}

fn enqueue(lines: &[&ReportRow]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "tasks/s", "p50", "p99", "of raw"]);
    for row in lines {
        table.add_row([
            load(row),
            by(row),
            rate(row.per_second),
            time(row.p50_nanos),
            time(row.p99_nanos),
            ratio(row.of_raw),
        ]);
    }
    align_right(table, &[2, 3, 4, 5])
}

fn drain(lines: &[&ReportRow]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "tasks/s", "of raw"]);
    for row in lines {
        table.add_row([load(row), by(row), rate(row.per_second), ratio(row.of_raw)]);
    }
    align_right(table, &[2, 3])
}

fn start(lines: &[&ReportRow]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "p50", "p99"]);
    for row in lines {
        table.add_row([load(row), by(row), time(row.p50_nanos), time(row.p99_nanos)]);
    }
    align_right(table, &[2, 3])
}

fn lease(all: &[ReportRow], lines: &[&ReportRow]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "p50", "p99", "× the smaller"]);
    for row in lines {
        table.add_row([
            load(row),
            time(row.p50_nanos),
            time(row.p99_nanos),
            ratio(against_shallow(all, row)),
        ]);
    }
    align_right(table, &[1, 2, 3])
}

fn peers(report: &Report) -> Table {
    let mut table = Table::new();
    table.set_header([
        "peer",
        "enqueue/s",
        "100 with each call, tasks/s",
        "drain/s by default",
        "drain/s tuned",
        "start p50",
        "start p99",
        "our drain",
    ]);
    for peer in &report.peers {
        let found = &peer.figures;
        table.add_row([
            peer.name.to_owned(),
            rate(found.enqueue),
            rate(found.bulk),
            rate(found.drain_default),
            rate(found.drain_tuned),
            time(found.p50_millis.map(nanos)),
            time(found.p99_millis.map(nanos)),
            peer.drain_of_it.map(|times| format!("{times:.1} ×")).unwrap_or_default(),
        ]);
    }
    align_right(table, &[1, 2, 3, 4, 5, 6, 7])
}

fn targets(report: &Report) -> Table {
    let mut table = Table::new();
    table.set_header(["", "target", "result"]);
    for target in &report.targets {
        table.add_row([if target.met { "✓" } else { "✗" }, &target.text, &target.found]);
    }
    table
}

fn load(row: &ReportRow) -> String {
    row.case.to_string()
}

fn by(row: &ReportRow) -> String {
    row.case.describe(row.by).to_owned()
}

fn rate(rate: Option<f64>) -> String {
    rate.map(grouped).unwrap_or_default()
}

fn time(nanos: Option<f64>) -> String {
    nanos.map(duration).unwrap_or_default()
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}
