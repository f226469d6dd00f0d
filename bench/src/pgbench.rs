//! Finds and runs pgbench, the benchmark of PostgreSQL.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::sandbox::Sandbox;

/// Variable with the folder of PostgreSQL's programs, set by `cargo xtask`.
const PROGRAMS: &str = "LEASEHOLD_TEST_POSTGRES_BIN";

/// Path of the program.
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
        std::fs::write(&file, script)?;
        let mut command = Command::new(&self.0);
        command.args(["--no-vacuum", "--protocol", "prepared"]).args(options).arg("--file").arg(&file);
        address(&mut command, &sandbox.remote()?)?;
        let output = command.output().context("pgbench cannot be started")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pgbench: {}", errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
