//! Rounds of the server benchmark: the bare handler and leasehold in turn, then the waiters; and the report.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::cycles::{Cycles, WAITERS_PER_LOCK, WaiterLoad, hand_overs, measure, waiter_load};
use super::server::{Kind, ServerProcess};
use crate::chart;
use crate::cli::HttpArgs;
use crate::measure::float;
use crate::report::{Cell, Report, Table, duration, grouped, median};
use crate::sandbox::runtime;

const CONNECTIONS: [u32; 3] = [1, 16, 64];

/// Results of the same load on both servers.
struct Pair {
    connections: u32,
    bare: Cycles,
    ours: Cycles,
}

pub(crate) fn run(args: &HttpArgs) -> Result<()> {
    let runtime = runtime()?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut pairs = Vec::new();
    let mut hand_over_times = Vec::new();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let (bare, ours) = (ServerProcess::new(&Kind::Bare)?, ServerProcess::new(&Kind::Leasehold)?);
        for connections in CONNECTIONS {
            let bare = runtime.block_on(measure(&bare.address, connections, time))?;
            let ours = runtime.block_on(measure(&ours.address, connections, time))?;
            pairs.push(Pair { connections, bare, ours });
        }
        hand_over_times.push(runtime.block_on(hand_overs(&ours.address))?);
    }
    eprintln!("{} waiters", args.waiters);
    let server = ServerProcess::new(&Kind::Leasehold)?;
    let waiter_load = runtime.block_on(waiter_load(&server, args.waiters))?;
    chart::publish(&report(&pairs, &hand_over_times, &waiter_load)?, "http", &args.format)
}

const MIN_OF_BARE: f64 = 0.5;
/// Maximum p99 of a hand-over, in nanoseconds.
const MAX_HAND_OVER: f64 = 50e6;

fn report(pairs: &[Pair], hand_over_times: &[Histogram<u64>], waiter_load: &WaiterLoad) -> Result<Report> {
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        let pairs: Vec<_> = pairs.iter().filter(|pair| pair.connections == connections).collect();
        let of = |value: fn(&Pair) -> f64| median(pairs.iter().map(|pair| value(pair))).unwrap_or(f64::NAN);
        let ratio = of(|pair| pair.ours.per_second / pair.bare.per_second);
        let result = format!(
            "{} cycles/s, bare {}: {ratio:.2}; {}",
            grouped(of(|pair| pair.ours.per_second)),
            grouped(of(|pair| pair.bare.per_second)),
            quantiles(&merged(pairs.iter().map(|pair| &pair.ours.times))?),
        );
        let name = format!("acquire + release, {connections} connections");
        rows.push(row(name, result, ratio >= MIN_OF_BARE, "≥ 0.5 of bare"));
    }
    let times = merged(hand_over_times)?;
    let is_fast = float(times.value_at_quantile(0.99)) <= MAX_HAND_OVER;
    let name = format!("hand-over, {WAITERS_PER_LOCK} waiters for one lock");
    rows.push(row(name, quantiles(&times), is_fast, "p99 ≤ 50 ms"));
    let name = format!("{} waiters at once", grouped(f64::from(waiter_load.waiters)));
    let result = format!(
        "{} errors, {:.1} KiB each, all granted in {}",
        waiter_load.errors,
        float(waiter_load.memory_each) / 1024.0,
        duration(float(waiter_load.nanos)),
    );
    rows.push(row(name, result, waiter_load.errors == 0, "no error"));
    let columns = vec!["load", "leasehold over HTTP, on `memory:`", "target"];
    let table = Table { title: "Over HTTP", columns, left: 3, rows };
    Ok(Report { tables: vec![table], remarks: Vec::new() })
}

fn merged<'a>(rounds: impl IntoIterator<Item = &'a Histogram<u64>>) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    for round in rounds {
        times.add(round)?;
    }
    Ok(times)
}

fn quantiles(times: &Histogram<u64>) -> String {
    let [p50, p99] = [0.5, 0.99].map(|quantile| duration(float(times.value_at_quantile(quantile))));
    format!("p50 {p50}, p99 {p99}")
}

fn row(name: String, result: String, is_met: bool, target: &str) -> Vec<Cell> {
    let target = format!("{} {target}", if is_met { "✓" } else { "✗" });
    [name, result, target].map(Cell::text).into()
}
