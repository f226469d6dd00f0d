//! All monitors of a worker, and the cleanup of the processes that a killed monitor leaves behind.

use std::collections::BTreeSet;
use std::io;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, getpid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::run::tree::{self, Pass, ProcessTree, Reaped};

/// Maximum number of kill passes before surviving processes are reported.
const MAX_PASSES: u32 = 100;

/// Monitors of a worker, each under its watchdog.
pub(crate) struct MonitorPool {
    /// WATCHDOG processes that have not been reaped; each is the parent of its monitor.
    watchdogs: Mutex<BTreeSet<Pid>>,
    /// Signals a change when one of them has exited.
    exits: watch::Sender<()>,
    /// Children inherited across `exec`; never signalled.
    inherited: Vec<Pid>,
    /// Serializes the start of monitors.
    starting: Mutex<()>,
}

impl MonitorPool {
    /// Creates an empty pool and makes this process a subreaper: orphans below it become its
    /// children.
    pub(crate) fn new() -> Self {
        let inherited = tree::inherited_children();
        tree::become_subreaper();
        Self {
            watchdogs: Mutex::default(),
            exits: watch::Sender::default(),
            inherited,
            starting: Mutex::default(),
        }
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
        while let Reaped::Changed(status) = tree::reap() {
            if let WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) = status {
                any_exited |= watchdogs.remove(&pid);
            }
        }
        drop(watchdogs);
        if any_exited {
            self.exits.send_replace(());
        }
    }

    /// Resolves when this watchdog has exited and been reaped.
    pub(super) async fn wait_for_exit(&self, watchdog: Pid) {
        let mut exits = self.exits.subscribe();
        // The sender lives as long as `self`.
        let _ = exits.wait_for(|()| !self.watchdogs().contains(&watchdog)).await;
    }

    /// Ends an attempt whose monitor or watchdog was killed: both processes and everything that they
    /// leave behind.
    pub(super) async fn end_attempt(&self, watchdog: Pid, command: Option<Pid>) {
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
        // Where processes can be listed, the group is not needed, and its id may have been reused
        // by now.
        let group = command.filter(|_| cfg!(not(target_os = "linux")));
        ProcessTree { roots: vec![getpid()], excluded_trees, group, ..ProcessTree::default() }.kill()
    }

    fn watchdogs(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.watchdogs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
