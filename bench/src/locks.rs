//! `bench locks`: measures the loads and prints the report.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::chart;
use crate::cli::LocksArgs;
use crate::clients::etcd;
use crate::handover::HandOvers;
use crate::load::Load;
use crate::measure::{Window, float};
use crate::plan::{Case, cases};
use crate::report::{self, Cell, Report, Table, grouped, target};
use crate::rounds::{Figures, Rounds, Workload};
use crate::run_command::{self, CommandTime};
use crate::sandbox::{Engine, Keys, Layer, Sandbox, create_folder};

/// Name of the commands for `--only`.
const RUN: &str = "run";

type Row = crate::rounds::Row<Case>;

pub(crate) fn run(options: &LocksArgs) -> Result<()> {
    ensure!((0.05..=600.0).contains(&options.seconds), "--seconds must be 0.05 to 600");
    let folder = create_folder(options.dir.as_deref())?;
    let folder = folder.path();
    let named = cases().into_iter().filter(|case| case.to_string().contains(&options.only));
    let (wanted, absent): (Vec<_>, Vec<_>) = named.partition(|case| case.engine.is_available());
    for case in &absent {
        let variable = case.engine.variable().unwrap_or_default();
        eprintln!("{case}: not measured, because {variable} is not set");
    }
    if wanted.iter().any(|case| case.engine == Engine::Postgres)
        && let Err(error) = etcd::address()
    {
        eprintln!("etcd's lock: not measured, because {error}");
    }
    let run = RUN.contains(&options.only);
    ensure!(run || !wanted.is_empty(), "no load has a name that contains '{}'", options.only);

    let rows = wanted.iter().flat_map(|case| case.layers().into_iter().map(move |layer| (*case, layer)));
    let rows: Vec<_> = rows.collect();
    let mut rounds = Rounds::new();
    let count = if rows.is_empty() { 0 } else { options.rounds };
    for _ in 0..count {
        rounds.add(&rows, folder, |case, layer| {
            let measured = measure(case, layer, options.seconds, folder);
            measured.map(Ok).with_context(|| format!("{case}, {}", case.describe(layer)))
        })?;
    }
    let commands = run.then(|| run_command::measure(options.leasehold.as_ref(), options.starts, folder));
    if rounds.in_memory() {
        let parent = folder.parent().unwrap_or(folder).display();
        eprintln!(
            "{parent} is not on a disk: durable rows mean nothing there; choose another folder with --dir"
        );
    }
    chart::publish(&report(&rounds, commands), "locks", &options.format)
}

/// Measures one row in a new folder, which is removed afterwards.
fn measure(case: &Case, layer: Layer, seconds: f64, folder: &Path) -> Result<Figures> {
    let folder = tempfile::tempdir_in(folder)?;
    let (mut window, mut before) = (None, Ok(None));
    let sandbox = Sandbox { engine: case.engine, folder: folder.path().to_owned() };
    let (clients, hold_millis) = (0..case.clients, case.hold_millis);
    let load = Load { sandbox, layer, keys: case.keys, clients, hold_millis };
    load.prepare()?;
    // Commands before the window are not counted.
    let mut begin = || {
        before = load.commands();
        *window.insert(Window::after_warm_up(Duration::from_secs_f64(seconds)))
    };
    let measurements = match case.processes {
        1 => load.run(|| Ok(begin()))?,
        processes => load.run_in_processes(processes, begin)?,
    };
    let window = window.context("no client has started")?;
    let sent = load.commands()?.zip(before?).map(|(after, before)| float(after.saturating_sub(before)));
    let turns = float(measurements.turns.len() as u64);
    load.sandbox.clean_up()?;
    let mut figures = Figures::default();
    let (times, shares) = match case.keys {
        Keys::Own => (measurements.cycles, measurements.shares),
        Keys::One => {
            let hand_overs = HandOvers::of(measurements.turns, case.clients, window)?;
            let in_use = float(hand_overs.held) / float(window.nanos());
            figures.overtaken = Some(hand_overs.overtaken);
            figures.in_use = (case.hold_millis > 0).then_some(in_use);
            figures.commands = sent.map(|sent| sent / turns);
            (hand_overs.latency, hand_overs.shares)
        }
    };
    figures.shares =
        (shares.values().min().copied().unwrap_or(0), shares.values().max().copied().unwrap_or(0));
    let Figures { rate, times, .. } = Figures::of_calls(times, 1, window);
    Ok(Figures { rate, times, ..figures })
}

fn report(rounds: &Rounds<Case>, commands: Option<Result<Vec<CommandTime>>>) -> Report {
    let rows = Row::all(&rounds.samples);
    let (commands, error) = match commands {
        Some(Err(error)) => (Vec::new(), Some(error)),
        commands => (commands.and_then(Result::ok).unwrap_or_default(), None),
    };
    let command = |row: &CommandTime| {
        vec![Cell::text(row.command), Cell::ratio(Some(row.millis)), Cell::ratio(Some(row.of_flock))]
    };
    let columns = ["load", "by", "per second", "p50", "p99", "of raw", "per client"];
    let of_contention = ["overtaken", "in use", "commands"];
    let of = |keys: Keys| -> Vec<Vec<Cell>> {
        rows.iter().filter(|row| row.load.keys == keys).map(cells).collect()
    };
    let tables = vec![
        rounds.machine(),
        Table {
            title: "Uncontended: each client its own lock",
            columns: columns.to_vec(),
            left: 2,
            rows: of(Keys::Own),
        },
        Table {
            title: "Contended: all clients want the same lock",
            columns: [&columns[..], &of_contention].concat(),
            left: 2,
            rows: of(Keys::One),
        },
        Table {
            title: "A command under a lock",
            columns: vec!["command", "ms", "of flock"],
            left: 1,
            rows: commands.iter().map(command).collect(),
        },
        report::targets(targets(&rows, &commands)),
    ];
    let remark = |error: anyhow::Error| format!("`leasehold run` was not measured: {error:#}");
    Report { tables, remarks: error.map(remark).into_iter().collect() }
}

fn cells(row: &Row) -> Vec<Cell> {
    let (least, most) = row.shares;
    let shares = if row.load.clients == 1 { String::new() } else { format!("{least} to {most}") };
    let mut cells = row.cells().to_vec();
    cells.push(Cell::text(shares));
    if row.load.keys == Keys::One {
        cells.push(Cell::number(row.overtaken.map(float), |overtaken| overtaken.to_string()));
        cells.push(Cell::number(row.in_use, |part| format!("{:.0} %", part * 100.0)));
        cells.push(Cell::number(row.commands, |count| format!("{count:.1}")));
    }
    cells
}

fn targets(rows: &[Row], commands: &[CommandTime]) -> Vec<Vec<Cell>> {
    let find = |engine, keys, clients, layer: Layer| {
        let case = Case { engine, keys, clients, processes: 1, hold_millis: 0 };
        rows.iter().find(move |row| row.load == case && row.by == layer)
    };
    let own = |engine, clients, layer| find(engine, Keys::Own, clients, layer);
    let one = |engine| find(engine, Keys::One, 16, Layer::Client);
    let mut all = Vec::new();
    for layer in [Layer::Store, Layer::Client] {
        for clients in [1, 16] {
            all.extend(at_least_per_second(own(Engine::Memory, clients, layer), 1e6));
        }
    }
    for layer in [Layer::Store, Layer::Client] {
        for (engine, clients, least) in
            [(Engine::Holders, 1, 0.8), (Engine::Full, 1, 0.8), (Engine::Full, 64, 10.0)]
        {
            all.extend(at_least_of_raw(own(engine, clients, layer), least));
        }
    }
    all.extend(at_least_per_second(one(Engine::Holders), 1e4));
    for clients in [1, 16, 64] {
        all.extend(at_least_of_raw(own(Engine::Postgres, clients, Layer::Client), 0.9));
    }
    all.extend(at_least_of_raw(one(Engine::Postgres), 10.0));
    for (clients, least) in [(1, 0.95), (16, 2.0), (64, 2.0)] {
        all.extend(at_least_of_raw(own(Engine::Redis, clients, Layer::Client), least));
    }
    all.extend(at_least_of_raw(one(Engine::Redis), 0.5));
    for row in rows.iter().filter(|row| row.by == Layer::Client) {
        all.extend(row.in_use.map(|part| {
            let text = format!("{}: in use ≥ 90 % of the time", row.load);
            target(part >= 0.9, text, format!("{:.0} %", part * 100.0))
        }));
        all.extend(row.commands.filter(|_| row.load.hold_millis == 0).map(|count| {
            let text = format!("{}: ≤ 4 commands for each hand-over", row.load);
            target(count <= 4.0, text, format!("{count:.1}"))
        }));
    }
    for row in rows.iter().filter(|row| row.by == Layer::Client) {
        all.extend(row.overtaken.map(|overtaken| {
            let text = format!("{}: no second turn before a waiter", row.load);
            target(overtaken <= 1, text, format!("overtaken {overtaken} times at most"))
        }));
    }
    all.extend(commands.last().map(|started| {
        let text = format!("{}: ≤ 1.5 × flock", started.command);
        target(started.of_flock <= 1.5, text, format!("{:.2}", started.of_flock))
    }));
    all
}

fn at_least_per_second(row: Option<&Row>, least: f64) -> Option<Vec<Cell>> {
    let (row, found) = (row?, row?.per_second?);
    let text = format!("{}, {}: ≥ {}/s", row.load, row.describe(), grouped(least));
    Some(target(found >= least, text, format!("{}/s", grouped(found))))
}

fn at_least_of_raw(row: Option<&Row>, least: f64) -> Option<Vec<Cell>> {
    let (row, found) = (row?, row?.of_raw?);
    let text = format!("{}, {}: ≥ {least} × {}", row.load, row.describe(), row.raw());
    Some(target(found >= least, text, format!("{found:.2}")))
}
