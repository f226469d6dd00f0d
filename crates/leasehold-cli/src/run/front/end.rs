//! Killing the whole tree: when the lease is about to end and KEEPER has not ended the command, or
//! when KEEPER or WATCHDOG is dead.

use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::getpid;

use super::stand::Front;
use crate::exit;
use crate::run::link::{Message, Received};
use crate::run::say::say;
use crate::run::tree::{self, Below, Reaped};

/// Time for KEEPER to release the lock after every process of the command is dead.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Maximum time for killing processes that do not die.
const KILLING: Duration = Duration::from_secs(10);

impl Front<'_> {
    /// Kills everything below KEEPER because the lease is about to end. KEEPER may be stopped,
    /// stuck, or killing the same processes.
    pub(super) fn out_of_time(&mut self) -> i32 {
        if !self.schedule.is_ending() && self.ended.is_none() {
            self.say_out_of_time();
        }
        let code = self.mirrored();
        self.kill_and_let_keeper_release();
        code
    }

    /// Ends the command because WATCHDOG was killed: with one supervising process less, the command
    /// must not continue.
    pub(super) fn watchdog_is_dead(&mut self) -> i32 {
        let lock = self.lock();
        let code = match self.command {
            None => {
                say!("the process that was to watch over lock '{lock}' died; the command was not started");
                exit::INTERNAL
            }
            Some(_) => {
                say!("the process that watched over lock '{lock}' was killed; the command was ended");
                self.mirrored()
            }
        };
        self.kill_and_let_keeper_release();
        code
    }

    /// Kills everything below KEEPER, and leaves KEEPER the time to release the lock.
    fn kill_and_let_keeper_release(&mut self) {
        self.kill_all();
        let patience = BootInstant::now().plus(LAST_WORDS);
        while BootInstant::now() < patience {
            match self.link.receive() {
                Received::Message(Message::Done(_)) | Received::Gone => break,
                Received::Message(_) => {}
                Received::Nothing => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        self.end_our_own();
    }

    /// Ends the command because KEEPER exited without a final message. All processes of the command
    /// are below FRONT now, and no process renews the lease.
    pub(super) fn keeper_is_dead(&mut self) -> i32 {
        // WATCHDOG last: as long as any process of the tree is alive, WATCHDOG can still end it if
        // FRONT is killed too.
        self.family.keeper_may_work = false;
        self.kill_all();
        self.end_our_own();
        let lock = self.lock();
        match (self.command, self.ended) {
            (None, _) => {
                say!(
                    "the process that was to keep the lease on lock '{lock}' died; the command was not started"
                );
                exit::INTERNAL
            }
            (Some(_), None) => {
                say!("the process that kept the lease on lock '{lock}' was killed; the command was ended");
                self.mirrored()
            }
            (Some(_), Some(_)) => {
                say!(
                    "the process that kept the lease on lock '{lock}' was killed before it could release it"
                );
                self.mirrored()
            }
        }
    }

    /// Returns the exit code of the command if it ended by itself, otherwise the code that states
    /// why it was ended.
    fn mirrored(&self) -> i32 {
        self.ended.filter(|ended| !ended.lost).map_or(self.ending_as, |ended| ended.how.code())
    }

    /// Ends WATCHDOG and KEEPER. Must be called when every other process is dead.
    pub(super) fn end_our_own(&mut self) {
        self.family.keeper_may_work = false;
        if let Some(watchdog) = self.family.watchdog.take() {
            let _ = kill(watchdog, Signal::SIGKILL);
            while waitpid(watchdog, None) == Err(nix::errno::Errno::EINTR) {}
        }
        self.kill_all();
        self.job.contained.remove();
    }

    /// Kills until no process is alive. Processes that cannot be killed are reported and left.
    fn kill_all(&mut self) {
        let give_up = BootInstant::now().plus(KILLING);
        let mut pause = Duration::from_millis(1);
        let mut nothing_seen = 0;
        while !self.is_alone() {
            let pass = self.below().kill();
            // One pass may miss a process that was forked meanwhile; the next pass does not.
            nothing_seen = if pass.alive == 0 { nothing_seen + 1 } else { 0 };
            if nothing_seen == 2 {
                return;
            }
            let hopeless = pass.alive > 0 && pass.alive == pass.refused.len();
            if hopeless || BootInstant::now() >= give_up {
                if !std::mem::replace(&mut self.complained, true) {
                    tree::complain(&pass);
                }
                return;
            }
            if pass.alive > 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    /// Selects everything below FRONT except WATCHDOG and KEEPER, as long as those still have work.
    fn below(&self) -> Below {
        let keeper = self.job.shared.keeper().filter(|_| self.family.keeper_may_work);
        Below {
            roots: vec![getpid()],
            spare: self.family.spare.clone(),
            ours: self.family.watchdog.into_iter().chain(keeper).collect(),
            group: self.command.filter(|_| self.ended.is_none()),
            cgroup: self.job.contained.cgroup().cloned(),
            init: None,
        }
    }

    /// Reaps dead children. Returns whether no process is left for certain.
    fn is_alone(&mut self) -> bool {
        loop {
            match tree::reap() {
                Reaped::NobodyLeft => return true,
                Reaped::Nothing => return false,
                Reaped::News(WaitStatus::Stopped(..)) => {}
                Reaped::News(status) => {
                    if status.pid() == self.family.watchdog {
                        self.family.watchdog = None;
                    }
                }
            }
        }
    }

    pub(super) fn reap(&mut self) {
        self.is_alone();
    }
}
