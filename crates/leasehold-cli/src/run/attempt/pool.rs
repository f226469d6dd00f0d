//! All monitors of a worker, their handles, and the cleanup of the processes that a killed monitor
//! leaves behind.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::exit;
use crate::run::contain::Cgroup;
use crate::run::link::{self, Exited, Message, MessageReader, Received};
use crate::run::tree::{self, Pass, ProcessTree, Reaped};

/// Maximum number of kill passes before surviving processes are reported.
const MAX_PASSES: u32 = 100;

#[derive(Default)]
pub(crate) struct MonitorPool {
    /// WATCHDOG processes that have not been reaped; each is the parent of its monitor.
    watchdogs: Mutex<BTreeSet<Pid>>,
    /// Signals a change when one of them has exited.
    exits: watch::Sender<()>,
    /// Children inherited across `exec`; never signalled.
    inherited: Vec<Pid>,
    starting: Mutex<()>,
}

impl MonitorPool {
    /// Creates an empty pool and makes this process a subreaper: orphans below it become its children.
    pub(crate) fn new() -> Self {
        let inherited = tree::inherited_children();
        tree::become_subreaper();
        Self { inherited, ..Self::default() }
    }

    /// Serializes starts: a descriptor that one monitor is to inherit must not leak into another
    /// monitor that is started at the same time.
    pub(super) fn start_lock(&self) -> MutexGuard<'_, ()> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a monitor. The lock on the set is held during the start, so the monitor cannot be
    /// reaped before it is registered.
    pub(super) fn add(&self, start: impl FnOnce() -> io::Result<Child>) -> io::Result<(Pid, Child)> {
        let mut watchdogs = self.watchdogs();
        let child = start()?;
        let pid = Pid::from_raw(child.id().try_into().map_err(io::Error::other)?);
        watchdogs.insert(pid);
        Ok((pid, child))
    }

    /// Reaps every child that dies, monitor or orphan. Never returns except on error.
    pub(crate) async fn reap(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        loop {
            self.reap_exited();
            children.recv().await;
        }
    }

    fn reap_exited(&self) {
        // As long as this lock is held, no pid in the set is reaped, so the system cannot reuse it.
        let mut watchdogs = self.watchdogs();
        let mut any_exited = false;
        loop {
            match tree::reap() {
                Reaped::Ended(pid, _) => any_exited |= watchdogs.remove(&pid),
                Reaped::Stopped(..) => {}
                Reaped::Nothing | Reaped::NoChildren => break,
            }
        }
        drop(watchdogs);
        if any_exited {
            self.exits.send_replace(());
        }
    }

    async fn wait_for_exit(&self, watchdog: Pid) {
        let mut exits = self.exits.subscribe();
        // The sender lives as long as `self`.
        let _ = exits.wait_for(|()| !self.watchdogs().contains(&watchdog)).await;
    }

    /// Ends an attempt whose monitor or watchdog was killed: both processes and everything that they
    /// leave behind.
    async fn end_attempt(&self, watchdog: Pid, command: Option<Pid>) {
        // WATCHDOG last: as long as any process of the tree is alive, WATCHDOG can still end it if
        // this process is killed too.
        self.kill_until_dead(|| self.kill_below(watchdog)).await;
        self.kill_watchdog(watchdog);
        self.kill_until_dead(|| self.kill_orphans(command)).await;
    }

    async fn kill_until_dead(&self, kill: impl Fn() -> Pass) {
        let (mut empty_passes, mut last) = (0, Pass::default());
        for _ in 0..MAX_PASSES {
            let pass = kill();
            self.reap_exited();
            // One pass may miss a process that was forked meanwhile; the next pass does not.
            empty_passes = if pass.alive == 0 { empty_passes + 1 } else { 0 };
            if empty_passes == 2 {
                return;
            }
            if !pass.refused.is_empty() {
                // Processes of other users: the write that kills the cgroup of a dead WATCHDOG kills them too.
                let _ = tokio::task::spawn_blocking(Cgroup::end_abandoned_below_own).await;
            }
            sleep(Duration::from_millis(if pass.alive == 0 { 1 } else { 20 })).await;
            last = pass;
        }
        tree::report_survivors(&last);
    }

    /// Makes one kill pass over the processes below a watchdog, if the watchdog is alive.
    fn kill_below(&self, watchdog: Pid) -> Pass {
        // While the lock is held, the watchdog is not reaped and its pid is not reused.
        let watchdogs = self.watchdogs();
        if !watchdogs.contains(&watchdog) {
            return Pass::default();
        }
        ProcessTree { roots: vec![watchdog], ..ProcessTree::default() }.kill()
    }

    fn kill_watchdog(&self, watchdog: Pid) {
        // While the lock is held, the watchdog is not reaped and its pid is not reused.
        let mut watchdogs = self.watchdogs();
        if watchdogs.remove(&watchdog) {
            let _ = kill(watchdog, Signal::SIGKILL);
        }
    }

    /// Makes one kill pass over everything below this process that is not below a watchdog: the
    /// orphans of watchdogs that were killed.
    fn kill_orphans(&self, command: Option<Pid>) -> Pass {
        // While the lock is held, no monitor is started that could be mistaken for an orphan.
        let watchdogs = self.watchdogs();
        let excluded_trees = self.inherited.iter().chain(watchdogs.iter()).copied().collect();
        // Where processes can be listed, the group is not needed, and its id may have been reused by now.
        let group = command.filter(|_| cfg!(not(target_os = "linux")));
        ProcessTree { roots: vec![getpid()], excluded_trees, group, ..ProcessTree::default() }.kill()
    }

    fn watchdogs(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.watchdogs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle of a monitor. Dropping it before the end ends the command.
pub(crate) struct MonitorHandle {
    link: tokio::net::UnixStream,
    reader: MessageReader,
    /// Parent of the monitor.
    watchdog: Pid,
    command: Option<Pid>,
    ended: Option<Exited>,
    pool: Arc<MonitorPool>,
}

/// How an attempt ended. No process of the command is alive any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// The command exited with this code, by itself or after a request to stop.
    Code(i32),
    /// The command was killed by this signal, which another process sent.
    Signal(i32),
    /// The command was ended because the worker requested it or because its lease was about to end.
    Stopped,
    /// The system refused to execute the command.
    NotRun,
    /// The monitor was killed, and every process of the command with it.
    Killed,
}

impl MonitorHandle {
    pub(super) fn new(link: UnixStream, watchdog: Pid, pool: Arc<MonitorPool>) -> io::Result<Self> {
        link.set_nonblocking(true)?;
        let link = tokio::net::UnixStream::from_std(link)?;
        Ok(Self { link, reader: MessageReader::default(), watchdog, command: None, ended: None, pool })
    }

    /// Reports a renewal: the lease is valid until this moment.
    pub(crate) fn renewed(&self, until: BootInstant) {
        link::send(&self.link, Message::Valid(until));
    }

    pub(crate) fn stop(&self) {
        link::send(&self.link, Message::Signal(Signal::SIGTERM as i32));
    }

    pub(crate) fn kill(&self) {
        link::send(&self.link, Message::Signal(Signal::SIGKILL as i32));
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.link.write_all(bytes).await
    }

    /// Waits for the end of the attempt. Cancel safe: the future may be dropped and the method called again.
    pub(crate) async fn end(&mut self) -> AttemptEnd {
        let mut watchdog_alive = true;
        loop {
            let received = if watchdog_alive {
                self.reader.receive(|buffer| self.link.try_read(buffer))
            } else {
                self.reader.receive(|buffer| read_now(&self.link, buffer))
            };
            match received {
                // WATCHDOG exits after MONITOR has sent all of its messages, so no further message
                // can arrive.
                Received::Nothing if !watchdog_alive => return self.end_killed().await,
                Received::Nothing => tokio::select! {
                    biased;
                    _ = self.link.readable() => {}
                    () = self.pool.wait_for_exit(self.watchdog) => watchdog_alive = false,
                },
                Received::Message(Message::Started(pid)) => self.command = Some(Pid::from_raw(pid)),
                Received::Message(Message::Exited(ended)) => self.ended = Some(ended),
                Received::Message(Message::Done(code)) => return self.attempt_end(code),
                Received::Message(_) => {}
                Received::Exited => return self.end_killed().await,
            }
        }
    }

    async fn end_killed(&self) -> AttemptEnd {
        self.pool.end_attempt(self.watchdog, self.command).await;
        AttemptEnd::Killed
    }

    fn attempt_end(&self, code: i32) -> AttemptEnd {
        match (code, self.ended) {
            (exit::NOT_RUNNABLE, _) => AttemptEnd::NotRun,
            // The command was asked to stop and succeeded.
            (_, Some(Exited::Code(exit::SUCCESS))) => AttemptEnd::Code(exit::SUCCESS),
            (exit::SUCCESS, Some(Exited::Code(code))) => AttemptEnd::Code(code),
            (exit::SUCCESS, Some(Exited::Signal(signal))) => AttemptEnd::Signal(signal),
            _ => AttemptEnd::Stopped,
        }
    }
}

/// Reads what has arrived, without waiting. `try_read` of the runtime reads only after the runtime has noticed
/// that something has arrived, which may be after it has noticed that the sender has exited.
fn read_now(link: &tokio::net::UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    UnixStream::from(link.as_fd().try_clone_to_owned()?).read(buffer)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn what_has_arrived_is_read_before_the_runtime_has_noticed_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let link = tokio::net::UnixStream::from_std(ours).unwrap();
        (&theirs).write_all(b"done").unwrap();
        let mut buffer = [0; 16];
        let unnoticed = link.try_read(&mut buffer).unwrap_err();
        assert_eq!(unnoticed.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(read_now(&link, &mut buffer).unwrap(), 4);
        assert_eq!(read_now(&link, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(theirs);
        assert_eq!(read_now(&link, &mut buffer).unwrap(), 0);
    }
}
