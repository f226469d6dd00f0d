//! PID namespace for a command. Its first process is INIT: when INIT dies, the kernel kills every
//! process of the namespace before anything else happens. INIT dies with MONITOR.
//!
//! ```text
//! MONITOR ─┬─ INIT         process 1 of the namespace: parent of every orphan in it
//!         └─ COMMAND      process 2
//! ```
//!
//! COMMAND is a child of MONITOR, which therefore learns how COMMAND ends and when it stops, as
//! without a namespace. A process cannot enter a PID namespace, only its children can be created in
//! one: so MONITOR forks a MAKER, which creates the namespace, forks INIT, then COMMAND as a sibling
//! of its own, and exits. INIT is reparented to MONITOR.
//!
//! Unless this process runs as root, a user namespace around the PID namespace gives the permission
//! to create it. Our user is the only one in it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, dup2_stdin, getegid, geteuid};

use super::Contain;
use super::mode::unavailable;
use crate::exit;
use crate::run::sys;

#[derive(Debug)]
pub(in crate::run) struct Namespace {
    init: Pid,
    control: PipeWriter,
}

impl Namespace {
    /// Forks a command into a namespace of its own; `run` runs in the command. Returns the pid of
    /// the command as seen from outside. `for_monitor` and `for_command` are pipe ends and sockets, each
    /// for one process only: a second open copy of a pipe end would hide the death of its owner.
    pub(in crate::run) fn fork<K, C>(
        for_monitor: K,
        for_command: C,
        run: impl FnOnce(C) -> i32,
    ) -> io::Result<(Pid, Self, K)> {
        let (wait, control) = io::pipe()?;
        let (mut reports, report) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Parent { child: maker } => {
                drop((wait, report, for_command));
                let created = receive(&mut reports).and_then(|errno| {
                    check(errno)?;
                    Ok((receive(&mut reports)?, receive(&mut reports)?))
                });
                while waitpid(maker, None) == Err(Errno::EINTR) {}
                let (init, command) = created.map_err(|error| unavailable(Contain::Pidns, &error))?;
                let mut namespace = Self { init: Pid::from_raw(init), control };
                // INIT has been reparented to this process by now.
                namespace.control.write_all(b"b")?;
                check(receive(&mut reports)?).map_err(|error| unavailable(Contain::Pidns, &error))?;
                Ok((Pid::from_raw(command), namespace, for_monitor))
            }
            ForkResult::Child => {
                drop((control, reports, for_monitor));
                match create() {
                    Ok(ForkedAs::Init) => {
                        drop(for_command);
                        sys::exit_now(init(wait, report))
                    }
                    Ok(ForkedAs::Command) => {
                        drop((wait, report));
                        sys::exit_now(run(for_command))
                    }
                    Ok(ForkedAs::Both { init, command }) => {
                        for number in [0, init.as_raw(), command.as_raw()] {
                            send(&report, number);
                        }
                    }
                    Err(errno) => send(&report, errno as i32),
                }
                sys::exit_now(exit::SUCCESS)
            }
        }
    }

    /// Returns the pid of INIT. Killing INIT kills every process of the namespace.
    pub(in crate::run) fn init(&self) -> Pid {
        self.init
    }

    /// Notifies INIT that the command has ended: INIT exits as soon as no other process is left.
    pub(in crate::run) fn close_when_empty(&self) {
        let _ = (&self.control).write_all(b"e");
    }

    /// Tests whether a namespace and its processes can be created, by creating them.
    pub(super) fn probe() -> io::Result<()> {
        // In a process of its own, because the parent of MAKER becomes the parent of COMMAND.
        let errno = fork_and_wait(|| {
            let maker = match sys::fork() {
                Ok(ForkResult::Child) => sys::exit_now(try_create()),
                Ok(ForkResult::Parent { child }) => child,
                Err(errno) => return errno as i32,
            };
            let mut created = Errno::EINTR as i32;
            // INIT ends only after COMMAND was waited for, and MAKER waits for INIT.
            while let Ok(status) = waitpid(None, None) {
                if let WaitStatus::Exited(pid, code) = status
                    && pid == maker
                {
                    created = code;
                }
            }
            created
        })?;
        check(errno)
    }
}

/// Forks a process that exits with what `run` returns, waits for it, and returns its exit code.
fn fork_and_wait(run: impl FnOnce() -> i32) -> Result<i32, Errno> {
    match sys::fork()? {
        ForkResult::Child => sys::exit_now(run()),
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, code) => Ok(code),
            _ => Err(Errno::EINTR),
        },
    }
}

/// Creates a namespace with INIT and COMMAND, which end at once. Runs in MAKER, and returns in each of the three
/// processes. Returns zero or an error number.
fn try_create() -> i32 {
    let Ok((mut wait, forked)) = io::pipe() else { return Errno::EMFILE as i32 };
    match create() {
        Ok(ForkedAs::Init) => {
            drop(forked);
            // Without INIT, COMMAND could not be forked.
            let _ = wait.read_exact(&mut [0]);
            mount_proc().map_or_else(|errno| errno as i32, |()| 0)
        }
        Ok(ForkedAs::Command) => 0,
        Ok(ForkedAs::Both { init, .. }) => {
            drop(forked);
            match waitpid(init, None) {
                Ok(WaitStatus::Exited(_, code)) => code,
                Ok(_) => Errno::EINTR as i32,
                Err(errno) => errno as i32,
            }
        }
        Err(errno) => errno as i32,
    }
}

/// Process in which [`create`] returned.
enum ForkedAs {
    Init,
    Command,
    /// MAKER, which has created both.
    Both {
        init: Pid,
        command: Pid,
    },
}

/// Creates the namespace, INIT and COMMAND. Runs in MAKER.
fn create() -> Result<ForkedAs, Errno> {
    enter()?;
    let init = match sys::fork()? {
        ForkResult::Child => return Ok(ForkedAs::Init),
        ForkResult::Parent { child } => child,
    };
    match sys::fork_sibling()? {
        ForkResult::Child => Ok(ForkedAs::Command),
        ForkResult::Parent { child: command } => Ok(ForkedAs::Both { init, command }),
    }
}

/// Arranges that children of this process are created in a new PID namespace, and gives the process
/// its own mount namespace.
fn enter() -> Result<(), Errno> {
    let (user, group) = (geteuid(), getegid());
    let mut new = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS;
    if !Uid::is_root(user) {
        new |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(new)?;
    if new.contains(CloneFlags::CLONE_NEWUSER) {
        let write = |file: &str, text: String| {
            let written = std::fs::write(format!("/proc/self/{file}"), text);
            written.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
        };
        write("uid_map", format!("{user} {user} 1\n"))?;
        write("setgroups", "deny".to_owned())?;
        write("gid_map", format!("{group} {group} 1\n"))?;
    }
    Ok(())
}

/// Mounts `/proc` as this namespace sees it. Runs in INIT. The mount is invisible outside: only
/// this mount is private, so that other mounts propagate as they would without leasehold.
fn mount_proc() -> Result<(), Errno> {
    mount(None::<&str>, "/proc", None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
}

/// Runs INIT until it exits. Returns its exit code.
fn init(mut wait: PipeReader, report: PipeWriter) -> i32 {
    let mut byte = [0];
    // With SIGCHLD ignored, orphans that die are reaped automatically. Stdin is replaced because
    // the payload is for the command only.
    sys::ignore(Signal::SIGCHLD);
    let detached = File::open("/dev/null").and_then(|null| Ok(dup2_stdin(null)?));
    if detached.is_err() || wait.read_exact(&mut byte).is_err() {
        return exit::INTERNAL;
    }
    // MONITOR is the parent by now. If MONITOR has died in between, the end of the pipe reveals it.
    let ready = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .and_then(|()| mount_proc())
        .and_then(|()| if geteuid().is_root() { Ok(()) } else { sys::drop_capabilities() });
    let _ = nix::sys::prctl::set_name(c"lease-init");
    send(&report, ready.map_or_else(|errno| errno as i32, |()| 0));
    drop(report);
    if ready.is_err() || wait.read_exact(&mut byte).is_err() {
        return exit::INTERNAL;
    }
    // The command has been reaped. With SIGCHLD ignored, `waitpid` returns only when no child is left.
    while waitpid(None, None) == Err(Errno::EINTR) {}
    exit::SUCCESS
}

fn send(mut to: &PipeWriter, number: i32) {
    let _ = to.write_all(&number.to_le_bytes());
}

fn receive(from: &mut PipeReader) -> io::Result<i32> {
    let mut number = [0; 4];
    from.read_exact(&mut number)?;
    Ok(i32::from_le_bytes(number))
}

/// Converts an error number into a result; zero means success.
fn check(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}
