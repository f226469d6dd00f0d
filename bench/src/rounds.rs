//! Measures every row once per round, so that changes of the machine affect all rows alike; and the state
//! of the machine before each round.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client_processes;
use crate::handover::HandOvers;
use crate::load::Load;
use crate::measure::{Window, duration, float, grouped, median, now};
use crate::plan::{Case, Keys, Layer};

/// Result of one row in one round.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) case: Case,
    pub(crate) layer: Layer,
    /// Cycles or hand-overs per second.
    pub(crate) rate: f64,
    /// Median duration, in nanoseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Minimum and maximum number of cycles or turns of a client.
    pub(crate) shares: (u64, u64),
    /// See [`HandOvers::overtaken`].
    pub(crate) overtaken: Option<u64>,
    /// Fraction of the time for which the lock was held.
    pub(crate) in_use: Option<f64>,
    /// Number of commands that clients sent to the server for each turn.
    pub(crate) commands: Option<f64>,
}

/// Round: the state of the machine, and every row.
pub(crate) struct Round {
    pub(crate) probe: Probe,
    pub(crate) samples: Vec<Sample>,
}

/// Measures a row right after its raw row; every other round runs in reverse order.
pub(crate) fn round(number: u32, cases: &[Case], seconds: f64, folder: &Path) -> Result<Round> {
    let probe = Probe::take(folder)?;
    eprintln!("round {}: fsync {:.0} µs, load {:.1}", number + 1, probe.fsync_micros, probe.load);
    let layers = |case: &Case| case.layers().iter().map(|layer| (*case, *layer)).collect::<Vec<_>>();
    let mut rows: Vec<_> = cases.iter().flat_map(layers).collect();
    if number % 2 == 1 {
        rows.reverse();
    }
    let mut samples = Vec::new();
    for (case, layer) in rows {
        let sample = measure(&case, layer, seconds, folder)
            .with_context(|| format!("{case}, {}", case.describe(layer)))?;
        let (rate, p50, p99) = (grouped(sample.rate), duration(sample.p50), duration(sample.p99));
        eprintln!("  {case}, {}: {rate}/s, p50 {p50}, p99 {p99}", case.describe(layer));
        samples.push(sample);
    }
    Ok(Round { probe, samples })
}

/// Measures one row in a new folder, which is removed afterwards.
fn measure(case: &Case, layer: Layer, seconds: f64, folder: &Path) -> Result<Sample> {
    let folder = tempfile::tempdir_in(folder)?;
    let length = Duration::from_secs_f64(seconds);
    let (mut window, mut before) = (None, Ok(None));
    let (engine, keys, clients) = (case.engine, case.keys, 0..case.clients);
    let (hold_millis, folder) = (case.hold_millis, folder.path().to_owned());
    let load = Load { engine, layer, keys, clients, hold_millis, folder };
    load.prepare()?;
    // Commands before the window are not counted.
    let mut begin = || {
        before = load.commands();
        *window.insert(window_of(length))
    };
    let measurements = match case.processes {
        1 => load.run(|| Ok(begin()))?,
        processes => client_processes::run(&load, processes, begin)?,
    };
    let window = window.context("no client has started")?;
    let sent = load.commands()?.zip(before?).map(|(after, before)| float(after.saturating_sub(before)));
    let turns = float(measurements.turns.len() as u64);
    load.clean_up()?;
    let (times, shares, overtaken, in_use) = match case.keys {
        Keys::Own => (measurements.cycles, measurements.shares, None, None),
        Keys::One => {
            let hand_overs = HandOvers::of(measurements.turns, case.clients, window)?;
            let in_use = float(hand_overs.held) / float(window.nanos());
            (hand_overs.latency, hand_overs.shares, Some(hand_overs.overtaken), Some(in_use))
        }
    };
    let in_use = in_use.filter(|_| case.hold_millis > 0);
    let commands = sent.filter(|_| case.keys == Keys::One).map(|sent| sent / turns);
    let shares = (shares.values().min().copied(), shares.values().max().copied());
    let shares = (shares.0.unwrap_or(0), shares.1.unwrap_or(0));
    let rate = float(times.len()) / (float(window.nanos()) / 1e9);
    let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    Ok(Sample { case: *case, layer, rate, p50, p99, shares, overtaken, in_use, commands })
}

/// Returns a window of this length that begins after a warm-up.
pub(crate) fn window_of(length: Duration) -> Window {
    let warm_up = (length / 5).clamp(Duration::from_millis(50), Duration::from_millis(500));
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let from = now() + nanos(warm_up);
    Window { from, until: from + nanos(length) }
}

fn quantile(times: &Histogram<u64>, quantile: f64) -> f64 {
    if times.is_empty() { f64::NAN } else { float(times.value_at_quantile(quantile)) }
}

/// State of the machine before a round.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Probe {
    /// Median duration of a 4 KiB write and its fdatasync, in µs.
    pub(crate) fsync_micros: f64,
    /// Load average of the last minute.
    pub(crate) load: f64,
}

const WRITES: u32 = 100;

impl Probe {
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        let block = [7; 4096];
        file.write_all(&block)?;
        file.sync_all()?;
        let micros = (0..WRITES).map(|_| write_and_sync(&mut file, &block)).collect::<Result<Vec<_>>>()?;
        Ok(Self { fsync_micros: median(&micros), load: load() })
    }
}

fn write_and_sync(file: &mut File, block: &[u8]) -> Result<f64> {
    let begun = now();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(block)?;
    file.sync_data()?;
    Ok(float(now() - begun) / 1e3)
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}
