//! PostgreSQL's own benchmark with the statements of the bare clients: how fast they are without Rust and its driver.

use std::fs;

use anyhow::{Context, Result};

use super::raw_postgres::{give, take};
use crate::measure::{Notes, Window};
use crate::pgbench::Pgbench;
use crate::place::Place;

/// So many threads drive its clients: as many as the runtime of the others has.
const THREADS: u32 = 2;

/// Runs it for as long as the window is, or a little longer: it counts in whole seconds. The end of its run is what counts: at
/// its beginning it is still connecting.
pub(crate) fn run(pgbench: &Pgbench, place: &Place, clients: u32, window: Window) -> Result<Notes> {
    let (schema, logs) = (place.space(), place.folder.join("logs"));
    fs::create_dir(&logs)?;
    let (name, holder) = ("'bench/' || :client_id", "'bench-' || :client_id");
    let script = format!("{};\n{};\n", take(&schema), give(&schema));
    let script = script.replace("$1", name).replace("$2", holder);
    let seconds = (window.nanos().div_ceil(1_000_000_000) + 1).to_string();
    let (threads, clients_too) = (THREADS.min(clients).to_string(), clients.to_string());
    let prefix = logs.join("log").display().to_string();
    let options =
        ["--client", &clients_too, "--jobs", &threads, "--time", &seconds, "--log", "--log-prefix", &prefix];
    pgbench.run(place, &script, &options)?;
    let mut text = String::new();
    for log in fs::read_dir(&logs)? {
        text += &fs::read_to_string(log?.path())?;
    }
    noted(&text, clients, window.nanos() / 1000)
}

/// What a log says of its last so many microseconds.
fn noted(log: &str, clients: u32, micros: u64) -> Result<Notes> {
    let lines = log.lines().map(Cycle::read).collect::<Option<Vec<_>>>().context("a log of pgbench")?;
    let until = lines.iter().map(|cycle| cycle.ended).max().context("pgbench has done nothing")?;
    let mut notes = Notes::new()?;
    notes.shares.extend((0..clients).map(|client| (client, 0)));
    for cycle in lines.iter().filter(|cycle| cycle.ended > until.saturating_sub(micros)) {
        notes.cycles.record(cycle.took * 1000)?;
        *notes.shares.entry(cycle.client).or_default() += 1;
    }
    Ok(notes)
}

/// A line of its log, in microseconds: client, how many before, how long, which script, and when it ended.
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
        let notes = noted(log, 3, 300).unwrap();
        assert_eq!((notes.cycles.len(), notes.cycles.max()), (2, 300_031));
        assert_eq!(notes.shares.into_values().collect::<Vec<_>>(), [1, 1, 0]);
        assert!(noted("what?", 1, 1).is_err());
    }
}
