//! Event loop of the monitor of an attempt, from the start of the command to the death of the last
//! of its processes.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use crate::exit;
use crate::run::command::{MonitoredCommand, TreeState};
use crate::run::contain::Containment;
use crate::run::link::{Exited, Link, Message, Received};
use crate::run::pre_exec::{NotStarted, PreExecChild};
use crate::run::signals::Signals;
use crate::run::status::status;
use crate::run::sys::Shared;
use crate::run::timer::Timer;
use crate::run::timing::{Due, Timing};

/// Monitor of one attempt at a task.
pub(super) struct AttemptMonitor {
    command: MonitoredCommand,
    /// Link to the worker; `None` once the worker has exited.
    link: Option<Link>,
    signals: Signals,
    timer: Timer,
    timing: Timing,
    shared: Shared,
    containment: Containment,
    /// Time to which the timer is set.
    timer_at: BootInstant,
}

/// Lease as far as MONITOR knows it, and the containment of the command.
pub(super) struct LeaseTerms {
    pub(super) valid_until: BootInstant,
    pub(super) timing: Timing,
    pub(super) shared: Shared,
    pub(super) containment: Containment,
}

impl AttemptMonitor {
    pub(super) fn new(child: PreExecChild, link: UnixStream, lease: LeaseTerms) -> io::Result<Self> {
        let LeaseTerms { valid_until, timing, shared, containment } = lease;
        Ok(Self {
            command: MonitoredCommand::new(child, &containment, timing, valid_until),
            link: Some(Link::new(link)?),
            signals: Signals::listen()?,
            timer: Timer::new()?,
            timing,
            shared,
            containment,
            timer_at: valid_until,
        })
    }

    /// Starts the command with these variables. Returns the exit code when every process is dead
    /// and the result has been sent to the worker.
    pub(super) fn run(mut self, variables: &[u8]) -> i32 {
        self.containment.end_abandoned();
        self.send(Message::Started(self.command.child.pid.as_raw()));
        // If the message cannot be delivered the child is dead, which the loop below detects.
        let not_after = self.timing.term_at(self.command.valid_until);
        let _ = self.command.child.go(not_after, variables);
        loop {
            self.signals.pending(); // Signals only wake the loop; the state is checked below.
            self.handle_messages();
            if self.tree_exited() || self.command.unkillable() {
                let code = self.command.code.unwrap_or(exit::SUCCESS);
                self.send(Message::Done(code));
                return code;
            }
            self.check_deadlines();
            let signals = self.signals.poll_fd();
            let link = self.link.as_ref().map_or(signals, |link| link.stream.as_fd());
            self.timer.sleep([signals, link]);
            let now = BootInstant::now();
            if now >= self.timer_at {
                self.shared.observe_delay(now.after(self.timer_at));
            }
        }
    }

    fn handle_messages(&mut self) {
        while let Some(link) = &mut self.link {
            match link.receive() {
                Received::Nothing => return,
                Received::Message(Message::Valid(until)) => {
                    self.command.valid_until = until;
                    self.shared.set_valid_until(until);
                }
                Received::Message(Message::Signal(signal)) => {
                    self.request_stop();
                    if signal == Signal::SIGKILL as i32 {
                        self.command.schedule.kill_now();
                    }
                }
                Received::Message(_) => {}
                Received::Gone => {
                    // Immediately: during a grace period the process that killed the worker may
                    // kill MONITOR too.
                    self.link = None;
                    self.command.mark_ending(exit::LEASE_LOST);
                    self.command.schedule.kill_now();
                }
            }
        }
    }

    /// Reaps dead children. Returns whether the command and all processes that it started are dead.
    fn tree_exited(&mut self) -> bool {
        loop {
            match self.command.poll() {
                TreeState::Exited => return true,
                TreeState::Alive => return false,
                TreeState::Command(status) => self.on_child_status(status),
            }
        }
    }

    fn on_child_status(&mut self, status: WaitStatus) {
        let Some(ended) = Exited::from_status(status) else { return };
        match self.command.child.not_started() {
            Some(NotStarted::TooLate) => self.command.code = Some(exit::LEASE_LOST),
            Some(NotStarted::Refused(errno)) => {
                status!("the command cannot be run: {}", errno.desc());
                self.command.code = Some(exit::NOT_RUNNABLE);
            }
            None => self.send(Message::Exited(ended)),
        }
        if self.shared.was_out_of_time() {
            self.command.mark_ending(exit::LEASE_LOST);
        }
        self.command.record_end(ended);
    }

    fn check_deadlines(&mut self) {
        let mut now = BootInstant::now();
        self.command.schedule.set_timer_delay(self.shared.delay());
        let mut due = self.command.schedule.due(now, self.command.valid_until);
        if due == Due::Term {
            self.request_stop();
            now = BootInstant::now();
            due = self.command.schedule.due(now, self.command.valid_until);
        }
        let next = match due {
            Due::Nothing(at) => at.min(now.plus(self.timing.probe_interval())),
            Due::Term => now,
            Due::Kill => self.kill_all(now),
        };
        self.timer_at = next;
        if self.timer.set(next).is_err() {
            // Without a timer the deadline would be missed, so kill now.
            self.kill_all(now);
        }
    }

    /// Makes one kill pass. Returns when to make the next.
    fn kill_all(&mut self, now: BootInstant) -> BootInstant {
        self.command.mark_ending(exit::LEASE_LOST);
        self.command.kill_pass(now).0
    }

    /// Asks the command to stop, unless that has been done.
    fn request_stop(&mut self) {
        self.command.request_stop(exit::LEASE_LOST, || {});
    }

    fn send(&self, message: Message) {
        if let Some(link) = &self.link {
            link.send(message);
        }
    }
}
