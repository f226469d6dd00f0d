//! Every row once in each round, so that what the machine does meanwhile happens to all of them alike.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::handover::HandOvers;
use crate::load::Load;
use crate::measure::{Window, now};
use crate::plan::{Case, Floor, Keys};
use crate::probe::Probe;
use crate::stats::{duration, float, grouped};
use crate::workers;

/// What one row gave in one round.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) case: Case,
    pub(crate) floor: Floor,
    /// Cycles or hand-overs per second.
    pub(crate) rate: f64,
    /// In nanoseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// The fewest and the most cycles or turns that a client had.
    pub(crate) shares: (u64, u64),
    /// See [`HandOvers::overtaken`].
    pub(crate) overtaken: Option<u64>,
    /// What part of the time somebody had the lock.
    pub(crate) in_use: Option<f64>,
    /// Commands that clients sent to the server for each turn.
    pub(crate) commands: Option<f64>,
}

/// One round: how the machine was, and every row.
pub(crate) struct Round {
    pub(crate) probe: Probe,
    pub(crate) figures: Vec<Figure>,
}

/// A row and the raw one beside it are measured one right after the other; every other round goes backwards.
pub(crate) fn round(number: u32, cases: &[Case], seconds: f64, folder: &Path) -> Result<Round> {
    let probe = Probe::take(folder)?;
    eprintln!("round {}: fsync {:.0} µs, load {:.1}", number + 1, probe.fsync_micros, probe.load);
    let floors = |case: &Case| case.floors().iter().map(|floor| (*case, *floor)).collect::<Vec<_>>();
    let mut rows: Vec<_> = cases.iter().flat_map(floors).collect();
    if number % 2 == 1 {
        rows.reverse();
    }
    let mut figures = Vec::new();
    for (case, floor) in rows {
        let figure = measure(&case, floor, seconds, folder)
            .with_context(|| format!("{case}, {}", case.describe(floor)))?;
        let (rate, p50, p99) = (grouped(figure.rate), duration(figure.p50), duration(figure.p99));
        eprintln!("  {case}, {}: {rate}/s, p50 {p50}, p99 {p99}", case.describe(floor));
        figures.push(figure);
    }
    Ok(Round { probe, figures })
}

/// Each measurement has a new folder, which goes when it is done.
fn measure(case: &Case, floor: Floor, seconds: f64, folder: &Path) -> Result<Figure> {
    let folder = tempfile::tempdir_in(folder)?;
    let length = Duration::from_secs_f64(seconds);
    let (mut window, mut before) = (None, Ok(None));
    let (engine, keys, clients) = (case.engine, case.keys, 0..case.clients);
    let (hold_millis, folder) = (case.hold_millis, folder.path().to_owned());
    let load = Load { engine, floor, keys, clients, hold_millis, folder };
    load.prepare()?;
    // What clients send to get ready is not counted.
    let mut begin = || {
        before = load.commands();
        *window.insert(window_of(length))
    };
    let notes = match case.processes {
        1 => load.run(|| Ok(begin()))?,
        processes => workers::run(&load, processes, begin)?,
    };
    let window = window.context("nobody began")?;
    let sent = load.commands()?.zip(before?).map(|(after, before)| float(after.saturating_sub(before)));
    let turns = float(notes.turns.len() as u64);
    load.clean_up()?;
    let (times, shares, overtaken, in_use) = match case.keys {
        Keys::Own => (notes.cycles, notes.shares, None, None),
        Keys::One => {
            let found = HandOvers::of(notes.turns, case.clients, window)?;
            let in_use = float(found.held) / float(window.nanos());
            (found.latency, found.shares, Some(found.overtaken), Some(in_use))
        }
    };
    let in_use = in_use.filter(|_| case.hold_millis > 0);
    let commands = sent.filter(|_| case.keys == Keys::One).map(|sent| sent / turns);
    let shares = (shares.values().min().copied(), shares.values().max().copied());
    let shares = (shares.0.unwrap_or(0), shares.1.unwrap_or(0));
    let rate = float(times.len()) / (float(window.nanos()) / 1e9);
    let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    Ok(Figure { case: *case, floor, rate, p50, p99, shares, overtaken, in_use, commands })
}

/// Begins after a while in which caches and files get warm.
pub(crate) fn window_of(length: Duration) -> Window {
    let warm_up = (length / 5).clamp(Duration::from_millis(50), Duration::from_millis(500));
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let from = now() + nanos(warm_up);
    Window { from, until: from + nanos(length) }
}

fn quantile(times: &Histogram<u64>, quantile: f64) -> f64 {
    if times.is_empty() { f64::NAN } else { float(times.value_at_quantile(quantile)) }
}
