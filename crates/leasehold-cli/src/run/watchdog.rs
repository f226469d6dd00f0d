//! WATCHDOG: the process between the one that the user sees (FRONT, or the worker of `tasks work`) and KEEPER. It holds
//! nothing and does nothing, until one of the two is gone or time is up: then it kills the command and all that it
//! started.
//!
//! With it three processes can end the tree, each by itself: any two of them may be killed, in any order and with any
//! pause in between. It also ends the tree in time if the other two are stopped.

use std::io;
use std::time::Duration;

use leasehold::Moment;
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
    /// The process that the user sees.
    pub(super) parent: Pid,
    pub(super) keeper: Pid,
    pub(super) shared: Shared,
    pub(super) timing: Timing,
    pub(super) contained: Prepared,
}

/// How often to kill what has not died.
const AGAIN: Duration = Duration::from_millis(20);
/// How often to look if there is nothing to wait for.
const IDLE: Duration = Duration::from_mins(1);

impl Watchdog {
    /// Watches until KEEPER and everything below it are dead. Gives the exit code.
    pub(super) fn watch(self) -> i32 {
        signals::ignore_in_keeper();
        take_name();
        sys::undo_low_priority();
        let code = match self.watch_on() {
            Ok(()) => exit::SUCCESS,
            // Without a timer or signals it would not see what happens. Its death is noticed by the process in front.
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
            let now = Moment::now();
            if now >= next {
                self.shared.observe_delay(now.after(next));
            }
        }
    }

    /// Kills if it is time to. Says when to look again.
    fn act(&self, keeper_lives: bool) -> Moment {
        let now = Moment::now();
        let timing = self.timing.with_delay(self.shared.delay());
        let kill_at = self.shared.valid_until().map(|until| timing.kill_at(until));
        let is_due = kill_at.is_some_and(|at| now >= at);
        if keeper_lives && getppid() == self.parent && !is_due {
            return kill_at.map_or_else(|| now.plus(IDLE), |at| at.min(now.plus(timing.probe_every())));
        }
        if is_due {
            self.shared.set_out_of_time();
        }
        // KEEPER has the lock to release, and ends when everything below it is dead.
        let ours = Some(self.keeper).filter(|_| keeper_lives).into_iter().collect();
        let cgroup = self.contained.cgroup().cloned();
        Below { roots: vec![getpid()], ours, cgroup, ..Below::default() }.kill();
        now.plus(AGAIN)
    }
}

/// Asks for a signal when the parent dies: the same one that tells of children, as it only has to wake us.
fn wake_when_parent_dies() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGCHLD);
}

fn take_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-watchdog");
}
