//! Medians, ratios that were taken within each round, and whether the aims are reached.

use std::fmt::Write;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::run::{CONNECTIONS, Pair};
use super::waiters::{Crowd, IN_LINE};
use crate::stats::{duration, float, grouped, median};

/// Of the bare handler, at least.
const OF_BARE: f64 = 0.5;
/// The slowest hand-overs, at most.
const HAND_OVER: f64 = 50e6;

/// What was found, as rows of a table: name, figure, aim.
pub(super) struct Report(Vec<[String; 3]>);

impl Report {
    pub(super) fn new(pairs: &[Pair], lines: &[Histogram<u64>], crowd: &Crowd) -> Result<Self> {
        let mut rows = Vec::new();
        for connections in CONNECTIONS {
            let of = |pair: &&Pair| pair.connections == connections;
            let rates = |rate: fn(&Pair) -> f64| -> Vec<f64> { pairs.iter().filter(of).map(rate).collect() };
            let ratio = median(&rates(|pair| pair.ours.per_second / pair.bare.per_second));
            let (bare, ours) =
                (median(&rates(|pair| pair.bare.per_second)), median(&rates(|pair| pair.ours.per_second)));
            let mut times = Histogram::new(3)?;
            for pair in pairs.iter().filter(of) {
                times.add(&pair.ours.times)?;
            }
            let name = format!("acquire + release, {connections} connections");
            let figure = format!(
                "{} cycles/s, bare {}: {ratio:.2}; p50 {}, p99 {}",
                grouped(ours),
                grouped(bare),
                duration(float(times.value_at_quantile(0.5))),
                duration(float(times.value_at_quantile(0.99))),
            );
            rows.push([name, figure, aim(ratio >= OF_BARE, "≥ 0.5 of bare")]);
        }
        let mut times = Histogram::new(3)?;
        for line in lines {
            times.add(line)?;
        }
        let (p50, p99) = (float(times.value_at_quantile(0.5)), float(times.value_at_quantile(0.99)));
        let name = format!("hand-over, {IN_LINE} waiters for one lock");
        let figure = format!("p50 {}, p99 {}", duration(p50), duration(p99));
        rows.push([name, figure, aim(p99 <= HAND_OVER, "p99 ≤ 50 ms")]);
        let name = format!("{} waiters at once", grouped(f64::from(crowd.waiters)));
        let figure = format!(
            "{} errors, {:.1} KiB each, all served in {}",
            crowd.errors,
            float(crowd.memory_each) / 1024.0,
            duration(float(crowd.nanos)),
        );
        rows.push([name, figure, aim(crowd.errors == 0, "no error")]);
        Ok(Self(rows))
    }

    /// For a terminal, or for docs/benchmarks.md.
    pub(super) fn text(&self, markdown: bool) -> String {
        let mut text = String::new();
        if markdown {
            text.push_str("| load | leasehold over HTTP, on `memory:` | aim |\n|---|---|---|\n");
        }
        for [name, figure, aim] in &self.0 {
            let _ = if markdown {
                writeln!(text, "| {name} | {figure} | {aim} |")
            } else {
                writeln!(text, "{name:<36} {figure}   {aim}")
            };
        }
        text
    }
}

fn aim(reached: bool, what: &str) -> String {
    format!("{} {what}", if reached { "✓" } else { "✗" })
}
