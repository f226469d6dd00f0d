//! Measures every row once per round, so that changes of the machine affect all rows alike; and the state
//! of the machine before each round.

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::measure::{Window, float, now};
use crate::report::{Cell, Table, duration, grouped, median};
use crate::sandbox::Layer;

/// Load that is measured on several layers, each compared with the raw layer of the same round.
pub(crate) trait Workload: Copy + PartialEq + fmt::Display {
    /// Returns the name of the layer in this load.
    fn describe(&self, by: Layer) -> &'static str;
}

/// Result of one row in one round.
pub(crate) struct Sample<W> {
    pub(crate) load: W,
    pub(crate) by: Layer,
    pub(crate) result: Result<Figures, String>,
}

/// Rate, or durations, or both.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Cycles, hand-overs or tasks per second.
    pub(crate) rate: Option<f64>,
    /// Durations in nanoseconds.
    pub(crate) times: Option<Histogram<u64>>,
    /// Minimum and maximum number of cycles or turns of a client.
    pub(crate) shares: (u64, u64),
    /// Maximum number of turns that one client requested and got while another client was waiting.
    pub(crate) overtaken: Option<u64>,
    /// Fraction of the time for which the lock was held.
    pub(crate) in_use: Option<f64>,
    /// Number of commands that clients sent to the server for each turn.
    pub(crate) commands: Option<f64>,
}

impl Figures {
    /// Returns the rate of this number of tasks since `begun`.
    pub(crate) fn since(begun: u64, tasks: u64) -> Self {
        Self { rate: Some(float(tasks) / (float(now() - begun) / 1e9)), ..Self::default() }
    }

    pub(crate) fn of_times(times: Histogram<u64>) -> Self {
        Self { times: Some(times), ..Self::default() }
    }

    /// Returns the figures of calls that ended within the window, each with `batch` tasks or cycles.
    pub(crate) fn of_calls(times: Histogram<u64>, batch: u32, window: Window) -> Self {
        let count = times.len() * u64::from(batch);
        Self { rate: Some(float(count) / (float(window.nanos()) / 1e9)), ..Self::of_times(times) }
    }

    fn quantile(&self, quantile: f64) -> Option<f64> {
        let times = self.times.as_ref().filter(|times| !times.is_empty())?;
        Some(float(times.value_at_quantile(quantile)))
    }
}

/// Rounds so far: the state of the machine before each, and their samples.
pub(crate) struct Rounds<W> {
    probes: Vec<Probe>,
    pub(crate) samples: Vec<Vec<Sample<W>>>,
}

impl<W: Workload> Rounds<W> {
    pub(crate) fn new() -> Self {
        Self { probes: Vec::new(), samples: Vec::new() }
    }

    /// Measures a row right after its raw row; every other round runs in reverse order.
    pub(crate) fn add(
        &mut self,
        rows: &[(W, Layer)],
        folder: &Path,
        measure: impl Fn(&W, Layer) -> Result<Result<Figures, String>>,
    ) -> Result<()> {
        let probe = Probe::take(folder)?;
        let number = self.probes.len() + 1;
        eprintln!("round {number}: fsync {:.0} µs, load {:.1}", probe.fsync_nanos / 1e3, probe.load);
        self.probes.push(probe);
        let mut rows = rows.to_vec();
        if number.is_multiple_of(2) {
            rows.reverse();
        }
        let mut samples = Vec::new();
        for (load, by) in rows {
            let sample = Sample { load, by, result: measure(&load, by)? };
            sample.log();
            samples.push(sample);
        }
        self.samples.push(samples);
        Ok(())
    }

    /// Whether the folder is in memory: no disk syncs that fast.
    pub(crate) fn in_memory(&self) -> bool {
        self.probes.iter().any(|probe| probe.fsync_nanos < 5e3)
    }

    pub(crate) fn machine(&self) -> Table {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let whole = |number: usize| Cell::number(Some(float(number as u64)), |number| number.to_string());
        let row = |(number, probe): (usize, &Probe)| {
            let load = Cell::number(Some(probe.load), |load| format!("{load:.1}"));
            vec![whole(number), whole(cores), load, Cell::time(Some(probe.fsync_nanos))]
        };
        Table {
            title: "Machine",
            columns: vec!["round", "cores", "load before", "4 KiB write + fdatasync"],
            left: 0,
            rows: (1..).zip(&self.probes).map(row).collect(),
        }
    }
}

impl<W: Workload> Sample<W> {
    pub(crate) fn log(&self) {
        let mut line = format!("  {}, {}:", self.load, self.load.describe(self.by));
        match &self.result {
            Err(error) => line = format!("{line} {error}"),
            Ok(figures) => {
                line.extend(figures.rate.map(|rate| format!(" {}/s", grouped(rate))));
                line.extend(figures.quantile(0.5).map(|p50| format!(" p50 {}", duration(p50))));
                line.extend(figures.quantile(0.99).map(|p99| format!(" p99 {}", duration(p99))));
            }
        }
        eprintln!("{line}");
    }
}

/// Row over all rounds; its figures are medians of the rounds.
pub(crate) struct Row<W> {
    pub(crate) load: W,
    pub(crate) by: Layer,
    pub(crate) per_second: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    /// Median of the ratios to the raw row of the same round.
    pub(crate) of_raw: Option<f64>,
    pub(crate) rounds: Vec<f64>,
    /// [`Figures::shares`] of the round with the largest spread.
    pub(crate) shares: (u64, u64),
    /// Maximum of the rounds.
    pub(crate) overtaken: Option<u64>,
    pub(crate) in_use: Option<f64>,
    pub(crate) commands: Option<f64>,
    /// Error of a round without figures.
    pub(crate) error: Option<String>,
}

impl<W: Workload> Row<W> {
    pub(crate) fn all(rounds: &[Vec<Sample<W>>]) -> Vec<Self> {
        rounds.iter().take(1).flatten().map(|sample| Self::new(rounds, sample.load, sample.by)).collect()
    }

    fn new(rounds: &[Vec<Sample<W>>], load: W, by: Layer) -> Self {
        let is_row = |sample: &&Sample<W>| sample.load == load && sample.by == by;
        let samples: Vec<_> = rounds.iter().flatten().filter(is_row).collect();
        let figures: Vec<_> = samples.iter().filter_map(|sample| sample.result.as_ref().ok()).collect();
        let ratios = rounds
            .iter()
            .filter(|_| by != Layer::Raw)
            .filter_map(|round| Some(rate(round, load, by)? / rate(round, load, Layer::Raw)?));
        let all = |value: &dyn Fn(&Figures) -> Option<f64>| -> Vec<f64> {
            figures.iter().filter_map(|figures| value(figures)).collect()
        };
        let spread = |(least, most): (u64, u64)| (most + 1) * 1000 / (least + 1);
        let shares = figures.iter().map(|figures| figures.shares).max_by_key(|shares| spread(*shares));
        let rounds = all(&|figures| figures.rate);
        Self {
            load,
            by,
            per_second: median(rounds.clone()),
            p50: median(all(&|figures| figures.quantile(0.5))),
            p99: median(all(&|figures| figures.quantile(0.99))),
            of_raw: median(ratios),
            rounds,
            shares: shares.unwrap_or_default(),
            overtaken: figures.iter().filter_map(|figures| figures.overtaken).max(),
            in_use: median(all(&|figures| figures.in_use)),
            commands: median(all(&|figures| figures.commands)),
            error: samples.iter().find_map(|sample| sample.result.as_ref().err().cloned()),
        }
    }

    /// Returns load, layer, rate, p50, p99, and ratio to the raw row.
    pub(crate) fn cells(&self) -> [Cell; 6] {
        [
            Cell::text(self.load.to_string()),
            Cell::text(self.describe()),
            Cell::rate(self.per_second).with_rounds(&self.rounds),
            Cell::time(self.p50),
            Cell::time(self.p99),
            Cell::ratio(self.of_raw),
        ]
    }

    pub(crate) fn describe(&self) -> &'static str {
        self.load.describe(self.by)
    }

    pub(crate) fn raw(&self) -> &'static str {
        self.load.describe(Layer::Raw).trim_start_matches("raw: ")
    }
}

pub(crate) fn rate<W: Workload>(round: &[Sample<W>], load: W, by: Layer) -> Option<f64> {
    let sample = round.iter().find(|sample| sample.load == load && sample.by == by)?;
    sample.result.as_ref().ok()?.rate
}

#[derive(Debug)]
struct Probe {
    /// Median duration of a 4 KiB write and its fdatasync.
    fsync_nanos: f64,
    /// Load average of the last minute.
    load: f64,
}

const WRITES: u32 = 100;

impl Probe {
    fn take(folder: &Path) -> Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        let block = [7; 4096];
        file.write_all(&block)?;
        file.sync_all()?;
        let nanos = (0..WRITES).map(|_| write_and_sync(&mut file, &block)).collect::<Result<Vec<_>>>()?;
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = text.split(' ').next().and_then(|first| first.parse().ok());
        Ok(Self { fsync_nanos: median(nanos).unwrap_or(f64::NAN), load: load.unwrap_or(f64::NAN) })
    }
}

fn write_and_sync(file: &mut File, block: &[u8]) -> Result<f64> {
    let begun = now();
    file.seek(SeekFrom::Start(0))?;
    file.write_all(block)?;
    file.sync_data()?;
    Ok(float(now() - begun))
}
