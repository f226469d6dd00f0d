//! State file of the running engines, so that another command, or one after a crash, can find and stop them.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    #[serde(skip)]
    file: PathBuf,
    pub(super) folder: PathBuf,
    /// Process that stops them; `None` if they run until `engines down`.
    pub(super) owner: Option<Process>,
    pub(super) ready: bool,
    pub(super) processes: Vec<(String, Process)>,
    pub(super) exports: Vec<(String, String)>,
}

impl State {
    pub(super) fn new(root: &Path, owner: Option<Process>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("leasehold-engines-").tempdir()?.keep();
        // PostgreSQL may run as another user, who must be able to enter its folder.
        #[cfg(unix)]
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let (processes, exports) = (Vec::new(), Vec::new());
        let state = Self { file: file(root), folder, owner, ready: false, processes, exports };
        state.save()?;
        Ok(state)
    }

    /// Reads the state file, if it exists.
    pub(super) fn load(root: &Path) -> Result<Option<Self>> {
        let file = file(root);
        match fs::read_to_string(&file) {
            Ok(text) => {
                let cannot = || format!("{} cannot be read: remove the file", file.display());
                let state: Self = serde_json::from_str(&text).with_context(cannot)?;
                Ok(Some(Self { file, ..state }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    pub(super) fn save(&self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.file.display());
        let folder = self.file.parent().expect("the state file has a parent folder");
        fs::create_dir_all(folder).with_context(cannot)?;
        // Replaced atomically: a concurrent reader gets the old file or the new one.
        let new = self.file.with_extension("new");
        fs::write(&new, serde_json::to_string(self)?)
            .and_then(|()| fs::rename(&new, &self.file))
            .with_context(cannot)
    }

    pub(super) fn is_up(&self) -> bool {
        let orphaned = self.owner.is_some_and(|owner| !owner.is_running());
        self.ready && !orphaned && self.processes.iter().all(|(_, process)| process.is_running())
    }

    /// Ends exactly these processes, and forgets them.
    pub(super) fn stop(self) -> Result<()> {
        let processes: Vec<_> = self.processes.iter().map(|(_, process)| *process).collect();
        stop(&processes);
        for removed in [fs::remove_dir_all(&self.folder), fs::remove_file(&self.file)] {
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error)
                        .context("the engines are stopped, but their files could not be removed");
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn shell(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.exports {
            let value = value.replace('\'', "'\\''");
            writeln!(text, "export {name}='{value}'").expect("writing to a string cannot fail");
        }
        text
    }
}

fn file(root: &Path) -> PathBuf {
    target(root).join("engines/state")
}

/// Returns the target folder of cargo.
pub(crate) fn target(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    root.join(target)
}

/// Time for a process to end after `SIGINT`; after that it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Process that outlives this one: its PID, and its start time in ticks since boot, so that a reused PID
/// is never mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
fn stop(processes: &[Process]) {
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_state_survives_writing_and_reading() {
        let text = r#"{"folder":"/tmp/with space","owner":{"pid":1,"started":2},"ready":true,"processes":[["redis",{"pid":3,"started":4}]],"exports":[["A","it's x y"]]}"#;
        let state: State = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), text);
        assert_eq!(state.shell(), "export A='it'\\''s x y'\n");
        assert!(serde_json::from_str::<State>("unknown\n").is_err());
    }

    #[test]
    fn a_process_is_stopped_and_another_with_the_same_pid_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        let other = Process { started: process.started + 1, ..process };
        assert!(process.is_running() && !other.is_running());
        stop(&[other]);
        assert!(process.is_running());
        stop(&[process]);
        // A process that ignores SIGINT was killed just now.
        child.wait().unwrap();
        assert!(!process.is_running());
    }
}
