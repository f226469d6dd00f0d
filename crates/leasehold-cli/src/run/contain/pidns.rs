//! A PID namespace for a command. Its first process is INIT: when that dies, the kernel kills every process of the
//! namespace before anything else happens. INIT dies with KEEPER.
//!
//! ```text
//! KEEPER ─┬─ INIT         process 1 of the namespace: parent of every orphan in it
//!         └─ COMMAND      process 2
//! ```
//!
//! COMMAND is a child of KEEPER, which so learns how it ends and when it stops, as without a namespace. A process
//! cannot enter a PID namespace, only its children can be born in one: so KEEPER forks a MAKER, which makes the namespace,
//! forks INIT, then COMMAND as a sibling of its own, and ends. INIT falls to KEEPER.
//!
//! Unless we are root, a user namespace around it gives the right to do so. Ours is the only user in it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, dup2_stdin, getegid, geteuid};

use super::Contain;
use super::choice::unavailable;
use crate::exit;
use crate::run::sys;

/// A PID namespace with a command in it.
#[derive(Debug)]
pub(in crate::run) struct Namespace {
    init: Pid,
    hold: PipeWriter,
}

/// What the processes of a namespace have in their hands. An end of a pipe in a second pair of hands would hide the death
/// of the first.
pub(in crate::run) struct Pipes<K, C> {
    /// For KEEPER alone.
    pub(in crate::run) keepers: K,
    /// For COMMAND alone.
    pub(in crate::run) commands: C,
}

impl Namespace {
    /// Forks a command into a namespace of its own; `begin` is what the command does. Gives its process id as we see it.
    pub(in crate::run) fn fork<K, C>(
        pipes: Pipes<K, C>,
        begin: impl FnOnce(C) -> i32,
    ) -> io::Result<(Pid, Self, K)> {
        let Pipes { keepers, commands } = pipes;
        let (wait, hold) = io::pipe()?;
        let (mut told, tell) = io::pipe()?;
        match sys::fork()? {
            ForkResult::Parent { child: maker } => {
                drop((wait, tell, commands));
                let made = receive(&mut told).and_then(|errno| {
                    check(errno)?;
                    Ok((receive(&mut told)?, receive(&mut told)?))
                });
                while waitpid(maker, None) == Err(Errno::EINTR) {}
                let (init, command) = made.map_err(|error| unavailable(Contain::Pidns, &error))?;
                let mut namespace = Self { init: Pid::from_raw(init), hold };
                // INIT is our child by now.
                namespace.hold.write_all(b"b")?;
                check(receive(&mut told)?).map_err(|error| unavailable(Contain::Pidns, &error))?;
                Ok((Pid::from_raw(command), namespace, keepers))
            }
            ForkResult::Child => {
                drop((hold, told, keepers));
                match make() {
                    Ok(Born::Init) => {
                        drop(commands);
                        sys::exit_now(init(wait, tell))
                    }
                    Ok(Born::Command) => {
                        drop((wait, tell));
                        sys::exit_now(begin(commands))
                    }
                    Ok(Born::Both { init, command }) => {
                        for number in [0, init.as_raw(), command.as_raw()] {
                            send(&tell, number);
                        }
                    }
                    Err(errno) => send(&tell, errno as i32),
                }
                sys::exit_now(exit::SUCCESS)
            }
        }
    }

    /// INIT. To kill it is to kill everything.
    pub(in crate::run) fn init(&self) -> Pid {
        self.init
    }

    /// The command has ended: INIT is to end as soon as nothing else is left.
    pub(in crate::run) fn close_when_empty(&self) {
        let _ = (&self.hold).write_all(b"e");
    }

    /// Whether one can be made, by making one.
    pub(super) fn probe() -> io::Result<()> {
        let status = match sys::fork()? {
            ForkResult::Parent { child } => waitpid(child, None)?,
            ForkResult::Child => {
                let made = enter().and_then(|()| match sys::fork()? {
                    ForkResult::Child => {
                        sys::exit_now(mount_proc().map_or_else(|errno| errno as i32, |()| 0))
                    }
                    ForkResult::Parent { child } => match waitpid(child, None)? {
                        WaitStatus::Exited(_, code) => Ok(code),
                        _ => Err(Errno::EINTR),
                    },
                });
                sys::exit_now(made.unwrap_or_else(|errno| errno as i32))
            }
        };
        match status {
            WaitStatus::Exited(_, errno) => check(errno),
            _ => Err(io::Error::other("it was killed")),
        }
    }
}

/// Where one is after [`make`].
enum Born {
    Init,
    Command,
    /// In MAKER, which has made them.
    Both {
        init: Pid,
        command: Pid,
    },
}

/// In MAKER.
fn make() -> Result<Born, Errno> {
    enter()?;
    let init = match sys::fork()? {
        ForkResult::Child => return Ok(Born::Init),
        ForkResult::Parent { child } => child,
    };
    match sys::fork_sibling()? {
        ForkResult::Child => Ok(Born::Command),
        ForkResult::Parent { child: command } => Ok(Born::Both { init, command }),
    }
}

/// From here on children of this process are born in a new PID namespace, and it has mounts of its own.
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

/// In INIT: `/proc` as this namespace sees it. Others do not see it: only this mount is private, so that other mounts go
/// where they would go without us.
fn mount_proc() -> Result<(), Errno> {
    mount(None::<&str>, "/proc", None::<&str>, MsFlags::MS_PRIVATE, None::<&str>)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
}

/// INIT, until it ends.
fn init(mut wait: PipeReader, tell: PipeWriter) -> i32 {
    let mut word = [0];
    // Orphans that die leave no trace. The payload of a command is for the command.
    sys::ignore(Signal::SIGCHLD);
    let begun = File::open("/dev/null").and_then(|null| Ok(dup2_stdin(null)?));
    if begun.is_err() || wait.read_exact(&mut word).is_err() {
        return exit::INTERNAL;
    }
    // KEEPER is our parent by now. If it has died in between, the pipe tells.
    let ready = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .and_then(|()| mount_proc())
        .and_then(|()| if geteuid().is_root() { Ok(()) } else { sys::drop_capabilities() });
    let _ = nix::sys::prctl::set_name(c"lease-init");
    send(&tell, ready.map_or_else(|errno| errno as i32, |()| 0));
    drop(tell);
    if ready.is_err() || wait.read_exact(&mut word).is_err() {
        return exit::INTERNAL;
    }
    // The command is dead and buried. With SIGCHLD ignored, this waits until there is no child at all.
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

/// An error number, or none.
fn check(errno: i32) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}
