//! Other projects, measured by small programs in `bench/peers/`. They are installed on demand into a folder
//! outside the repository; a failed installation is reported.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::plan::RunSize;
use crate::measure::now;
use crate::report::grouped;

/// Timeouts of npm and pip, of cargo, and of one peer in one round.
const INSTALL_TIMEOUT: Duration = Duration::from_mins(5);
const BUILD_TIMEOUT: Duration = Duration::from_mins(20);
const MEASURE_TIMEOUT: Duration = Duration::from_secs(90);

const NODE: [&str; 3] = ["graphile-worker", "pg-boss", "bullmq"];
const PYTHON: [&str; 1] = ["procrastinate"];
const RUST: [&str; 2] = ["apalis-postgres", "graphile_worker"];

/// Other project, and the command that measures it.
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Command, or the error of the installation.
    command: Result<Vec<OsString>, String>,
    folder: PathBuf,
}

pub(super) struct PeerRow {
    pub(super) name: &'static str,
    pub(super) found: Result<PeerSample, String>,
}

/// Line that the program of a peer prints. Unsupported measurements are omitted.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PeerSample {
    /// Enqueued tasks per second: one, and 100 with each call.
    pub(super) enqueue: Option<f64>,
    pub(super) bulk: Option<f64>,
    /// Drained tasks per second, with default settings, and with the best recommended settings.
    pub(super) drain_default: Option<f64>,
    pub(super) drain_tuned: Option<f64>,
    /// Time from enqueue to start, in milliseconds, with the best settings.
    pub(super) p50_millis: Option<f64>,
    pub(super) p99_millis: Option<f64>,
}

impl Peer {
    pub(super) fn install_all(folder: &Path) -> Result<Vec<Self>> {
        // Set by cargo, which starts this program.
        let sources =
            std::env::var_os("CARGO_MANIFEST_DIR").context("start the benchmark with cargo xtask bench")?;
        let sources = PathBuf::from(sources).join("peers");
        let mut all = Vec::new();
        let mut add = |names: &[&'static str],
                       installed: Result<PathBuf>,
                       program: &dyn Fn(&Path, &str) -> Vec<OsString>| {
            let installed = installed.map_err(|error| format!("{error:#}"));
            for name in names {
                let command = installed.as_ref().map(|folder| program(folder, name)).map_err(Clone::clone);
                all.push(Self { name, command, folder: folder.to_owned() });
            }
        };
        add(&NODE, install_node(&sources, folder), &|folder, name| {
            vec!["node".into(), folder.join(format!("{name}.mjs")).into()]
        });
        add(&PYTHON, install_python(&sources, folder), &|folder, name| {
            vec![folder.join("venv/bin/python").into(), folder.join(format!("{name}_peer.py")).into()]
        });
        for name in RUST {
            add(&[name], install_rust(&sources, folder, name), &|folder, name| {
                vec![folder.join("release").join(name).into()]
            });
        }
        for peer in &all {
            if let Err(error) = &peer.command {
                eprintln!("{}: not measured: {error}", peer.name);
            }
        }
        Ok(all)
    }

    pub(super) fn measure(&self, size: &RunSize) -> PeerRow {
        let found = self
            .command
            .clone()
            .and_then(|command| self.try_measure(&command, size).map_err(|error| format!("{error:#}")));
        match &found {
            Err(error) => eprintln!("  {}: {error}", self.name),
            Ok(found) => {
                let rate = |rate: Option<f64>| rate.map(grouped).unwrap_or_default();
                eprintln!(
                    "  {}: enqueue {}/s, bulk {}/s, drain {}/s by default, {}/s tuned, start p50 {:.1} ms",
                    self.name,
                    rate(found.enqueue),
                    rate(found.bulk),
                    rate(found.drain_default),
                    rate(found.drain_tuned),
                    found.p50_millis.unwrap_or(f64::NAN),
                );
            }
        }
        PeerRow { name: self.name, found }
    }

    fn try_measure(&self, arguments: &[OsString], size: &RunSize) -> Result<PeerSample> {
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).current_dir(&self.folder);
        command.env("PEER_TASKS", size.tasks.to_string()).env("PEER_SECONDS", size.seconds.to_string());
        command.env("PEER_START_SECONDS", size.start_seconds.to_string());
        let output = finish(&mut command, MEASURE_TIMEOUT, &self.folder)?;
        let line = output.lines().last().context("the peer printed nothing")?;
        serde_json::from_str(line).with_context(|| format!("the peer printed '{line}'"))
    }
}

fn install_node(sources: &Path, folder: &Path) -> Result<PathBuf> {
    let target = copy(&sources.join("node"), &folder.join("node"))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&target);
    finish(&mut npm, INSTALL_TIMEOUT, folder)?;
    Ok(target)
}

fn install_python(sources: &Path, folder: &Path) -> Result<PathBuf> {
    let target = copy(&sources.join("python"), &folder.join("python"))?;
    let mut venv = Command::new("python3");
    finish(venv.args(["-m", "venv", "venv"]).current_dir(&target), INSTALL_TIMEOUT, folder)?;
    let mut pip = Command::new(target.join("venv/bin/pip"));
    pip.args(["install", "--quiet", "--requirement", "requirements.txt"]).current_dir(&target);
    finish(&mut pip, INSTALL_TIMEOUT, folder)?;
    Ok(target)
}

fn install_rust(sources: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let package = copy(&sources.join("rust"), &folder.join("rust"))?;
    copy(&sources.join("rust/src"), &package.join("src"))?;
    copy(&sources.join("rust/src/bin"), &package.join("src/bin"))?;
    let target = folder.join("rust-target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--quiet", "--features", name, "--bin", name]);
    cargo.arg("--target-dir").arg(&target).current_dir(&package);
    finish(&mut cargo, BUILD_TIMEOUT, folder)?;
    Ok(target)
}

/// Copies the files of a folder, without its subfolders.
fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(to.to_owned())
}

/// Runs a command, and kills it after the timeout; returns its output.
fn finish(command: &mut Command, timeout: Duration, folder: &Path) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (output, errors) = (folder.join("output"), folder.join("errors"));
    command.stdout(File::create(&output)?).stderr(File::create(&errors)?).stdin(std::process::Stdio::null());
    let begun = now();
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Duration::from_nanos(now() - begun) > timeout {
            child.kill()?;
            child.wait()?;
            bail!("{name} did not end within {} s", timeout.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let errors = fs::read_to_string(&errors).unwrap_or_default();
    ensure!(status.success(), "{name} ended with {status}: {}", error_summary(&errors));
    Ok(fs::read_to_string(&output)?)
}

/// Returns the most informative line: some programs print their version last.
fn error_summary(errors: &str) -> &str {
    let mut lines = errors.lines().map(str::trim).filter(|line| !line.is_empty()).rev();
    let named = lines.clone().find(|line| line.to_lowercase().contains("error"));
    named.or_else(|| lines.next()).unwrap_or("no error output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_shown_and_not_the_version_below_it() {
        assert_eq!(
            error_summary("x:1\nTypeError: ValidationError URL\n    at x\n\nNode.js v20.1.0\n"),
            "TypeError: ValidationError URL"
        );
        assert_eq!(error_summary("it is cold\n\n"), "it is cold");
        assert_eq!(error_summary(""), "no error output");
    }
}
