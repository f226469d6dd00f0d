//! WATCHDOG: the process between the one that the user started (SUPERVISOR, or the worker of `tasks work`)
//! and MONITOR. WATCHDOG holds nothing and does nothing until one of the two has exited or the lease is about
//! to end: then WATCHDOG kills the command and all processes that the command started.
//!
//! With WATCHDOG, three processes can each end the tree alone: any two of them may be killed, in any order
//! and with any delay in between. WATCHDOG also ends the tree in time if the other two are stopped.

use std::io;
use std::time::Duration;

use leasehold::BootInstant;
use nix::unistd::{Pid, getpid, getppid};

use super::contain::Containment;
use super::signals::{self, Signals};
use super::sys::{self, Shared};
use super::timer::Timer;
use super::timing::Timing;
use super::tree::{self, ProcessTree, Reaped};
use crate::exit;

/// Process that kills the tree when the others cannot.
pub(super) struct Watchdog {
    /// Process that the user started.
    pub(super) parent: Pid,
    pub(super) monitor: Pid,
    pub(super) shared: Shared,
    pub(super) timing: Timing,
    pub(super) containment: Containment,
}

/// Interval between attempts to kill processes that have not died.
const KILL_INTERVAL: Duration = Duration::from_millis(20);
/// Poll interval if there is no deadline to wait for.
const IDLE: Duration = Duration::from_mins(1);

impl Watchdog {
    /// Watches until MONITOR and everything below it are dead. Returns the exit code.
    pub(super) fn run(self) -> i32 {
        signals::ignore_in_monitor();
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_name(c"lease-watchdog");
        sys::undo_low_priority();
        let code = match self.watch() {
            Ok(()) => exit::SUCCESS,
            // Without a timer or signals WATCHDOG could not observe events. The parent notices its death.
            Err(_) => exit::INTERNAL,
        };
        self.containment.remove();
        code
    }

    fn watch(&self) -> io::Result<()> {
        let mut children = Signals::children_only()?;
        let timer = Timer::new()?;
        // The signal only has to end the sleep of this process when its parent dies.
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::SIGCHLD);
        let mut monitor_lives = true;
        loop {
            children.pending();
            loop {
                match tree::reap() {
                    Reaped::NoChildren => return Ok(()),
                    Reaped::Nothing => break,
                    Reaped::Ended(pid, _) => monitor_lives &= pid != self.monitor,
                    Reaped::Stopped(..) => {}
                }
            }
            let next = self.kill_if_due(monitor_lives);
            timer.set(next)?;
            timer.sleep([children.poll_fd(), children.poll_fd()]);
            let now = BootInstant::now();
            if now >= next {
                self.shared.observe_delay(now.after(next));
            }
        }
    }

    /// Kills the tree if that is due. Returns when to check again.
    fn kill_if_due(&self, monitor_lives: bool) -> BootInstant {
        let now = BootInstant::now();
        let timing = self.timing.with_delay(self.shared.delay());
        let kill_at = self.shared.valid_until().map(|until| timing.kill_at(until));
        let is_due = kill_at.is_some_and(|at| now >= at);
        if monitor_lives && getppid() == self.parent && !is_due {
            return kill_at.map_or_else(|| now.plus(IDLE), |at| at.min(now.plus(timing.probe_interval())));
        }
        if is_due {
            self.shared.set_out_of_time();
        }
        // MONITOR still has to release the lock, and exits when everything below it is dead.
        let excluded = Some(self.monitor).filter(|_| monitor_lives).into_iter().collect();
        let cgroup = self.containment.cgroup().cloned();
        ProcessTree { roots: vec![getpid()], excluded, cgroup, ..ProcessTree::default() }.kill();
        now.plus(KILL_INTERVAL)
    }
}
