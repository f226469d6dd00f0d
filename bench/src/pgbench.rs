//! Finds and runs pgbench, the benchmark of PostgreSQL; and the statements of the raw locks with it: their
//! speed without Rust and its driver.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::clients::raw_postgres::{acquire_sql, release_sql};
use crate::measure::{Measurements, Window};
use crate::sandbox::Sandbox;

/// Variable with the folder of PostgreSQL's programs, set by `cargo xtask`.
const PROGRAMS: &str = "LEASEHOLD_TEST_POSTGRES_BIN";
/// Number of threads of pgbench: as many as the runtime of the other clients has.
const THREADS: u32 = 2;

#[derive(Debug, Clone)]
pub(crate) struct Pgbench(PathBuf);

impl Pgbench {
    pub(crate) fn find() -> Option<Self> {
        let program = PathBuf::from(std::env::var_os(PROGRAMS)?).join("pgbench");
        program.is_file().then_some(Self(program))
    }

    /// Runs a script with these options; returns the output.
    pub(crate) fn run(&self, sandbox: &Sandbox, script: &str, options: &[&str]) -> Result<String> {
        let file = sandbox.folder.join("pgbench.sql");
        fs::write(&file, script)?;
        let mut command = Command::new(&self.0);
        command.args(["--no-vacuum", "--protocol", "prepared"]).args(options).arg("--file").arg(&file);
        address(&mut command, &sandbox.remote()?)?;
        let output = command.output().context("pgbench cannot be started")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pgbench: {}", errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs pgbench for at least the length of the window, in whole seconds. Only the end of its run is counted,
    /// because its clients connect at the beginning.
    pub(crate) fn locks(&self, sandbox: &Sandbox, clients: u32, window: Window) -> Result<Measurements> {
        let (schema, logs) = (sandbox.namespace(), sandbox.folder.join("logs"));
        fs::create_dir(&logs)?;
        let (name, holder) = ("'bench/' || :client_id", "'bench-' || :client_id");
        let script = format!("{};\n{};\n", acquire_sql(&schema), release_sql(&schema));
        let script = script.replace("$1", name).replace("$2", holder);
        let seconds = (window.nanos().div_ceil(1_000_000_000) + 1).to_string();
        let (threads, clients_too) = (THREADS.min(clients).to_string(), clients.to_string());
        let prefix = logs.join("log").display().to_string();
        let options = [
            "--client",
            &clients_too,
            "--jobs",
            &threads,
            "--time",
            &seconds,
            "--log",
            "--log-prefix",
            &prefix,
        ];
        self.run(sandbox, &script, &options)?;
        let mut text = String::new();
        for log in fs::read_dir(&logs)? {
            text += &fs::read_to_string(log?.path())?;
        }
        parse_log(&text, clients, window.nanos() / 1000)
    }
}

/// Sets the server in the environment, because a password must not be in the arguments.
fn address(command: &mut Command, url: &str) -> Result<()> {
    let config: Config = url.parse()?;
    // Like all clients here.
    command.env("PGSSLMODE", "disable");
    if let Some(Host::Tcp(host)) = config.get_hosts().first() {
        command.env("PGHOST", host);
    }
    for port in config.get_ports().iter().take(1) {
        command.env("PGPORT", port.to_string());
    }
    for (name, value) in [("PGUSER", config.get_user()), ("PGDATABASE", config.get_dbname())] {
        command.envs(value.map(|value| (name, value)));
    }
    let password = config.get_password().map(|password| String::from_utf8_lossy(password).into_owned());
    command.envs(password.map(|password| ("PGPASSWORD", password)));
    Ok(())
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
