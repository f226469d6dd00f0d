//! Where engines are started: a folder, free ports, a log for each, and patience that ends.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::process::Process;
use super::programs::Programs;
use super::state::State;
use super::tls::Tls;

/// An engine that does not answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What every engine needs to be started.
pub(super) struct Lab {
    pub(super) state: State,
    pub(super) programs: Programs,
    pub(super) tls: Tls,
    /// Whether PostgreSQL waits for the disk: as it must where it is measured.
    pub(super) durable: bool,
}

/// One that was started.
pub(super) struct Server {
    name: String,
    process: Process,
    log: PathBuf,
}

impl Lab {
    /// A folder of its own for an engine.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.state.folder.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Starts an engine in the background. It is written down at once, so that it can be ended whatever happens next.
    pub(super) fn spawn(&mut self, name: &str, command: &mut Command) -> Result<Server> {
        let log = self.state.folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        // A group of its own: Ctrl-C in the terminal is not for it.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let process = Process::of(child.id())?;
        self.state.processes.push((name.to_owned(), process));
        self.state.save()?;
        Ok(Server { name: name.to_owned(), process, log })
    }

    pub(super) fn export(&mut self, name: &str, value: impl Into<String>) {
        self.state.exports.push((name.to_owned(), value.into()));
    }
}

impl Server {
    /// Waits until it is as it should be.
    pub(super) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_so() {
            if !self.process.is_running() {
                bail!("{} ended before it {what}; its last words:\n{}", self.name, tail(&self.log));
            }
            if start.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                bail!(
                    "{} has not {what} within {seconds} s; its last words:\n{}",
                    self.name,
                    tail(&self.log)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Ports of this machine that nobody listens on, all different.
pub(super) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("there is no free port on 127.0.0.1")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Runs a command to its end; if it fails, the error has what it said.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let complained = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{name} failed:\n{}", last_lines(&format!("{said}{complained}")));
    Ok(said)
}

fn tail(log: &Path) -> String {
    last_lines(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
