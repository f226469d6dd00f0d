//! The report for people: as tables in a terminal, or in Markdown.

use comfy_table::{ContentArrangement, Table, TableStyle, presets};

use super::plan::Load;
use super::report::{Line, Report, against_shallow, nanos};
use crate::report::tables::to_the_right;
use crate::stats::{duration, grouped};

/// For a terminal.
pub(super) fn plain(report: &Report) -> String {
    write(report, presets::NOTHING, "")
}

/// For a page.
pub(super) fn markdown(report: &Report) -> String {
    write(report, presets::ASCII_MARKDOWN, "### ")
}

fn write(report: &Report, style: TableStyle, heading: &str) -> String {
    let of = |wanted: fn(Load) -> bool| {
        report.lines.iter().filter(|line| wanted(line.case.load)).collect::<Vec<_>>()
    };
    let parts = [
        ("Machine", machine(report)),
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
        ("Aims", aims(report)),
    ];
    let mut texts = Vec::new();
    for (title, mut table) in parts {
        if !table.is_empty() {
            table.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
            texts.push(format!("{heading}{title}\n\n{}", table.trim_fmt()));
        }
    }
    let wrong = |line: &Line| {
        let why = line.wrong.as_ref()?;
        Some(format!("{}, {}: {why}", line.case, line.case.describe(line.by)))
    };
    texts.extend(report.lines.iter().filter_map(wrong));
    texts.extend(
        report.peers.iter().filter_map(|peer| Some(format!("{}: {}", peer.name, peer.wrong.as_ref()?))),
    );
    texts.push(format!("Raw rows of PostgreSQL: by {}.", report.raw_postgres));
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

fn enqueue(lines: &[&Line]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "tasks/s", "p50", "p99", "of raw"]);
    for line in lines {
        table.add_row([
            load(line),
            by(line),
            rate(line.per_second),
            time(line.p50_nanos),
            time(line.p99_nanos),
            ratio(line.of_raw),
        ]);
    }
    to_the_right(table, &[2, 3, 4, 5])
}

fn drain(lines: &[&Line]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "tasks/s", "of raw"]);
    for line in lines {
        table.add_row([load(line), by(line), rate(line.per_second), ratio(line.of_raw)]);
    }
    to_the_right(table, &[2, 3])
}

fn start(lines: &[&Line]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "by", "p50", "p99"]);
    for line in lines {
        table.add_row([load(line), by(line), time(line.p50_nanos), time(line.p99_nanos)]);
    }
    to_the_right(table, &[2, 3])
}

fn lease(all: &[Line], lines: &[&Line]) -> Table {
    let mut table = Table::new();
    table.set_header(["load", "p50", "p99", "× the smaller"]);
    for line in lines {
        table.add_row([
            load(line),
            time(line.p50_nanos),
            time(line.p99_nanos),
            ratio(against_shallow(all, line)),
        ]);
    }
    to_the_right(table, &[1, 2, 3])
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
    to_the_right(table, &[1, 2, 3, 4, 5, 6, 7])
}

fn aims(report: &Report) -> Table {
    let mut table = Table::new();
    table.set_header(["", "aim", "found"]);
    for aim in &report.aims {
        table.add_row([if aim.met { "✓" } else { "✗" }, &aim.text, &aim.found]);
    }
    table
}

fn load(line: &Line) -> String {
    line.case.to_string()
}

fn by(line: &Line) -> String {
    line.case.describe(line.by).to_owned()
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
