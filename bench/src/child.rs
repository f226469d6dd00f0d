//! This program in another process, connected by pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

const READY: &str = "ready";

/// Running process. It is killed when this value is dropped.
pub(crate) struct ChildProcess {
    name: &'static str,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts this program with a hidden command and its argument.
    pub(crate) fn start(name: &'static str, argument: &impl Serialize) -> Result<Self> {
        // This file is the running program even if it was rebuilt since.
        let linux = Path::new("/proc/self/exe");
        let program = if cfg!(target_os = "linux") { Ok(linux.to_owned()) } else { std::env::current_exe() };
        let mut child = Command::new(program.context("the path of this program is unknown")?)
            .args([name, &serde_json::to_string(argument)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("the process '{name}' cannot be started"))?;
        let output = BufReader::new(child.stdout.take().expect("the process was started with pipes"));
        Ok(Self { name, child, output })
    }

    /// Waits until the process has called [`read_after_ready`].
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        ensure!(self.read_line()? == READY, "the process '{}' is not ready", self.name);
        Ok(())
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().expect("the process was started with pipes");
        Ok(writeln!(input, "{line}")?)
    }

    pub(crate) fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints for the parent process that this one is ready, and returns the next line of its input. The line is
/// empty if the parent process has exited.
pub(crate) fn read_after_ready() -> Result<String> {
    println!("{READY}");
    read_line()
}

pub(crate) fn read_line() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}
