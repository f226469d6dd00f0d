//! Process that outlives this one, identified by its PID and start time, so that a reused PID is never mistaken for it.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Time for a process to end after `SIGINT`; after that it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// PID, and start time in ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    started: u64,
}

impl Process {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let (started, _) = stat(pid).with_context(|| format!("process {pid} is not visible in /proc"))?;
        Ok(Self { pid, started })
    }

    pub(super) fn this() -> Result<Self> {
        Self::of(std::process::id())
    }

    /// Whether the process is running. A zombie is not.
    pub(super) fn is_running(&self) -> bool {
        stat(self.pid).is_some_and(|(started, state)| started == self.started && state != 'Z' && state != 'X')
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_running()) {
            // An error means that the process has ended in between.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Stops all processes: with `SIGINT` first, so that they can release shared resources.
pub(super) fn stop(processes: &[Process]) {
    for process in processes {
        process.signal(Signal::INT);
    }
    let signalled = Instant::now();
    while processes.iter().any(Process::is_running) && signalled.elapsed() < STOP_TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
    for process in processes {
        process.signal(Signal::KILL);
    }
}

/// Returns the start time and the state of a process.
fn stat(pid: u32) -> Option<(u64, char)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets, and may contain any character.
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    Some((fields.get(19)?.parse().ok()?, fields.first()?.chars().next()?))
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for Process {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        let (pid, started) = text.split_once(' ').context("expected two numbers")?;
        Ok(Self { pid: pid.parse()?, started: started.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_stopped_and_another_with_the_same_pid_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        let other = Process { started: process.started + 1, ..process };
        assert!(process.is_running() && !other.is_running());
        stop(&[other]);
        assert!(process.is_running());
        stop(&[process.to_string().parse().unwrap()]);
        assert!(!process.is_running());
        child.wait().unwrap();
    }
}
