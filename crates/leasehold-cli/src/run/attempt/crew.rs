//! All keepers of a worker, and the cleanup of the processes that a killed keeper leaves behind.

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

use crate::run::tree::{self, Below, Pass, Reaped};

/// Maximum number of kill passes before surviving processes are reported.
const TRIES: u32 = 100;

pub(crate) struct Crew {
    /// WATCHDOG processes that have not been reaped; each is the parent of its keeper.
    keepers: Mutex<BTreeSet<Pid>>,
    /// Signals a change when one of them has died.
    deaths: watch::Sender<()>,
    /// Children inherited across `exec`; never signalled.
    spare: Vec<Pid>,
    /// Serializes the start of keepers.
    starting: Mutex<()>,
}

impl Crew {
    /// Creates an empty crew and makes this process a subreaper: orphans below it become its
    /// children.
    pub(crate) fn gather() -> Self {
        let spare = tree::own_children();
        tree::adopt_orphans();
        Self {
            keepers: Mutex::default(),
            deaths: watch::Sender::default(),
            spare,
            starting: Mutex::default(),
        }
    }

    /// Serializes starts: a descriptor that one keeper is to inherit must not leak into another
    /// keeper that is started at the same time.
    pub(super) fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a keeper. The lock on the set is held during the start, so the keeper cannot be
    /// reaped before it is registered.
    pub(super) fn hire(&self, start: impl FnOnce() -> io::Result<Child>) -> io::Result<(Pid, Child)> {
        let mut keepers = self.keepers();
        let child = start()?;
        let pid = Pid::from_raw(child.id().try_into().map_err(io::Error::other)?);
        keepers.insert(pid);
        Ok((pid, child))
    }

    /// Reaps every child that dies, keeper or orphan. Never returns except on error.
    pub(crate) async fn bury(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        loop {
            self.bury_the_dead();
            children.recv().await;
        }
    }

    fn bury_the_dead(&self) {
        // As long as this lock is held, no pid in the set is reaped, so the system cannot reuse it.
        let mut keepers = self.keepers();
        let mut died = false;
        while let Reaped::News(status) = tree::reap() {
            if let WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) = status {
                died |= keepers.remove(&pid);
            }
        }
        drop(keepers);
        if died {
            self.deaths.send_replace(());
        }
    }

    /// Resolves when this watchdog has died and been reaped.
    pub(super) async fn death_of(&self, watchdog: Pid) {
        let mut deaths = self.deaths.subscribe();
        // The sender lives as long as `self`.
        let _ = deaths.wait_for(|()| !self.keepers().contains(&watchdog)).await;
    }

    /// Ends an attempt whose keeper or watchdog was killed: both processes and everything that they
    /// leave behind.
    pub(super) async fn end_attempt(&self, watchdog: Pid, command: Option<Pid>) {
        // WATCHDOG last: as long as any process of the tree is alive, WATCHDOG can still end it if
        // this process is killed too.
        self.kill_until_gone(|| self.kill_below(watchdog)).await;
        self.kill_watchdog(watchdog);
        self.kill_until_gone(|| self.kill_orphans(command)).await;
    }

    async fn kill_until_gone(&self, kill: impl Fn() -> Pass) {
        let (mut nothing_seen, mut last) = (0, Pass::default());
        for _ in 0..TRIES {
            let pass = kill();
            self.bury_the_dead();
            // One pass may miss a process that was forked meanwhile; the next pass does not.
            nothing_seen = if pass.alive == 0 { nothing_seen + 1 } else { 0 };
            if nothing_seen == 2 {
                return;
            }
            sleep(Duration::from_millis(if pass.alive == 0 { 1 } else { 20 })).await;
            last = pass;
        }
        tree::complain(&last);
    }

    /// Makes one kill pass over the processes below a watchdog, if the watchdog is alive.
    fn kill_below(&self, watchdog: Pid) -> Pass {
        // While the lock is held, the watchdog is not reaped and its pid is not reused.
        let keepers = self.keepers();
        if !keepers.contains(&watchdog) {
            return Pass::default();
        }
        Below { roots: vec![watchdog], ..Below::default() }.kill()
    }

    fn kill_watchdog(&self, watchdog: Pid) {
        let mut keepers = self.keepers();
        if keepers.remove(&watchdog) {
            let _ = kill(watchdog, Signal::SIGKILL);
        }
    }

    /// Makes one kill pass over everything below this process that is not below a watchdog: the
    /// orphans of watchdogs that were killed.
    fn kill_orphans(&self, command: Option<Pid>) -> Pass {
        // While the lock is held, no keeper is started that could be mistaken for an orphan.
        let keepers = self.keepers();
        let spare = self.spare.iter().chain(keepers.iter()).copied().collect();
        // Where processes can be listed, the group is not needed, and its id may have been reused
        // by now.
        let group = command.filter(|_| cfg!(not(target_os = "linux")));
        Below { roots: vec![getpid()], spare, group, ..Below::default() }.kill()
    }

    fn keepers(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
