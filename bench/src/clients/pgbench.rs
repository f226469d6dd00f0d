//! pgbench with the statements of the raw clients: their speed without Rust and its driver.

use std::fs;

use anyhow::{Context, Result};

use super::raw_postgres::{acquire_sql, release_sql};
use crate::measure::{Measurements, Window};
use crate::pgbench::Pgbench;
use crate::sandbox::Sandbox;

/// Number of threads of pgbench: as many as the runtime of the other clients has.
const THREADS: u32 = 2;

/// Runs pgbench for at least the length of the window, in whole seconds. Only the end of its run is counted,
/// because its clients connect at the beginning.
pub(crate) fn run(
    pgbench: &Pgbench,
    sandbox: &Sandbox,
    clients: u32,
    window: Window,
) -> Result<Measurements> {
    let (schema, logs) = (sandbox.namespace(), sandbox.folder.join("logs"));
    fs::create_dir(&logs)?;
    let (name, holder) = ("'bench/' || :client_id", "'bench-' || :client_id");
    let script = format!("{};\n{};\n", acquire_sql(&schema), release_sql(&schema));
    let script = script.replace("$1", name).replace("$2", holder);
    let seconds = (window.nanos().div_ceil(1_000_000_000) + 1).to_string();
    let (threads, clients_too) = (THREADS.min(clients).to_string(), clients.to_string());
    let prefix = logs.join("log").display().to_string();
    let options =
        ["--client", &clients_too, "--jobs", &threads, "--time", &seconds, "--log", "--log-prefix", &prefix];
    pgbench.run(sandbox, &script, &options)?;
    let mut text = String::new();
    for log in fs::read_dir(&logs)? {
        text += &fs::read_to_string(log?.path())?;
    }
    parse_log(&text, clients, window.nanos() / 1000)
}

/// Returns the measurements of the last `micros` of a log.
fn parse_log(log: &str, clients: u32, micros: u64) -> Result<Measurements> {
    let lines = log
        .lines()
        .map(Cycle::read)
        .collect::<Option<Vec<_>>>()
        .context("the log of pgbench cannot be read")?;
    let until = lines.iter().map(|cycle| cycle.ended).max().context("the log of pgbench is empty")?;
    let mut measurements = Measurements::new()?;
    measurements.shares.extend((0..clients).map(|client| (client, 0)));
    for cycle in lines.iter().filter(|cycle| cycle.ended > until.saturating_sub(micros)) {
        measurements.cycles.record(cycle.took * 1000)?;
        *measurements.shares.entry(cycle.client).or_default() += 1;
    }
    Ok(measurements)
}

/// Line of the log: client, number, duration in microseconds, script, and end time.
struct Cycle {
    client: u32,
    took: u64,
    ended: u64,
}

impl Cycle {
    fn read(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let [client, _, took, _, seconds, micros, ..] = words[..] else { return None };
        let ended = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        Some(Self { client: client.parse().ok()?, took: took.parse().ok()?, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_counts() {
        let log = "0 0 400 0 1700000000 999900\n1 0 300 0 1700000001 100\n0 1 200 0 1700000001 300\n";
        let measurements = parse_log(log, 3, 300).unwrap();
        assert_eq!((measurements.cycles.len(), measurements.cycles.max()), (2, 300_031));
        assert_eq!(measurements.shares.into_values().collect::<Vec<_>>(), [1, 1, 0]);
        assert!(parse_log("invalid", 1, 1).is_err());
    }
}
