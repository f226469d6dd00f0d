//! Rounds of the server benchmark: the bare handler and leasehold in turn, then the waiters; and the report.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::cycles::{Cycles, WAITERS_PER_LOCK, WaiterLoad, hand_overs, measure, waiter_load};
use super::server::ServerProcess;
use crate::cli::{HttpArgs, Kind};
use crate::measure::{duration, float, grouped, median};
use crate::sandbox::runtime;

/// Numbers of connections.
const CONNECTIONS: [u32; 3] = [1, 16, 64];

/// Results of the same load on both servers.
struct Pair {
    pub(super) connections: u32,
    pub(super) bare: Cycles,
    pub(super) ours: Cycles,
}

/// Measures everything and prints it.
pub(crate) fn run(args: &HttpArgs) -> Result<()> {
    let runtime = runtime()?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut pairs = Vec::new();
    let mut hand_over_times = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let (bare, ours) = (ServerProcess::new(Kind::Bare)?, ServerProcess::new(Kind::Leasehold)?);
        for connections in CONNECTIONS {
            let bare = runtime.block_on(measure(&bare.address, connections, time))?;
            let ours = runtime.block_on(measure(&ours.address, connections, time))?;
            pairs.push(Pair { connections, bare, ours });
        }
        hand_over_times.push(runtime.block_on(hand_overs(&ours.address))?);
    }
    eprintln!("{} waiters", args.waiters);
    let server = ServerProcess::new(Kind::Leasehold)?;
    let waiter_load = runtime.block_on(waiter_load(&server, args.waiters))?;
    print!("{}", Report::new(&pairs, &hand_over_times, &waiter_load)?.text(args.markdown));
    Ok(())
}

/// Minimum ratio to the bare handler.
const MIN_OF_BARE: f64 = 0.5;
/// Maximum p99 of a hand-over, in nanoseconds.
const MAX_HAND_OVER: f64 = 50e6;

/// Rows of the table: name, result, target.
struct Report(Vec<[String; 3]>);

impl Report {
    pub(super) fn new(
        pairs: &[Pair],
        hand_over_times: &[Histogram<u64>],
        waiter_load: &WaiterLoad,
    ) -> Result<Self> {
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
            let result = format!(
                "{} cycles/s, bare {}: {ratio:.2}; p50 {}, p99 {}",
                grouped(ours),
                grouped(bare),
                duration(float(times.value_at_quantile(0.5))),
                duration(float(times.value_at_quantile(0.99))),
            );
            rows.push([name, result, target(ratio >= MIN_OF_BARE, "≥ 0.5 of bare")]);
        }
        let mut times = Histogram::new(3)?;
        for round in hand_over_times {
            times.add(round)?;
        }
        let (p50, p99) = (float(times.value_at_quantile(0.5)), float(times.value_at_quantile(0.99)));
        let name = format!("hand-over, {WAITERS_PER_LOCK} waiters for one lock");
        let result = format!("p50 {}, p99 {}", duration(p50), duration(p99));
        rows.push([name, result, target(p99 <= MAX_HAND_OVER, "p99 ≤ 50 ms")]);
        let name = format!("{} waiters at once", grouped(f64::from(waiter_load.waiters)));
        let result = format!(
            "{} errors, {:.1} KiB each, all served in {}",
            waiter_load.errors,
            float(waiter_load.memory_each) / 1024.0,
            duration(float(waiter_load.nanos)),
        );
        rows.push([name, result, target(waiter_load.errors == 0, "no error")]);
        Ok(Self(rows))
    }

    /// Formats the report for a terminal, or for docs/benchmarks.md.
    pub(super) fn text(&self, markdown: bool) -> String {
        let mut text = String::new();
        if markdown {
            text.push_str("| load | leasehold over HTTP, on `memory:` | target |\n|---|---|---|\n");
        }
        for [name, result, target] in &self.0 {
            let _ = if markdown {
                writeln!(text, "| {name} | {result} | {target} |")
            } else {
                writeln!(text, "{name:<36} {result}   {target}")
            };
        }
        text
    }
}

fn target(met: bool, what: &str) -> String {
    format!("{} {what}", if met { "✓" } else { "✗" })
}
