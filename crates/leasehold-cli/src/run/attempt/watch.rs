//! Event loop of a keeper, from the start of the command to the death of the last of its processes.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;

use crate::exit;
use crate::run::alarm::Alarm;
use crate::run::contain::Prepared;
use crate::run::link::{Exited, Link, Message, Received};
use crate::run::say::say;
use crate::run::signals::Signals;
use crate::run::stub::{NotStarted, Stub};
use crate::run::sys::Shared;
use crate::run::timing::{Due, Schedule, Timing};
use crate::run::tree::{self, Below, Reaped, negative};

pub(super) struct Watch {
    stub: Stub,
    /// Link to the worker; `None` once the worker has exited.
    link: Option<Link>,
    signals: Signals,
    alarm: Alarm,
    timing: Timing,
    schedule: Schedule,
    valid_until: BootInstant,
    shared: Shared,
    contained: Prepared,
    /// Time to which the alarm is set.
    rings_at: BootInstant,
    below: Below,
    /// How the command ended; processes that it left behind may still be alive.
    ended: Option<Exited>,
    /// Exit code that states why the command was ended, if it did not end by itself.
    code: Option<i32>,
    left_behind: bool,
    pause: Duration,
    killing_since: Option<BootInstant>,
    complained: bool,
}

/// Lease as far as KEEPER knows it, and the containment of the command.
pub(super) struct Lease {
    pub(super) valid_until: BootInstant,
    pub(super) timing: Timing,
    pub(super) shared: Shared,
    pub(super) contained: Prepared,
}

/// Time after which processes that survive SIGKILL are reported.
const STUBBORN: Duration = Duration::from_secs(2);

impl Watch {
    pub(super) fn new(stub: Stub, link: UnixStream, lease: Lease) -> io::Result<Self> {
        let Lease { valid_until, timing, shared, contained } = lease;
        let below = stub.below(&contained);
        Ok(Self {
            stub,
            link: Some(Link::new(link)?),
            signals: Signals::listen()?,
            alarm: Alarm::new()?,
            timing,
            schedule: Schedule::new(timing, Duration::ZERO),
            valid_until,
            shared,
            contained,
            rings_at: valid_until,
            below,
            ended: None,
            code: None,
            left_behind: false,
            pause: Duration::from_millis(1),
            killing_since: None,
            complained: false,
        })
    }

    /// Starts the command with these variables. Returns the exit code when every process is dead
    /// and the result has been sent to the worker.
    pub(super) fn watch(mut self, variables: &[u8]) -> i32 {
        self.contained.end_abandoned();
        self.tell(Message::Started(self.stub.pid.as_raw()));
        // If the message cannot be delivered the stub is dead, which the loop below detects.
        let _ = self.stub.go(self.timing.term_at(self.valid_until), variables);
        loop {
            self.signals.pending(); // Signals only wake the loop; the state is checked below.
            self.hear();
            if self.everything_is_dead() || self.nothing_helps() {
                let code = self.code.unwrap_or(exit::SUCCESS);
                self.tell(Message::Done(code));
                return code;
            }
            self.watch_the_time();
            let signals = self.signals.poll_fd();
            let link = self.link.as_ref().map_or(signals, |link| link.stream.as_fd());
            self.alarm.sleep([signals, link]);
            let now = BootInstant::now();
            if now >= self.rings_at {
                self.shared.observe_delay(now.after(self.rings_at));
            }
        }
    }

    fn hear(&mut self) {
        while let Some(link) = &mut self.link {
            match link.receive() {
                Received::Nothing => return,
                Received::Message(Message::Valid(until)) => {
                    self.valid_until = until;
                    self.shared.set_valid_until(until);
                }
                Received::Message(Message::Signal(signal)) => {
                    self.ask_to_stop();
                    if signal == Signal::SIGKILL as i32 {
                        self.schedule.kill_now();
                    }
                }
                Received::Message(_) => {}
                Received::Gone => {
                    // Immediately: during a grace period the process that killed the worker may
                    // kill KEEPER too.
                    self.link = None;
                    self.ending();
                    self.schedule.kill_now();
                }
            }
        }
    }

    /// Reaps dead children. Returns whether the command and all processes that it started are dead.
    fn everything_is_dead(&mut self) -> bool {
        loop {
            match tree::reap() {
                Reaped::NobodyLeft if self.below.is_empty_without_children() => return true,
                Reaped::NobodyLeft | Reaped::Nothing => {
                    self.end_what_is_left();
                    return false;
                }
                Reaped::News(status) if status.pid() == Some(self.stub.pid) => self.command_has_news(status),
                Reaped::News(_) => {}
            }
        }
    }

    fn command_has_news(&mut self, status: WaitStatus) {
        let ended = match status {
            WaitStatus::Exited(_, code) => Exited::Code(code),
            WaitStatus::Signaled(_, signal, _) => Exited::Signal(signal as i32),
            _ => return,
        };
        match self.stub.not_started() {
            Some(NotStarted::TooLate) => self.code = Some(exit::LEASE_LOST),
            Some(NotStarted::Refused(errno)) => {
                say!("the command cannot be run: {}", errno.desc());
                self.code = Some(exit::NOT_RUNNABLE);
            }
            None => self.tell(Message::Exited(ended)),
        }
        if self.shared.was_out_of_time() {
            self.ending();
        }
        self.ended = Some(ended);
        self.below.leader_is_buried();
        self.stub.is_buried();
    }

    /// Asks the processes that outlive the command to stop, once.
    fn end_what_is_left(&mut self) {
        if self.ended.is_none() || self.left_behind {
            return;
        }
        // Processes in the group of a command that was asked to stop have received SIGTERM already.
        let asked = self.schedule.is_ending().then_some(self.stub.pid);
        self.schedule.ask_to_stop(BootInstant::now(), self.valid_until);
        self.left_behind = self.below.signal(Signal::SIGTERM, asked).alive > 0;
        self.below.signal(Signal::SIGCONT, None);
    }

    fn watch_the_time(&mut self) {
        let mut now = BootInstant::now();
        self.schedule.expect_delay(self.shared.delay());
        let mut due = self.schedule.due(now, self.valid_until);
        if due == Due::Term {
            self.ask_to_stop();
            now = BootInstant::now();
            due = self.schedule.due(now, self.valid_until);
        }
        let next = match due {
            Due::Nothing(at) => at.min(now.plus(self.timing.probe_every())),
            Due::Term => now,
            Due::Kill => self.kill_all(now),
        };
        self.rings_at = next;
        if self.alarm.set(next).is_err() {
            // Without an alarm the deadline would be missed, so kill now.
            self.kill_all(now);
        }
    }

    /// Makes one kill pass. Returns when to make the next.
    fn kill_all(&mut self, now: BootInstant) -> BootInstant {
        self.ending();
        let pass = self.below.kill();
        let since = *self.killing_since.get_or_insert(now);
        if now.after(since) >= STUBBORN && !self.complained {
            self.complained = true;
            tree::complain(&pass);
        }
        let next = now.plus(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
        next
    }

    /// Whether the processes that survive SIGKILL have outlived the lease: waiting longer cannot
    /// help.
    fn nothing_helps(&self) -> bool {
        self.complained && BootInstant::now() >= self.valid_until
    }

    /// Asks the command to stop, unless that has been done.
    fn ask_to_stop(&mut self) {
        let asked = self.schedule.is_ending();
        self.ending();
        if !asked && self.ended.is_none() {
            let _ = kill(negative(self.stub.pid), Signal::SIGTERM);
            let _ = kill(negative(self.stub.pid), Signal::SIGCONT); // A stopped process defers SIGTERM.
        }
    }

    /// Marks the command as ending. If it has not ended by itself before, the loss of the lease is
    /// recorded as the reason.
    fn ending(&mut self) {
        if self.ended.is_none() {
            self.code.get_or_insert(exit::LEASE_LOST);
        }
        self.schedule.ask_to_stop(BootInstant::now(), self.valid_until);
    }

    fn tell(&self, message: Message) {
        if let Some(link) = &self.link {
            link.send(message);
        }
    }
}
