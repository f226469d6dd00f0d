//! All keepers of a worker, and what they leave behind if they are killed.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, getpid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::run::tree::{self, Below, Pass, Reaped};

/// So often what does not die is killed before somebody is told.
const TRIES: u32 = 100;

pub(crate) struct Crew {
    /// Those that are not dead and buried.
    keepers: Mutex<BTreeSet<Pid>>,
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
        Self { keepers: Mutex::default(), spare, starting: Mutex::default() }
    }

    /// What a keeper is to inherit must not get to another one that is started at the same time.
    pub(super) fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hire(&self, keeper: Pid) {
        self.keepers().insert(keeper);
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
        while let Reaped::News(status) = tree::reap() {
            if let (WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..), mut keepers) =
                (status, self.keepers())
            {
                keepers.remove(&pid);
            }
        }
    }

    /// A keeper was killed: everything below us that is not below another keeper was below this one.
    pub(super) async fn end_orphans(&self, command: Option<Pid>) {
        let (mut nothing_seen, mut last) = (0, Pass::default());
        for _ in 0..TRIES {
            let spare = self.spare.iter().chain(self.keepers().iter()).copied().collect();
            // Where processes can be listed, the group is not needed, and its number may be somebody else's by now.
            let group = command.filter(|_| cfg!(not(target_os = "linux")));
            let pass = Below { roots: vec![getpid()], spare, group }.kill();
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

    fn keepers(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
