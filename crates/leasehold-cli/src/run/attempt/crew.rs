//! All keepers of a worker, and what they leave behind if they are killed.

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

/// So often what does not die is killed before somebody is told.
const TRIES: u32 = 100;

pub(crate) struct Crew {
    /// The watchdogs of those that are not dead and buried: each is the parent of its keeper.
    keepers: Mutex<BTreeSet<Pid>>,
    /// Changes when one of them has died.
    deaths: watch::Sender<()>,
    /// Children from before, when this process was another program. They are none of our business.
    spare: Vec<Pid>,
    /// Who has it may start a keeper.
    starting: Mutex<()>,
}

impl Crew {
    /// Nobody yet. From here on what loses its parent below us falls to us.
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

    /// What a keeper is to inherit must not get to another one that is started at the same time.
    pub(super) fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one. It cannot be buried before it is known.
    pub(super) fn hire(&self, start: impl FnOnce() -> io::Result<Child>) -> io::Result<(Pid, Child)> {
        let mut keepers = self.keepers();
        let child = start()?;
        let pid = Pid::from_raw(child.id().try_into().map_err(io::Error::other)?);
        keepers.insert(pid);
        Ok((pid, child))
    }

    /// Buries whoever dies, keeper or orphan. Never ends.
    pub(crate) async fn bury(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        loop {
            self.bury_the_dead();
            children.recv().await;
        }
    }

    fn bury_the_dead(&self) {
        // A number that is in the set is not given to another process as long as we have the set.
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

    /// Resolves when this watchdog is dead and buried.
    pub(super) async fn death_of(&self, watchdog: Pid) {
        let mut deaths = self.deaths.subscribe();
        // The sender lives as long as we do.
        let _ = deaths.wait_for(|()| !self.keepers().contains(&watchdog)).await;
    }

    /// A keeper or its watchdog was killed: ends both, and all that they leave.
    pub(super) async fn end_attempt(&self, watchdog: Pid, command: Option<Pid>) {
        // WATCHDOG goes last: as long as anything lives, it could still end it if we were killed too.
        self.kill_until_gone(|| self.kill_below(watchdog)).await;
        self.kill_watchdog(watchdog);
        self.kill_until_gone(|| self.kill_orphans(command)).await;
    }

    async fn kill_until_gone(&self, kill: impl Fn() -> Pass) {
        let (mut nothing_seen, mut last) = (0, Pass::default());
        for _ in 0..TRIES {
            let pass = kill();
            self.bury_the_dead();
            // A process that was forked while we looked may have been missed once, but not by a second look.
            nothing_seen = if pass.alive == 0 { nothing_seen + 1 } else { 0 };
            if nothing_seen == 2 {
                return;
            }
            sleep(Duration::from_millis(if pass.alive == 0 { 1 } else { 20 })).await;
            last = pass;
        }
        tree::complain(&last);
    }

    /// One pass over what is below a watchdog, if that lives.
    fn kill_below(&self, watchdog: Pid) -> Pass {
        // With the set in our hands, it is not buried, and its number is its own.
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

    /// One pass over everything below us that is not below a watchdog: what one has left that was killed.
    fn kill_orphans(&self, command: Option<Pid>) -> Pass {
        // With the set in our hands, none is started that we would take for an orphan.
        let keepers = self.keepers();
        let spare = self.spare.iter().chain(keepers.iter()).copied().collect();
        // Where processes can be listed, the group is not needed, and its number may belong to another group by now.
        let group = command.filter(|_| cfg!(not(target_os = "linux")));
        Below { roots: vec![getpid()], spare, group, ..Below::default() }.kill()
    }

    fn keepers(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
