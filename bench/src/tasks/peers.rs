//! Other projects, driven by small programs of ours in `bench/peers/`. They are installed into a folder outside the
//! repository when they are asked for; one that does not install says why.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::row::Extent;
use crate::measure::now;
use crate::stats::grouped;

/// How long npm or pip, how long cargo, and how long one peer in one round may take.
const INSTALL: Duration = Duration::from_mins(5);
const BUILD: Duration = Duration::from_mins(20);
const MEASURE: Duration = Duration::from_secs(90);

const NODE: [&str; 3] = ["graphile-worker", "pg-boss", "bullmq"];
const PYTHON: [&str; 1] = ["procrastinate"];
const RUST: [&str; 2] = ["apalis-postgres", "graphile_worker"];

/// Another project, and how to start what drives it.
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Or why it is not there.
    command: Result<Vec<OsString>, String>,
    folder: PathBuf,
}

/// What a peer gave in one round.
pub(super) struct PeerRow {
    pub(super) name: &'static str,
    /// Or why there is none.
    pub(super) found: Result<PeerFigures, String>,
}

/// The one line that the program of a peer writes. What it cannot do is left out.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PeerFigures {
    /// Tasks per second: one by one, and 100 with each call.
    pub(super) enqueue: Option<f64>,
    pub(super) bulk: Option<f64>,
    /// Tasks per second, with the settings that it has by default, and with the best that it recommends.
    pub(super) drain_default: Option<f64>,
    pub(super) drain_tuned: Option<f64>,
    /// From adding to start, in milliseconds, with the best settings.
    pub(super) p50_millis: Option<f64>,
    pub(super) p99_millis: Option<f64>,
}

impl Peer {
    /// Installs all of them into this folder.
    pub(super) fn install_all(folder: &Path) -> Result<Vec<Self>> {
        // Set by cargo, which starts this program.
        let sources = std::env::var_os("CARGO_MANIFEST_DIR").context("start this by cargo xtask bench")?;
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
            if let Err(why) = &peer.command {
                eprintln!("{}: not measured: {why}", peer.name);
            }
        }
        Ok(all)
    }

    /// Once.
    pub(super) fn measure(&self, extent: &Extent) -> PeerRow {
        let found = self
            .command
            .clone()
            .and_then(|command| self.try_measure(&command, extent).map_err(|error| format!("{error:#}")));
        match &found {
            Err(why) => eprintln!("  {}: {why}", self.name),
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

    fn try_measure(&self, words: &[OsString], extent: &Extent) -> Result<PeerFigures> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&self.folder);
        command.env("PEER_TASKS", extent.tasks.to_string()).env("PEER_SECONDS", extent.seconds.to_string());
        command.env("PEER_START_SECONDS", extent.start_seconds.to_string());
        let output = finish(&mut command, MEASURE, &self.folder)?;
        let line = output.lines().last().context("it wrote nothing")?;
        serde_json::from_str(line).with_context(|| format!("it wrote '{line}'"))
    }
}

fn install_node(sources: &Path, folder: &Path) -> Result<PathBuf> {
    let target = copy(&sources.join("node"), &folder.join("node"))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&target);
    finish(&mut npm, INSTALL, folder)?;
    Ok(target)
}

fn install_python(sources: &Path, folder: &Path) -> Result<PathBuf> {
    let target = copy(&sources.join("python"), &folder.join("python"))?;
    let mut venv = Command::new("python3");
    finish(venv.args(["-m", "venv", "venv"]).current_dir(&target), INSTALL, folder)?;
    let mut pip = Command::new(target.join("venv/bin/pip"));
    pip.args(["install", "--quiet", "--requirement", "requirements.txt"]).current_dir(&target);
    finish(&mut pip, INSTALL, folder)?;
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
    finish(&mut cargo, BUILD, folder)?;
    Ok(target)
}

/// The files of a folder, without its folders.
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

/// Runs it to its end, which comes in time or is made; what it wrote.
fn finish(command: &mut Command, patience: Duration, folder: &Path) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (output, errors) = (folder.join("output"), folder.join("errors"));
    command.stdout(File::create(&output)?).stderr(File::create(&errors)?).stdin(std::process::Stdio::null());
    let begun = now();
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Duration::from_nanos(now() - begun) > patience {
            child.kill()?;
            child.wait()?;
            bail!("{name} was not done after {} s", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let errors = fs::read_to_string(&errors).unwrap_or_default();
    ensure!(status.success(), "{name} ended with {status}: {}", gist(&errors));
    Ok(fs::read_to_string(&output)?)
}

/// The line that says most: some end with the name of their version.
fn gist(errors: &str) -> &str {
    let mut lines = errors.lines().map(str::trim).filter(|line| !line.is_empty()).rev();
    let named = lines.clone().find(|line| line.to_lowercase().contains("error"));
    named.or_else(|| lines.next()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_told_and_not_the_version_that_stands_below_it() {
        assert_eq!(
            gist("x:1\nTypeError: ValidationError URL\n    at x\n\nNode.js v20.1.0\n"),
            "TypeError: ValidationError URL"
        );
        assert_eq!(gist("it is cold\n\n"), "it is cold");
        assert_eq!(gist(""), "without a word");
    }
}
