//! Start of monitors by a worker, and what a monitor is told.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::{ExecutionId, ExecutionSpec, Task, Token, Ttl};
use nix::unistd::{Pid, dup};

use super::pool::{MonitorHandle, MonitorPool};
use crate::exit;
use crate::output::Failure;
use crate::run::contain::Contain;
use crate::run::environment::{execution_variables, task_variables};
use crate::run::lookup::look_up;
use crate::run::timing::Timing;

/// Process name of a monitor. It differs from "leasehold" so that a kill of all processes with that
/// name spares the monitor.
pub(super) const NAME: &str = "lease-monitor";
/// Fraction of the ttl after which a heartbeat is sent.
const HEARTBEAT_AT: f64 = 1.0 / 3.0;

/// Parameters that all attempts of a worker share.
#[derive(Clone)]
pub(crate) struct Launcher {
    file: PathBuf,
    command: Vec<OsString>,
    timing: Timing,
    environment: Environment,
    contain: Contain,
    pool: Arc<MonitorPool>,
}

#[derive(Clone)]
enum Environment {
    /// The whole environment of this process, plus the URL of the store.
    Inherited { store_url: String },
    /// Only these variables, and this folder.
    Clean { variables: Vec<(String, OsString)>, directory: PathBuf },
}

/// Command that is about to run.
pub(crate) struct Launched {
    pub(crate) monitor: MonitorHandle,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
    /// Read end of the pipe to which the command writes its progress.
    pub(crate) progress: PipeReader,
}

impl Launcher {
    /// Checks that the command can be run and contained, and that the ttl leaves time to end it.
    /// Must be called while this process has one thread.
    pub(crate) fn new(
        command: Vec<OsString>,
        store_url: String,
        ttl: Duration,
        kill_after: Option<Duration>,
        contain: Contain,
    ) -> Result<Self, Failure> {
        let timing = Timing::new(ttl, kill_after, HEARTBEAT_AT).map_err(Failure::usage)?;
        let Some(first) = command.first() else {
            return Err(Failure::command(exit::USAGE, "there is no command to run; write it after --"));
        };
        let file = look_up(first, std::env::var_os("PATH"))?;
        contain.check().map_err(|error| Failure::config(error.to_string()))?;
        let environment = Environment::Inherited { store_url };
        Ok(Self { file, command, timing, environment, contain, pool: Arc::new(MonitorPool::new()) })
    }

    pub(crate) fn with_ttl(self, ttl: Duration, kill_after: Option<Duration>) -> Result<Self, Failure> {
        let timing = Timing::new(ttl, kill_after, HEARTBEAT_AT).map_err(Failure::usage)?;
        Ok(Self { timing, ..self })
    }

    /// Creates a launcher for one of several commands that inherit nothing from the environment of
    /// this process. Makes the same checks as [`Self::new`]. A relative path of the program is resolved
    /// against `directory`, its working directory.
    pub(crate) fn clean(
        command: Vec<OsString>,
        directory: PathBuf,
        variables: Vec<(String, OsString)>,
        ttl: Ttl,
        contain: Contain,
        pool: Arc<MonitorPool>,
    ) -> Result<Self, Failure> {
        let timing = Timing::new(ttl.as_duration(), None, HEARTBEAT_AT).map_err(Failure::config)?;
        let first = command.first().cloned().unwrap_or_default();
        let is_path = first.as_encoded_bytes().contains(&b'/');
        let name = if is_path { directory.join(&first).into_os_string() } else { first };
        let file =
            look_up(&name, std::env::var_os("PATH")).map_err(|failure| Failure::config(failure.message()))?;
        // A relative path would not resolve from the working directory of the command.
        let file = std::path::absolute(file).map_err(Failure::internal)?;
        contain.check().map_err(|error| Failure::config(error.to_string()))?;
        let environment = Environment::Clean { variables, directory };
        Ok(Self { file, command, timing, environment, contain, pool })
    }

    pub(crate) async fn reap(&self) -> io::Result<()> {
        self.pool.reap().await
    }

    /// Starts the command for a task whose lease is valid until `valid_until`.
    pub(crate) async fn launch(
        &self,
        task: &Task,
        lock_token: Option<Token>,
        valid_until: BootInstant,
    ) -> io::Result<Launched> {
        let store_url = match &self.environment {
            Environment::Inherited { store_url } => store_url.as_str(),
            Environment::Clean { .. } => "",
        };
        let payload = match ExecutionId::of_task(task) {
            Some(_) => ExecutionSpec::of(task).input.bytes().to_vec(),
            None => task.payload.as_str().as_bytes().to_vec(),
        };
        let variables = |progress_path| task_variables(store_url, task, lock_token, progress_path);
        self.start(valid_until, payload, variables).await
    }

    /// Starts the command for an execution whose lease is valid until `valid_until`.
    pub(crate) async fn launch_execution(
        &self,
        task: &Task,
        lock_token: Option<Token>,
        payload: &[u8],
        payload_file: &Path,
        valid_until: BootInstant,
    ) -> io::Result<Launched> {
        let inherited = match &self.environment {
            Environment::Clean { variables, .. } => variables.as_slice(),
            Environment::Inherited { .. } => &[],
        };
        let variables =
            |progress_path| execution_variables(inherited, task, lock_token, payload_file, progress_path);
        self.start(valid_until, payload.to_vec(), variables).await
    }

    async fn start(
        &self,
        valid_until: BootInstant,
        payload: Vec<u8>,
        variables: impl FnOnce(Option<String>) -> Vec<u8>,
    ) -> io::Result<Launched> {
        let (ours, theirs) = UnixStream::pair()?;
        let (progress, writer) = io::pipe()?;
        // This program again, even if its file has been replaced since.
        let program =
            if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { std::env::current_exe()? };
        let mut command = Command::new(program);
        if let Environment::Clean { directory, .. } = &self.environment {
            command.env_clear().current_dir(directory);
        }
        let start_lock = self.pool.start_lock();
        let writer = dup(writer)?; // The copy is inherited; no other monitor is started while it is open.
        command
            .arg0(NAME)
            .arg(&self.file)
            .args(&self.command)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A process group of its own: the worker interprets the signals that the terminal or a
            // shell sends to its job.
            .process_group(0);
        let (pid, mut child) = self.pool.add(|| command.spawn())?;
        // Closes our copy of the link's other end: a write fails once WATCHDOG has exited.
        drop(command);
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (stdout, stderr) = pipes.ok_or_else(|| io::Error::other("no pipes to the command"))?;
        let progress_path = self.progress_path(pid, &writer);
        drop((writer, start_lock));
        let (timing, contain, variables) = (self.timing, self.contain, variables(progress_path));
        let spec = LaunchSpec { valid_until, timing, contain, variables, payload };
        let mut monitor = MonitorHandle::new(ours, pid, self.pool.clone())?;
        monitor.write_all(&spec.to_bytes()).await?;
        Ok(Launched { monitor, stdout, stderr, progress })
    }

    /// Returns the path to which the command writes its progress. The path refers to a descriptor
    /// of one of our processes, so that it exists as long as the attempt, also for a child that did
    /// not inherit the descriptor.
    fn progress_path(&self, watchdog: Pid, writer: &OwnedFd) -> Option<String> {
        let process = match self.contain {
            Contain::Pidns => Pid::from_raw(1), // First process of the namespace.
            _ => watchdog,
        };
        cfg!(target_os = "linux").then(|| format!("/proc/{process}/fd/{}", writer.as_raw_fd()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaunchSpec {
    pub(super) valid_until: BootInstant,
    pub(super) timing: Timing,
    pub(super) contain: Contain,
    /// Variables as `NAME=value`, each followed by a NUL.
    pub(super) variables: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl LaunchSpec {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [
            self.valid_until.as_micros(),
            micros(self.timing.kill_after),
            micros(self.timing.margin),
            micros(self.timing.after_renewal),
            self.contain.number(),
            self.variables.len() as u64,
            self.payload.len() as u64,
        ];
        let mut bytes = numbers.map(u64::to_le_bytes).concat();
        bytes.extend_from_slice(&self.variables);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut head = [[0; 8]; 7];
        from.read_exact(head.as_flattened_mut())?;
        let [valid_until, kill_after, margin, after_renewal, contain, variables, payload] =
            head.map(u64::from_le_bytes);
        let mut text = |length: u64| {
            let mut text = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            from.read_exact(&mut text).map(|()| text)
        };
        let (variables, payload) = (text(variables)?, text(payload)?);
        let [kill_after, margin, after_renewal] =
            [kill_after, margin, after_renewal].map(Duration::from_micros);
        let timing = Timing { kill_after, margin, after_renewal };
        let contain =
            Contain::from_number(contain).ok_or_else(|| io::Error::other("unknown containment mode"))?;
        Ok(Self { valid_until: BootInstant::from_micros(valid_until), timing, contain, variables, payload })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program that is started is this test binary, which runs no test and reads nothing.
    #[tokio::test]
    async fn a_start_fails_if_the_monitor_exits_before_it_has_read_the_payload() {
        let (file, command) = (PathBuf::from("no-such-test"), vec![OsString::from("no-such-test")]);
        let timing = Timing::new(Duration::from_secs(30), None, HEARTBEAT_AT).unwrap();
        let environment = Environment::Inherited { store_url: String::new() };
        let launcher =
            Launcher { file, command, timing, environment, contain: Contain::None, pool: Arc::default() };
        let valid_until = BootInstant::now().plus(Duration::from_mins(10));
        let start = launcher.start(valid_until, vec![b'x'; 1 << 20], |_| Vec::new());
        let started = tokio::time::timeout(Duration::from_mins(1), start).await;
        assert!(started.expect("it does not wait for a process that has exited").is_err());
    }

    #[test]
    fn a_launch_spec_is_read_as_it_was_written() {
        let [kill_after, margin, after_renewal] = [5000, 100, 20_000].map(Duration::from_millis);
        let timing = Timing { kill_after, margin, after_renewal };
        let (variables, payload) = (b"A=b\0".to_vec(), b"{\"a\": 1}".to_vec());
        let contain = Contain::Pidns;
        let spec =
            LaunchSpec { valid_until: BootInstant::from_micros(77), timing, contain, variables, payload };
        assert_eq!(LaunchSpec::read(spec.to_bytes().as_slice()).unwrap(), spec);
        assert!(LaunchSpec::read(&spec.to_bytes()[..61]).is_err());
    }
}
