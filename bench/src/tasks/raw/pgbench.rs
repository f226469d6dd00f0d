//! PostgreSQL without leasehold, by pgbench: what the server can do with a client that costs next to nothing.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::postgres::{create, fetch, insert};
use crate::place::Place;
use crate::tasks::figure::Figure;

/// Where `cargo xtask` found PostgreSQL's programs.
const PROGRAMS: &str = "LEASEHOLD_TEST_POSTGRES_BIN";

/// The program, if it is there.
#[derive(Debug, Clone)]
pub(in crate::tasks) struct Pgbench(PathBuf);

impl Pgbench {
    pub(in crate::tasks) fn find() -> Option<Self> {
        let program = PathBuf::from(std::env::var_os(PROGRAMS)?).join("pgbench");
        program.is_file().then_some(Self(program))
    }

    pub(in crate::tasks) fn enqueue(
        &self,
        place: &Place,
        clients: u32,
        batch: u32,
        seconds: f64,
    ) -> Result<Figure> {
        create(place, 0)?;
        let script = insert(&place.space(), batch) + ";\n";
        let whole_seconds = format!("{:.0}", seconds.ceil());
        self.run(place, &script, &["--client", &clients.to_string(), "--time", &whole_seconds], batch)
    }

    /// One client takes so many and deletes them, again and again.
    pub(in crate::tasks) fn drain(&self, place: &Place, tasks: u64, batch: u32) -> Result<Figure> {
        create(place, tasks)?;
        let (schema, again) = (place.space(), (tasks / u64::from(batch)).to_string());
        let script = format!(
            "WITH taken AS ({}) SELECT array_agg(id)::text AS ids, string_agg(payload, ' ') AS payloads FROM taken \\gset\n\
             DELETE FROM {schema}.raw WHERE id = ANY (:ids::bigint[]);\n",
            fetch(&schema, batch)
        );
        self.run(place, &script, &["--client", "1", "--transactions", &again], batch)
    }

    fn run(&self, place: &Place, script: &str, options: &[&str], batch: u32) -> Result<Figure> {
        let file = place.folder.join("pgbench.sql");
        std::fs::write(&file, script)?;
        let mut command = Command::new(&self.0);
        command.args(["--no-vacuum", "--protocol", "prepared"]).args(options).arg("--file").arg(&file);
        address(&mut command, &place.remote()?)?;
        let output = command.output().context("pgbench cannot be started")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pgbench: {}", errors.trim());
        let text = String::from_utf8_lossy(&output.stdout);
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let tps = tps.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        let rate = tps.context("pgbench does not say how many transactions it made")? * f64::from(batch);
        Ok(Figure { rate: Some(rate), times: None })
    }
}

/// By the environment: a password has no place among the arguments.
fn address(command: &mut Command, url: &str) -> Result<()> {
    let config: Config = url.parse()?;
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
