//! The command until it is executed: a forked process that waits for "go", and for what it is to know by then.

use std::ffi::{CString, OsString};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use leasehold::Moment;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, execve, getpid, getppid, setpgid};

use super::contain::{Namespace, Pipes, Prepared};
use super::terminal::Terminal;
use super::tree::Below;
use super::{environment, signals, sys};
use crate::exit;

/// The command, as its parent sees it before it runs.
#[derive(Debug)]
pub(super) struct Stub {
    /// Its number, which is also that of its process group.
    pub(super) pid: Pid,
    go: PipeWriter,
    trouble: PipeReader,
    /// The PID namespace that it is in, if it has one of its own.
    namespace: Option<Namespace>,
}

/// Why a command that was told to go did not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotStarted {
    /// Its lease had come to its end in the meantime.
    TooLate,
    /// The system would not execute it.
    Refused(Errno),
}

/// What the command is to be.
#[derive(Debug)]
pub(super) struct Image {
    file: CString,
    arguments: Vec<CString>,
}

/// Where the command is to run.
pub(super) struct Place<'a> {
    /// What it takes before it starts, if it is to run in the foreground.
    pub(super) terminal: &'a Terminal,
    pub(super) contained: &'a Prepared,
}

impl Image {
    /// None if the command contains a NUL.
    pub(super) fn new(command: &[OsString], file: &Path) -> Option<Self> {
        let arguments = command.iter().map(|argument| CString::new(argument.as_bytes()).ok());
        let file = CString::new(file.as_os_str().as_bytes()).ok()?;
        Some(Self { file, arguments: arguments.collect::<Option<_>>()? })
    }
}

impl Stub {
    /// Forks it. `link` is not for it, and comes back: in a second pair of hands, it would hide the death of the first.
    pub(super) fn fork(
        image: &Image,
        place: &Place<'_>,
        link: UnixStream,
    ) -> std::io::Result<(Self, UnixStream)> {
        let Place { terminal, contained } = *place;
        let (wait, go) = std::io::pipe()?;
        let (trouble, report) = std::io::pipe()?;
        let parent = getpid();
        if let Prepared::Pidns = contained {
            let pipes = Pipes { keepers: (link, go, trouble), commands: (wait, report) };
            let begin = |(wait, report)| {
                // From inside, the parent outside has no number, and the terminal's group has none either.
                become_command(&Waiting { parent: None, wait, report }, image, &Terminal::none())
            };
            let (pid, namespace, (link, go, trouble)) = Namespace::fork(pipes, begin)?;
            let _ = setpgid(pid, pid);
            return Ok((Self { pid, go, trouble, namespace: Some(namespace) }, link));
        }
        let forked = match contained {
            Prepared::Cgroup { cgroup, required } => match cgroup.fork() {
                Err(_) if !required => sys::fork()?,
                forked => forked?,
            },
            Prepared::Pidns | Prepared::None => sys::fork()?,
        };
        match forked {
            ForkResult::Parent { child } => {
                // Both sides do this, so that it is done whoever comes first.
                let _ = setpgid(child, child);
                Ok((Self { pid: child, go, trouble, namespace: None }, link))
            }
            ForkResult::Child => {
                drop((link, go, trouble)); // With `go` in its own hands, it would never see that its parent is gone.
                let waiting = Waiting { parent: Some(parent), wait, report };
                sys::exit_now(become_command(&waiting, image, terminal))
            }
        }
    }

    /// Where to look for what the command starts: below this process.
    pub(super) fn below(&self, contained: &Prepared) -> Below {
        let init = self.namespace.as_ref().map(Namespace::init);
        Below {
            roots: vec![getpid()],
            ours: init.into_iter().collect(),
            group: Some(self.pid),
            cgroup: contained.cgroup().cloned(),
            init,
            ..Below::default()
        }
    }

    /// The command is dead and buried.
    pub(super) fn is_buried(&self) {
        if let Some(namespace) = &self.namespace {
            namespace.close_when_empty();
        }
    }

    /// Whether the command cannot take the terminal by itself, because it does not see the groups outside.
    pub(super) fn needs_terminal_from_parent(&self) -> bool {
        self.namespace.is_some()
    }

    /// Lets the command run, with these variables, if it starts before `not_after`.
    pub(super) fn go(&mut self, not_after: Moment, variables: &[u8]) -> std::io::Result<()> {
        let mut message = Vec::with_capacity(16 + variables.len());
        message.extend_from_slice(&not_after.as_micros().to_le_bytes());
        message.extend_from_slice(&(variables.len() as u64).to_le_bytes());
        message.extend_from_slice(variables);
        self.go.write_all(&message)
    }

    /// Why it did not start. To be asked when the process has ended; none if it did start.
    pub(super) fn not_started(&mut self) -> Option<NotStarted> {
        let mut report = [0; 4];
        self.trouble.read_exact(&mut report).ok()?;
        Some(match i32::from_le_bytes(report) {
            TOO_LATE => NotStarted::TooLate,
            errno => NotStarted::Refused(Errno::from_raw(errno)),
        })
    }
}

/// No error number of the system.
const TOO_LATE: i32 = 0;

/// What the stub has in its hands.
struct Waiting {
    /// None if it cannot be seen from here.
    parent: Option<Pid>,
    wait: PipeReader,
    report: PipeWriter,
}

/// Returns only if the command does not run: with the exit code of this process.
fn become_command(waiting: &Waiting, image: &Image, terminal: &Terminal) -> i32 {
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    if !dies_with(waiting.parent) {
        return exit::INTERNAL;
    }
    signals::let_in();
    let mut environment = environment::inherited();
    let Some((not_after, variables)) = wait_for_go(&waiting.wait) else {
        return exit::INTERNAL; // KEEPER did not get the lock, or is gone. It has said why.
    };
    let variables = variables.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
    environment.extend(variables.filter_map(|variable| CString::new(variable).ok()));
    terminal.take_for_command();
    sys::reset(Signal::SIGPIPE); // The runtime of our language ignores it.
    let trouble = if Moment::now() < not_after { execute(image, &environment) as i32 } else { TOO_LATE };
    let _ = (&waiting.report).write_all(&trouble.to_le_bytes());
    exit::NOT_RUNNABLE
}

/// Asks the system to kill this process when its parent dies. False if that has happened already, as far as can be seen:
/// the end of the pipe tells too.
fn dies_with(parent: Option<Pid>) -> bool {
    #[cfg(target_os = "linux")]
    if nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).is_err() {
        return false;
    }
    parent.is_none_or(|parent| getppid() == parent)
}

/// The deadline and the variables; none if the pipe ends first.
fn wait_for_go(mut wait: &PipeReader) -> Option<(Moment, Vec<u8>)> {
    let mut head = [[0; 8]; 2];
    wait.read_exact(head.as_flattened_mut()).ok()?;
    let [not_after, length] = head.map(u64::from_le_bytes);
    let mut variables = vec![0; usize::try_from(length).ok()?];
    wait.read_exact(&mut variables).ok()?;
    Some((Moment::from_micros(not_after), variables))
}

/// Returns only on failure.
fn execute(image: &Image, environment: &[CString]) -> Errno {
    let Err(errno) = execve(&image.file, &image.arguments, environment);
    if errno != Errno::ENOEXEC {
        return errno;
    }
    // A script without a first line that names its interpreter: as shells and execvp do, take it for a shell script.
    let shell = c"/bin/sh".to_owned();
    let mut arguments = vec![shell.clone(), image.file.clone()];
    arguments.extend(image.arguments.iter().skip(1).cloned());
    let Err(errno) = execve(&shell, &arguments, environment);
    errno
}
