//! `cargo xtask torture`: runs `leasehold torture` on each engine, one after the other, and prints a
//! table of the figures.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::cargo::{cargo, start, wait};
use crate::engines::{ScopedEngines, Skip, target};

#[derive(Args)]
pub(crate) struct Torture {
    /// Minutes for each engine
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Engines to test [default: all]
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    store: Vec<Engine>,
    /// Build and run the release binary
    #[arg(long)]
    release: bool,
    /// Run this binary, and build none
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    binary: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    Sqlite,
    /// A server over SQLite.
    Http,
    Postgres,
    Redis,
    Dynamodb,
}

impl Engine {
    /// Returns the variable with the URL of the engine, if it is a program of its own.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite | Self::Http => None,
            Self::Postgres => Some("LEASEHOLD_TEST_POSTGRES"),
            Self::Redis => Some("LEASEHOLD_TEST_REDIS"),
            Self::Dynamodb => Some("LEASEHOLD_TEST_DYNAMODB"),
        }
    }
}

/// Header of the table; [`row`] has the same columns.
const HEADER: &str = "\
| engine | minutes | grants | renewals | tasks | ticks | faults | hand-over p50, p99 | recovery at most | stale writes rejected | memory of the coordinator | violations |
|---|---|---|---|---|---|---|---|---|---|---|---|";

pub(crate) fn run(root: &Path, args: &Torture) -> Result<ExitCode> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build(root, args.release)?,
    };
    let chosen = if args.store.is_empty() { Engine::value_variants() } else { &args.store };
    let needs_servers = chosen.iter().any(|engine| engine.variable().is_some());
    let engines = needs_servers.then(|| ScopedEngines::new(root, &Skip::default())).transpose()?;
    let variables = engines.as_ref().map_or(&[][..], |engines| &engines.variables);
    let mut rows = Vec::new();
    let mut are_fit = true;
    for engine in chosen {
        eprintln!("{engine:?}: {} minutes", args.minutes);
        let soak = Soak { binary: &binary, variables, minutes: args.minutes };
        match soak.run(*engine) {
            Ok((report, memory)) => {
                are_fit &= report["fit"] == true;
                rows.push(row(&report, memory));
            }
            Err(error) => {
                are_fit = false;
                eprintln!("{engine:?}: {error:#}");
            }
        }
    }
    println!("{HEADER}");
    for row in rows {
        println!("{row}");
    }
    Ok(if are_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn build(root: &Path, release: bool) -> Result<PathBuf> {
    let mut build = cargo(root, ["build", "-p", "leasehold-cli", "--features", "full"]);
    if release {
        build.arg("--release");
    }
    ensure!(wait(&mut start(&mut build)?)? == 0, "leasehold-cli does not build");
    Ok(target(root).join(if release { "release" } else { "debug" }).join("leasehold"))
}

/// Run of one engine.
struct Soak<'a> {
    binary: &'a Path,
    variables: &'a [(String, String)],
    minutes: u64,
}

impl Soak<'_> {
    /// Returns the report, and the peak memory of the coordinator in kibibytes.
    fn run(&self, engine: Engine) -> Result<(Value, u64)> {
        let folder = tempfile::tempdir()?;
        let mut server = None;
        let mut variables = Vec::new();
        let store = match engine.variable() {
            Some(variable) => {
                let exported = self.variables.iter().find(|(name, _)| name == variable);
                let url = exported.map(|(_, value)| value.clone()).or_else(|| std::env::var(variable).ok());
                url.with_context(|| format!("{variable} is not set"))?
            }
            None => format!("sqlite:{}", folder.path().join("torture.db").display()),
        };
        if engine == Engine::Dynamodb {
            self.output(&store, &["store", "init"])?;
        }
        let store = if engine == Engine::Http {
            let created =
                self.output(&store, &["--json", "token", "new", "--name", "torture", "--role", "operator"])?;
            let created: Value = serde_json::from_str(&created)?;
            let token = created["token"].as_str().context("token new has printed no token")?.to_owned();
            variables.push(("LEASEHOLD_API_TOKEN", token));
            let (address, process) = self.serve(&store)?;
            server = Some(process);
            format!("http://{address}")
        } else {
            store
        };
        let seconds = (self.minutes * 60).to_string();
        let mut output = tempfile::tempfile()?;
        let mut command = self.command(&store, &["--json", "torture", "--seconds", &seconds]);
        command.envs(variables).stdout(File::try_clone(&output)?);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.binary.display()))?;
        let mut memory = 0;
        while child.try_wait()?.is_none() {
            memory = memory.max(peak_memory(child.id()));
            sleep(Duration::from_millis(500));
        }
        drop(server);
        let mut text = String::new();
        output.rewind()?;
        output.read_to_string(&mut text)?;
        let report: Value = serde_json::from_str(&text).context("torture has printed no report")?;
        if report["fit"] != true {
            eprintln!("{report:#}");
        }
        Ok((report, memory))
    }

    fn command(&self, store: &str, words: &[&str]) -> Command {
        let mut command = Command::new(self.binary);
        command.args(words).stdin(Stdio::null()).env("LEASEHOLD_STORE", store);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn output(&self, store: &str, words: &[&str]) -> Result<String> {
        let output = self.command(store, words).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "leasehold {} has failed", words.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts a server, and returns its address.
    fn serve(&self, store: &str) -> Result<(String, Server)> {
        let mut command = self.command(store, &["--json", "serve", "--listen", "127.0.0.1:0"]);
        let mut server = Server(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        let Some(output) = server.0.stdout.take() else { bail!("the server has no output") };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let listening: Value = serde_json::from_str(&line).context("the server does not listen")?;
        let address = listening["listening"].as_str().context("the server has printed no address")?;
        Ok((address.to_owned(), server))
    }
}

/// Server that ends when it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the peak memory of a process in kibibytes.
fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

fn row(report: &Value, memory: u64) -> String {
    let operations = &report["operations"];
    let faults: u64 =
        report["faults"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
    let millis = |value: &Value| value.as_f64().unwrap_or_default();
    format!(
        "| {} | {:.1} | {} | {} | {} | {} | {faults} | {:.0} ms, {:.0} ms | {:.0} ms | {} | {} MiB | {} |",
        report["engine"].as_str().unwrap_or_default(),
        millis(&report["seconds"]) / 60.0,
        operations["grants"],
        operations["renewals"],
        operations["tasks"],
        operations["ticks"],
        millis(&report["handover"]["p50"]),
        millis(&report["handover"]["p99"]),
        millis(&report["recovery"]["max"]),
        operations["staleWritesRejected"],
        memory / 1024,
        report["violations"],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let report =
            json!({ "engine": "redis", "seconds": 90, "faults": { "kill": 2, "stop": 3 }, "violations": 0 });
        let row = row(&report, 20_480);
        let columns = |line: &str| line.matches('|').count();
        assert_eq!(columns(&row), columns(HEADER.lines().next().unwrap()), "{row}");
        assert!(row.starts_with("| redis | 1.5 |") && row.ends_with("| 20 MiB | 0 |"), "{row}");
        assert!(row.contains("| 5 |"), "{row}");
    }

    #[test]
    fn the_peak_memory_of_a_process_is_read() {
        assert!(peak_memory(std::process::id()) > 0);
    }
}
