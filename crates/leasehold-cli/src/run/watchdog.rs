//! WATCHDOG: the process between the one that the user started (FRONT, or the worker of
//! `tasks work`) and KEEPER. WATCHDOG holds nothing and does nothing until one of the two has exited or
//! the lease is about to end: then WATCHDOG kills the command and all processes that the command
//! started.
//!
//! With WATCHDOG, three processes can each end the tree alone: any two of them may be killed, in
//! any order and with any delay in between. WATCHDOG also ends the tree in time if the other two
//! are stopped.

use std::io;
use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::wait::WaitStatus;
use nix::unistd::{Pid, getpid, getppid};

use super::alarm::Alarm;
use super::contain::Prepared;
use super::signals::{self, Signals};
use super::sys::{self, Shared};
use super::timing::Timing;
use super::tree::{self, Below, Reaped};
use crate::exit;

pub(super) struct Watchdog {
    /// Process that the user started.
    pub(super) parent: Pid,
    pub(super) keeper: Pid,
    pub(super) shared: Shared,
    pub(super) timing: Timing,
    pub(super) contained: Prepared,
}

/// Interval between attempts to kill processes that have not died.
const AGAIN: Duration = Duration::from_millis(20);
/// Poll interval if there is no deadline to wait for.
const IDLE: Duration = Duration::from_mins(1);

impl Watchdog {
    /// Watches until KEEPER and everything below it are dead. Returns the exit code.
    pub(super) fn watch(self) -> i32 {
        signals::ignore_in_keeper();
        take_name();
        sys::undo_low_priority();
        let code = match self.watch_on() {
            Ok(()) => exit::SUCCESS,
            // Without a timer or signals WATCHDOG could not observe events. The parent notices its
            // death.
            Err(_) => exit::INTERNAL,
        };
        self.contained.remove();
        code
    }

    fn watch_on(&self) -> io::Result<()> {
        let mut children = Signals::of_children()?;
        let alarm = Alarm::new()?;
        wake_when_parent_dies();
        let mut keeper_lives = true;
        loop {
            children.pending();
            loop {
                match tree::reap() {
                    Reaped::NobodyLeft => return Ok(()),
                    Reaped::Nothing => break,
                    Reaped::News(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..)) => {
                        keeper_lives &= pid != self.keeper;
                    }
                    Reaped::News(_) => {}
                }
            }
            let next = self.act(keeper_lives);
            alarm.set(next)?;
            alarm.sleep([children.poll_fd(), children.poll_fd()]);
            let now = BootInstant::now();
            if now >= next {
                self.shared.observe_delay(now.after(next));
            }
        }
    }

    /// Kills the tree if that is due. Returns when to check again.
    fn act(&self, keeper_lives: bool) -> BootInstant {
        let now = BootInstant::now();
        let timing = self.timing.with_delay(self.shared.delay());
        let kill_at = self.shared.valid_until().map(|until| timing.kill_at(until));
        let is_due = kill_at.is_some_and(|at| now >= at);
        if keeper_lives && getppid() == self.parent && !is_due {
            return kill_at.map_or_else(|| now.plus(IDLE), |at| at.min(now.plus(timing.probe_every())));
        }
        if is_due {
            self.shared.set_out_of_time();
        }
        // KEEPER still has to release the lock, and exits when everything below it is dead.
        let ours = Some(self.keeper).filter(|_| keeper_lives).into_iter().collect();
        let cgroup = self.contained.cgroup().cloned();
        Below { roots: vec![getpid()], ours, cgroup, ..Below::default() }.kill();
        now.plus(AGAIN)
    }
}

/// Requests a signal when the parent dies. SIGCHLD serves, because the signal only has to wake this
/// process.
fn wake_when_parent_dies() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGCHLD);
}

fn take_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-watchdog");
}
