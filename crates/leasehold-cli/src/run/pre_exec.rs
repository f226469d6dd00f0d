//! Pre-exec stage of the command: a forked process that waits for "go" and for its variables.

use std::ffi::{CString, OsString};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use leasehold::BootInstant;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, execve, getpid, getppid, setpgid};

use super::contain::{Containment, Namespace};
use super::terminal::Terminal;
use super::tree::ProcessTree;
use super::{environment, signals, sys};
use crate::exit;

/// Forked process that waits for "go" before it executes the command, as seen by its parent.
#[derive(Debug)]
pub(super) struct PreExecChild {
    /// Pid of the command, and the id of its process group.
    pub(super) pid: Pid,
    go: PipeWriter,
    error: PipeReader,
    /// PID namespace of the command, if it has one of its own.
    namespace: Option<Namespace>,
}

/// Why a command that received "go" did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotStarted {
    /// The deadline for the start had passed.
    TooLate,
    /// The system refused to execute the command.
    Refused(Errno),
}

#[derive(Debug)]
pub(super) struct Image {
    file: CString,
    arguments: Vec<CString>,
}

impl Image {
    /// Converts the command for `execve`; `None` if the command contains a NUL.
    pub(super) fn new(command: &[OsString], file: &Path) -> Option<Self> {
        let arguments = command.iter().map(|argument| CString::new(argument.as_bytes()).ok());
        let file = CString::new(file.as_os_str().as_bytes()).ok()?;
        Some(Self { file, arguments: arguments.collect::<Option<_>>()? })
    }
}

impl PreExecChild {
    /// Forks the child, which takes the terminal before it starts if it runs in the foreground. `for_monitor` are
    /// pipe ends and sockets that are closed in all other processes and returned to the caller: a second open
    /// copy would hide that MONITOR has closed its own, or has died.
    pub(super) fn fork<K>(
        image: &Image,
        terminal: &Terminal,
        containment: &Containment,
        for_monitor: K,
    ) -> std::io::Result<(Self, K)> {
        let (wait, go) = std::io::pipe()?;
        let (error, report) = std::io::pipe()?;
        let parent = getpid();
        if let Containment::Pidns = containment {
            let run = |(wait, report)| {
                // Inside the namespace neither the parent nor the terminal's process group has a number.
                become_command(None, &wait, report, image, &Terminal::none())
            };
            let (pid, namespace, (for_monitor, go, error)) =
                Namespace::fork((for_monitor, go, error), (wait, report), run)?;
            let _ = setpgid(pid, pid);
            return Ok((Self { pid, go, error, namespace: Some(namespace) }, for_monitor));
        }
        let forked = match containment {
            Containment::Cgroup { cgroup, required } => match cgroup.fork() {
                Err(_) if !required => sys::fork()?,
                forked => forked?,
            },
            Containment::Pidns | Containment::None => sys::fork()?,
        };
        match forked {
            ForkResult::Parent { child } => {
                // Parent and child both set the group, so that it is set whichever runs first.
                let _ = setpgid(child, child);
                Ok((Self { pid: child, go, error, namespace: None }, for_monitor))
            }
            ForkResult::Child => {
                // With its own copy of `go`, it would miss its parent's death.
                drop((for_monitor, go, error));
                sys::exit_now(become_command(Some(parent), &wait, report, image, terminal))
            }
        }
    }

    /// Returns the set of processes that the command starts: those below this process.
    pub(super) fn tree(&self, containment: &Containment) -> ProcessTree {
        let init = self.init();
        ProcessTree {
            roots: vec![getpid()],
            excluded: init.into_iter().collect(),
            group: Some(self.pid),
            cgroup: containment.cgroup().cloned(),
            init,
            ..ProcessTree::default()
        }
    }

    /// Returns the first process of the PID namespace, if the command has one of its own. It dies when all others
    /// of the namespace are dead.
    pub(super) fn init(&self) -> Option<Pid> {
        self.namespace.as_ref().map(Namespace::init)
    }

    pub(super) fn reaped(&self) {
        if let Some(namespace) = &self.namespace {
            namespace.close_when_empty();
        }
    }

    /// Whether the command cannot take the terminal by itself, because process groups outside its
    /// namespace are invisible to it.
    pub(super) fn needs_terminal_from_parent(&self) -> bool {
        self.namespace.is_some()
    }

    /// Lets the command run with these variables, if it starts before `not_after`.
    pub(super) fn go(&mut self, not_after: BootInstant, variables: &[u8]) -> std::io::Result<()> {
        let mut message = Vec::with_capacity(16 + variables.len());
        message.extend_from_slice(&not_after.as_micros().to_le_bytes());
        message.extend_from_slice(&(variables.len() as u64).to_le_bytes());
        message.extend_from_slice(variables);
        self.go.write_all(&message)
    }

    /// Returns why the command did not start, or `None` if it did. Must be called after the process
    /// has ended.
    pub(super) fn not_started(&mut self) -> Option<NotStarted> {
        let mut report = [0; 4];
        self.error.read_exact(&mut report).ok()?;
        Some(match i32::from_le_bytes(report) {
            TOO_LATE => NotStarted::TooLate,
            errno => NotStarted::Refused(Errno::from_raw(errno)),
        })
    }
}

/// Report for a missed deadline; distinct from every error number of the system.
const TOO_LATE: i32 = 0;

/// Waits for "go" and executes the command. `parent` is `None` if the parent is not visible in this
/// namespace. Returns only if the command does not run, with the exit code of this process.
fn become_command(
    parent: Option<Pid>,
    wait: &PipeReader,
    mut report: PipeWriter,
    image: &Image,
    terminal: &Terminal,
) -> i32 {
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    if !dies_with(parent) {
        return exit::INTERNAL;
    }
    signals::unblock_all();
    let mut environment = environment::inherited();
    let Some((not_after, variables)) = wait_for_go(wait) else {
        return exit::INTERNAL; // MONITOR did not get the lock, or has exited. MONITOR has reported why.
    };
    let variables = variables.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
    environment.extend(variables.filter_map(|variable| CString::new(variable).ok()));
    terminal.take_for_command();
    sys::reset(Signal::SIGPIPE); // The Rust runtime ignores SIGPIPE.
    let error = if BootInstant::now() < not_after { execute(image, &environment) as i32 } else { TOO_LATE };
    let _ = report.write_all(&error.to_le_bytes());
    exit::NOT_RUNNABLE
}

/// Requests SIGKILL for this process when its parent dies. Returns `false` if the parent has
/// visibly died already; otherwise the end of the pipe reveals it.
fn dies_with(parent: Option<Pid>) -> bool {
    #[cfg(target_os = "linux")]
    if nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).is_err() {
        return false;
    }
    parent.is_none_or(|parent| getppid() == parent)
}

/// Reads the deadline and the variables; `None` if the pipe ends first.
fn wait_for_go(mut wait: &PipeReader) -> Option<(BootInstant, Vec<u8>)> {
    let mut head = [[0; 8]; 2];
    wait.read_exact(head.as_flattened_mut()).ok()?;
    let [not_after, length] = head.map(u64::from_le_bytes);
    let mut variables = vec![0; usize::try_from(length).ok()?];
    wait.read_exact(&mut variables).ok()?;
    Some((BootInstant::from_micros(not_after), variables))
}

/// Executes the file. Returns only on failure.
fn execute(image: &Image, environment: &[CString]) -> Errno {
    let Err(errno) = execve(&image.file, &image.arguments, environment);
    if errno != Errno::ENOEXEC {
        return errno;
    }
    // A script without a `#!` line: run it as a shell script, as shells and execvp do.
    let shell = c"/bin/sh".to_owned();
    let mut arguments = vec![shell.clone(), image.file.clone()];
    arguments.extend(image.arguments.iter().skip(1).cloned());
    let Err(errno) = execve(&shell, &arguments, environment);
    errno
}
