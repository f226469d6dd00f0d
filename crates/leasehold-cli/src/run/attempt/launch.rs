//! A worker starts keepers.

use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Moment;
use leasehold::model::{Brief, ExecutionId, Task, Token};
use nix::unistd::{Pid, dup};

use super::crew::Crew;
use super::keeper::Keeper;
use super::order::Order;
use crate::exit;
use crate::output::Failure;
use crate::run::environment::Attempt;
use crate::run::lookup::look_up;
use crate::run::timing::Timing;

/// The name that a keeper is started under, so that whoever kills all processes called "leasehold" leaves it.
pub(super) const NAME: &str = "lease-keeper";
/// Signs of life are given after this part of the ttl.
const BEAT_AT: f64 = 1.0 / 3.0;

/// What all attempts of a worker have in common.
pub(crate) struct Launcher {
    file: PathBuf,
    command: Vec<OsString>,
    timing: Timing,
    store_url: String,
    crew: Arc<Crew>,
}

/// A command that is about to run.
pub(crate) struct Launched {
    pub(crate) keeper: Keeper,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
    /// What it tells of how far it has come.
    pub(crate) progress: PipeReader,
}

impl Launcher {
    /// Checks that the command can be run, and that there will be time to end it.
    pub(crate) fn new(
        command: Vec<OsString>,
        store_url: String,
        ttl: Duration,
        kill_after: Option<Duration>,
    ) -> Result<Self, Failure> {
        let timing = Timing::new(ttl, kill_after, BEAT_AT).map_err(Failure::usage)?;
        let Some(first) = command.first() else {
            return Err(Failure::command(exit::USAGE, "there is no command to run; write it after --"));
        };
        let file = look_up(first, std::env::var_os("PATH"))
            .map_err(|refusal| Failure::command(refusal.code, refusal.message))?;
        Ok(Self { file, command, timing, store_url, crew: Arc::new(Crew::gather()) })
    }

    /// Buries whoever dies. Never ends.
    pub(crate) async fn bury(&self) -> io::Result<()> {
        self.crew.bury().await
    }

    /// Starts the command for a task whose lease is valid until then.
    pub(crate) async fn launch(
        &self,
        task: &Task,
        lock_token: Option<Token>,
        valid_until: Moment,
    ) -> io::Result<Launched> {
        let (ours, theirs) = UnixStream::pair()?;
        let (progress, told) = io::pipe()?;
        let told = dup(told)?; // A copy is inherited. Nothing else is started while we have it.
        let mut child = Command::new(myself()?)
            .arg0(NAME)
            .arg(&self.file)
            .args(&self.command)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What the terminal or a shell sends to our job is for us to understand.
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_raw(child.id().try_into().map_err(io::Error::other)?);
        self.crew.hire(pid);
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (stdout, stderr) = pipes.ok_or_else(|| io::Error::other("no pipes to the command"))?;
        let progress_path = progress_path(pid, &told);
        drop(told);
        let variables = Attempt { store_url: &self.store_url, task, lock_token, progress_path }.block();
        let payload = match ExecutionId::of_task(task) {
            Some(_) => Brief::of(task).input.bytes().to_vec(),
            None => task.payload.as_str().as_bytes().to_vec(),
        };
        let order = Order { valid_until, timing: self.timing, variables, payload };
        let keeper = Keeper::new(ours, self.crew.clone())?;
        keeper.give(&order.to_bytes()).await?;
        Ok(Launched { keeper, stdout, stderr, progress })
    }
}

/// Where the command can tell how far it has come: by way of its keeper, so that it is there as long as the attempt is, and
/// also for a child to which no descriptor was passed on.
fn progress_path(keeper: Pid, told: &OwnedFd) -> Option<String> {
    cfg!(target_os = "linux").then(|| format!("/proc/{keeper}/fd/{}", told.as_raw_fd()))
}

/// This very program, also if its file has been replaced since.
fn myself() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
