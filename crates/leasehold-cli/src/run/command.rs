//! Command under its monitor, from its start to the death of the last of its processes: reaping,
//! stop requests and kill passes. Shared by the monitor of `run` and that of an attempt at a task.

use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::{Signal, killpg};

use super::contain::Containment;
use super::link::Exited;
use super::pre_exec::PreExecChild;
use super::timing::{KillSchedule, Timing};
use super::tree::{self, ProcessTree, Reaped};

/// Time after which processes that survive SIGKILL are reported.
const REPORT_SURVIVORS_AFTER: Duration = Duration::from_secs(2);
/// Delays between two kill passes; the delay doubles with each pass.
const FIRST_KILL_DELAY: Duration = Duration::from_millis(1);
const MAX_KILL_DELAY: Duration = Duration::from_millis(200);

/// Command and the processes that it started, as seen by MONITOR.
pub(super) struct MonitoredCommand {
    pub(super) child: PreExecChild,
    tree: ProcessTree,
    pub(super) schedule: KillSchedule,
    /// Expiry time of the lease as far as MONITOR knows.
    pub(super) valid_until: BootInstant,
    /// How the command ended; processes that it left behind may still be alive.
    pub(super) ended: Option<Exited>,
    /// Exit code that states why the command was ended, if it did not end by itself.
    pub(super) code: Option<i32>,
    /// Number of processes that outlived the command and were asked to stop.
    pub(super) left_behind: usize,
    pub(super) survivors_reported: bool,
    killing_since: Option<BootInstant>,
    kill_delay: Duration,
}

/// Result of [`MonitoredCommand::poll`].
pub(super) enum TreeState {
    /// The command itself has ended.
    CommandEnded(Exited),
    /// The command itself was stopped by this signal.
    CommandStopped(i32),
    /// Processes are alive, and no child has changed its state.
    Alive,
    /// The command and all processes that it started are dead.
    Exited,
}

impl MonitoredCommand {
    pub(super) fn new(
        child: PreExecChild,
        containment: &Containment,
        timing: Timing,
        valid_until: BootInstant,
    ) -> Self {
        let tree = child.tree(containment);
        Self {
            child,
            tree,
            schedule: KillSchedule::new(timing, Duration::ZERO),
            valid_until,
            ended: None,
            code: None,
            left_behind: 0,
            survivors_reported: false,
            killing_since: None,
            kill_delay: FIRST_KILL_DELAY,
        }
    }

    /// Reaps dead children until the command itself changes its state or no child does. Call again
    /// after [`TreeState::CommandEnded`] and [`TreeState::CommandStopped`].
    pub(super) fn poll(&mut self) -> TreeState {
        loop {
            match tree::reap() {
                Reaped::NoChildren if self.tree.is_empty_without_children() => return TreeState::Exited,
                Reaped::NoChildren | Reaped::Nothing => {
                    self.stop_left_behind();
                    return TreeState::Alive;
                }
                Reaped::Ended(pid, ended) if pid == self.child.pid => return TreeState::CommandEnded(ended),
                Reaped::Stopped(pid, signal) if pid == self.child.pid => {
                    return TreeState::CommandStopped(signal);
                }
                Reaped::Ended(..) | Reaped::Stopped(..) => {}
            }
        }
    }

    /// Asks the processes that outlive the command to stop, once.
    fn stop_left_behind(&mut self) {
        if self.ended.is_none() || self.left_behind > 0 {
            return;
        }
        // Processes in the group of a command that was asked to stop have received SIGTERM already.
        let signalled = self.schedule.is_ending().then_some(self.child.pid);
        self.schedule.request_stop(BootInstant::now(), self.valid_until);
        self.left_behind = self.tree.signal(Signal::SIGTERM, signalled).alive;
        self.tree.signal(Signal::SIGCONT, None);
    }

    /// Records that the command has ended and been reaped.
    pub(super) fn record_end(&mut self, ended: Exited) {
        self.ended = Some(ended);
        self.tree.leader_reaped();
        self.child.reaped();
    }

    /// Marks the command as ending. If it has not ended by itself before, `code` states why.
    /// Returns whether the command had neither ended nor been marked as ending.
    pub(super) fn mark_ending(&mut self, code: i32) -> bool {
        let is_first = self.ended.is_none() && !self.schedule.is_ending();
        if self.ended.is_none() {
            self.code.get_or_insert(code);
        }
        self.schedule.request_stop(BootInstant::now(), self.valid_until);
        is_first
    }

    /// Asks the command to stop, unless that has been done. `before_signals` runs before any signal
    /// is sent, if the command had neither ended nor been marked as ending.
    pub(super) fn request_stop(&mut self, code: i32, before_signals: impl FnOnce()) {
        let requested = self.schedule.is_ending();
        if self.mark_ending(code) {
            before_signals();
        }
        if !requested {
            self.send(Some(Signal::SIGTERM));
            self.send(Some(Signal::SIGCONT)); // A stopped process defers SIGTERM.
        }
    }

    /// Sends a signal to the whole process group of the command, as long as the group id cannot
    /// have been reused.
    pub(super) fn send(&self, signal: Option<Signal>) {
        if self.ended.is_none() {
            let _ = killpg(self.child.pid, signal);
        }
    }

    /// Makes one kill pass. Returns when to make the next, and whether this pass reported processes
    /// that survive SIGKILL.
    pub(super) fn kill_pass(&mut self, now: BootInstant) -> (BootInstant, bool) {
        let pass = self.tree.kill();
        let since = *self.killing_since.get_or_insert(now);
        let reports = now.after(since) >= REPORT_SURVIVORS_AFTER && !self.survivors_reported;
        if reports {
            self.survivors_reported = true;
            tree::report_survivors(&pass);
        }
        let next = now.plus(self.kill_delay);
        self.kill_delay = (self.kill_delay * 2).min(MAX_KILL_DELAY);
        (next, reports)
    }

    /// Whether processes survive SIGKILL although the lease has expired: waiting longer cannot help.
    pub(super) fn unkillable(&self) -> bool {
        self.survivors_reported && BootInstant::now() >= self.valid_until
    }
}
