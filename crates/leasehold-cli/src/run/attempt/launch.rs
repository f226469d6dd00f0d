//! A worker starts keepers.

use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold::Moment;
use leasehold::model::{Brief, ExecutionId, Task, Token, Ttl};
use nix::unistd::{Pid, dup};

use super::crew::Crew;
use super::keeper::Keeper;
use super::order::Order;
use crate::exit;
use crate::output::Failure;
use crate::run::contain::Contain;
use crate::run::environment::{Attempt, Execution};
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
    around: Around,
    contain: Contain,
    crew: Arc<Crew>,
}

/// What a command finds around it.
enum Around {
    /// All that is around us, and where the store is.
    Ours { store_url: String },
    /// These variables and nothing else, and this folder.
    Clean { variables: Vec<(String, OsString)>, directory: PathBuf },
}

/// A command that finds nothing of ours around it.
pub(crate) struct CleanCommand {
    pub(crate) command: Vec<OsString>,
    /// Also where the program is looked for, if it is a relative path.
    pub(crate) directory: PathBuf,
    pub(crate) variables: Vec<(String, OsString)>,
    pub(crate) ttl: Ttl,
    pub(crate) contain: Contain,
}

/// The command of a worker.
pub(crate) struct WorkerCommand {
    pub(crate) command: Vec<OsString>,
    pub(crate) store_url: String,
    pub(crate) ttl: Duration,
    pub(crate) kill_after: Option<Duration>,
    pub(crate) contain: Contain,
}

/// What a command is to know of its execution.
pub(crate) struct ExecutionStart<'a> {
    pub(crate) task: &'a Task,
    pub(crate) lock_token: Option<Token>,
    pub(crate) payload: Vec<u8>,
    pub(crate) payload_file: &'a Path,
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
    /// Checks that the command can be run and contained, and that there will be time to end it. To be called while this
    /// process has one thread.
    pub(crate) fn new(command: WorkerCommand) -> Result<Self, Failure> {
        let WorkerCommand { command, store_url, ttl, kill_after, contain } = command;
        let timing = Timing::new(ttl, kill_after, BEAT_AT).map_err(Failure::usage)?;
        let Some(first) = command.first() else {
            return Err(Failure::command(exit::USAGE, "there is no command to run; write it after --"));
        };
        let file = look_up(first, std::env::var_os("PATH"))
            .map_err(|refusal| Failure::command(refusal.code, refusal.message))?;
        contain.check().map_err(|error| Failure::config(error.to_string()))?;
        let around = Around::Ours { store_url };
        Ok(Self { file, command, timing, around, contain, crew: Arc::new(Crew::gather()) })
    }

    /// The same for leases that last as long as this.
    pub(crate) fn lasting(self, ttl: Duration, kill_after: Option<Duration>) -> Result<Self, Failure> {
        let timing = Timing::new(ttl, kill_after, BEAT_AT).map_err(Failure::usage)?;
        Ok(Self { timing, ..self })
    }

    /// The same for a command that finds nothing of ours around it, one of many.
    pub(crate) fn clean(clean: CleanCommand, crew: Arc<Crew>) -> Result<Self, Failure> {
        let CleanCommand { command, directory, variables, ttl, contain } = clean;
        let timing = Timing::new(ttl.as_duration(), None, BEAT_AT).map_err(Failure::config)?;
        let first = command.first().cloned().unwrap_or_default();
        let is_path = first.as_encoded_bytes().contains(&b'/');
        let name = if is_path { directory.join(&first).into_os_string() } else { first };
        let file =
            look_up(&name, std::env::var_os("PATH")).map_err(|refusal| Failure::config(refusal.message))?;
        // From the folder that the command runs in, ours would not be found.
        let file = std::path::absolute(file).map_err(Failure::internal)?;
        contain.check().map_err(|error| Failure::config(error.to_string()))?;
        Ok(Self { file, command, timing, around: Around::Clean { variables, directory }, contain, crew })
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
        let store_url = match &self.around {
            Around::Ours { store_url } => store_url.as_str(),
            Around::Clean { .. } => "",
        };
        let payload = match ExecutionId::of_task(task) {
            Some(_) => Brief::of(task).input.bytes().to_vec(),
            None => task.payload.as_str().as_bytes().to_vec(),
        };
        let variables = |progress_path| Attempt { store_url, task, lock_token, progress_path }.block();
        self.start(valid_until, payload, variables).await
    }

    /// Starts the command for an execution whose lease is valid until then.
    pub(crate) async fn launch_execution(
        &self,
        start: ExecutionStart<'_>,
        valid_until: Moment,
    ) -> io::Result<Launched> {
        let ExecutionStart { task, lock_token, payload, payload_file } = start;
        let around = match &self.around {
            Around::Clean { variables, .. } => variables.as_slice(),
            Around::Ours { .. } => &[],
        };
        let variables =
            |progress_path| Execution { around, task, lock_token, payload_file, progress_path }.block();
        self.start(valid_until, payload, variables).await
    }

    async fn start(
        &self,
        valid_until: Moment,
        payload: Vec<u8>,
        variables: impl FnOnce(Option<String>) -> Vec<u8>,
    ) -> io::Result<Launched> {
        let (ours, theirs) = UnixStream::pair()?;
        let (progress, told) = io::pipe()?;
        let mut command = Command::new(myself()?);
        if let Around::Clean { directory, .. } = &self.around {
            command.env_clear().current_dir(directory);
        }
        let one = self.crew.one_at_a_time();
        let told = dup(told)?; // A copy is inherited. Nothing else is started while we have it.
        command
            .arg0(NAME)
            .arg(&self.file)
            .args(&self.command)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What the terminal or a shell sends to our job is for us to understand.
            .process_group(0);
        let (pid, mut child) = self.crew.hire(|| command.spawn())?;
        let pipes = child.stdout.take().zip(child.stderr.take());
        let (stdout, stderr) = pipes.ok_or_else(|| io::Error::other("no pipes to the command"))?;
        let progress_path = self.progress_path(pid, &told);
        drop((told, one));
        let (timing, contain, variables) = (self.timing, self.contain, variables(progress_path));
        let order = Order { valid_until, timing, contain, variables, payload };
        let keeper = Keeper::new(ours, pid, self.crew.clone())?;
        keeper.give(&order.to_bytes()).await?;
        Ok(Launched { keeper, stdout, stderr, progress })
    }

    /// Where the command can tell how far it has come: by way of a process of ours, so that it is there as long as the attempt
    /// is, and also for a child to which no descriptor was passed on.
    fn progress_path(&self, watchdog: Pid, told: &OwnedFd) -> Option<String> {
        let process = match self.contain {
            Contain::Pidns => Pid::from_raw(1), // The first process of the namespace.
            _ => watchdog,
        };
        cfg!(target_os = "linux").then(|| format!("/proc/{process}/fd/{}", told.as_raw_fd()))
    }
}

/// This very program, also if its file has been replaced since.
fn myself() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
