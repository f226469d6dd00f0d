//! Killing the whole tree: when the lease is about to end and MONITOR has not ended the command, or
//! when MONITOR or WATCHDOG is dead.

use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::getpid;

use super::event_loop::Supervisor;
use crate::exit;
use crate::run::link::{Message, Received};
use crate::run::status::status;
use crate::run::tree::{self, ProcessTree, Reaped};

/// Time for MONITOR to release the lock after every process of the command is dead.
const RELEASE_GRACE: Duration = Duration::from_secs(1);
/// Maximum time for killing processes that do not die.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

impl Supervisor<'_> {
    /// Kills everything below MONITOR because the lease is about to end. MONITOR may be stopped,
    /// stuck, or killing the same processes.
    pub(super) fn out_of_time(&mut self) -> i32 {
        if !self.schedule.is_ending() && self.ended.is_none() {
            self.report_out_of_time();
        }
        let code = self.exit_code();
        self.kill_and_await_release();
        code
    }

    /// Ends the command because WATCHDOG was killed: with one supervising process less, the command
    /// must not continue.
    pub(super) fn watchdog_died(&mut self) -> i32 {
        let lock = self.lock();
        let code = match self.command {
            None => {
                status!("the watchdog of lock '{lock}' exited; the command was not started");
                exit::INTERNAL
            }
            Some(_) => {
                status!("the watchdog of lock '{lock}' was killed; the command was ended");
                self.exit_code()
            }
        };
        self.kill_and_await_release();
        code
    }

    /// Kills everything below MONITOR, and leaves MONITOR the time to release the lock.
    fn kill_and_await_release(&mut self) {
        self.kill_all();
        let deadline = BootInstant::now().plus(RELEASE_GRACE);
        while BootInstant::now() < deadline {
            match self.link.receive() {
                Received::Message(Message::Done(_)) | Received::Gone => break,
                Received::Message(_) => {}
                Received::Nothing => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        self.end_watchdog_and_monitor();
    }

    /// Ends the command because MONITOR exited without a final message. All processes of the command
    /// are below SUPERVISOR now, and no process renews the lease.
    pub(super) fn monitor_died(&mut self) -> i32 {
        // WATCHDOG last: as long as any process of the tree is alive, WATCHDOG can still end it if
        // SUPERVISOR is killed too.
        self.family.monitor_has_work = false;
        self.kill_all();
        self.end_watchdog_and_monitor();
        let lock = self.lock();
        match (self.command, self.ended) {
            (None, _) => {
                status!("the lease monitor of lock '{lock}' exited; the command was not started");
                exit::INTERNAL
            }
            (Some(_), None) => {
                status!("the lease monitor of lock '{lock}' was killed; the command was ended");
                self.exit_code()
            }
            (Some(_), Some(_)) => {
                status!("the lease monitor of lock '{lock}' was killed before it could release the lock");
                self.exit_code()
            }
        }
    }

    /// Returns the exit code of the command if it ended by itself, otherwise the code that states
    /// why it was ended.
    fn exit_code(&self) -> i32 {
        self.ended.filter(|ended| !ended.lost).map_or(self.end_code, |ended| ended.exited.code())
    }

    /// Ends WATCHDOG and MONITOR. Must be called when every other process is dead.
    pub(super) fn end_watchdog_and_monitor(&mut self) {
        self.family.monitor_has_work = false;
        if let Some(watchdog) = self.family.watchdog.take() {
            let _ = kill(watchdog, Signal::SIGKILL);
            while waitpid(watchdog, None) == Err(nix::errno::Errno::EINTR) {}
        }
        self.kill_all();
        self.context.containment.remove();
    }

    /// Kills until no process is alive. Processes that cannot be killed are reported and left.
    fn kill_all(&mut self) {
        let give_up = BootInstant::now().plus(KILL_TIMEOUT);
        let mut pause = Duration::from_millis(1);
        let mut empty_passes = 0;
        while !self.reap_all() {
            let pass = self.tree().kill();
            // One pass may miss a process that was forked meanwhile; the next pass does not.
            empty_passes = if pass.alive == 0 { empty_passes + 1 } else { 0 };
            if empty_passes == 2 {
                return;
            }
            let all_refused = pass.alive > 0 && pass.alive == pass.refused.len();
            if all_refused || BootInstant::now() >= give_up {
                if !std::mem::replace(&mut self.survivors_reported, true) {
                    tree::report_survivors(&pass);
                }
                return;
            }
            if pass.alive > 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    /// Selects everything below SUPERVISOR except WATCHDOG and MONITOR, as long as those still have
    /// work.
    fn tree(&self) -> ProcessTree {
        let monitor = self.context.shared.monitor().filter(|_| self.family.monitor_has_work);
        ProcessTree {
            roots: vec![getpid()],
            excluded_trees: self.family.inherited.clone(),
            excluded: self.family.watchdog.into_iter().chain(monitor).collect(),
            group: self.command.filter(|_| self.ended.is_none()),
            cgroup: self.context.containment.cgroup().cloned(),
            init: None,
        }
    }

    /// Reaps dead children. Returns whether no process is left for certain.
    pub(super) fn reap_all(&mut self) -> bool {
        loop {
            match tree::reap() {
                Reaped::NoChildren => return true,
                Reaped::Nothing => return false,
                Reaped::Changed(WaitStatus::Stopped(..)) => {}
                Reaped::Changed(status) => {
                    if status.pid() == self.family.watchdog {
                        self.family.watchdog = None;
                    }
                }
            }
        }
    }
}
