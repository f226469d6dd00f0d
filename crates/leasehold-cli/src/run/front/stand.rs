//! Event loop of FRONT: receives messages of KEEPER, watches the expiry time, and forwards signals.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::exit;
use crate::run::alarm::Alarm;
use crate::run::link::{Exited, Link, Message, Received};
use crate::run::say::say;
use crate::run::signals::Signals;
use crate::run::start::Job;
use crate::run::sys;
use crate::run::terminal::Settings;
use crate::run::timing::{Due, Schedule};

/// Other processes that FRONT keeps track of.
pub(in crate::run) struct Family {
    /// Pid of WATCHDOG; `None` once it is reaped, because the pid may be reused then.
    pub(super) watchdog: Option<Pid>,
    /// Whether KEEPER may still have work to do.
    pub(super) keeper_may_work: bool,
    /// Children inherited across `exec`; never signalled.
    pub(super) spare: Vec<Pid>,
}

impl Family {
    pub(in crate::run) fn new(watchdog: Pid, spare: Vec<Pid>) -> Self {
        Self { watchdog: Some(watchdog), keeper_may_work: true, spare }
    }
}

pub(in crate::run) struct Front<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) family: Family,
    pub(super) link: Link,
    pub(super) signals: Signals,
    alarm: Alarm,
    pub(super) schedule: Schedule,
    pub(super) settings: Option<Settings>,
    /// Pid and process group of the command, once it has started.
    pub(super) command: Option<Pid>,
    pub(super) ended: Option<Ended>,
    /// Exit code for a command that was ended before it ended by itself.
    pub(super) ending_as: i32,
    /// Whether processes that cannot be killed have been reported.
    pub(super) complained: bool,
    /// Whether the command, which was stopped together with FRONT, is to be resumed now.
    pub(super) resume: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) how: Exited,
    /// Whether the command had been asked to stop before, because of its lease or its maximum
    /// runtime.
    pub(super) lost: bool,
    pub(super) had_terminal: bool,
}

/// Time by which FRONT defers to KEEPER when a command is to be ended.
const DEFER: Duration = Duration::from_millis(50);

impl<'a> Front<'a> {
    pub(in crate::run) fn new(job: &'a Job<'a>, family: Family, link: UnixStream) -> io::Result<Self> {
        let signals = Signals::listen()?;
        sys::ignore(Signal::SIGTTOU); // FRONT uses the terminal from the background too.
        Ok(Self {
            job,
            family,
            link: Link::new(link)?,
            signals,
            alarm: Alarm::new()?,
            schedule: Schedule::new(job.timing, DEFER),
            settings: job.terminal.settings(),
            command: None,
            ended: None,
            ending_as: exit::LEASE_LOST,
            complained: false,
            resume: false,
        })
    }

    /// Runs until every process is dead. Returns the exit code.
    pub(in crate::run) fn stand(mut self) -> i32 {
        loop {
            // The order matters, since FRONT may have been stopped for any time: messages first,
            // then the expiry time, then everything else. WATCHDOG exits after KEEPER has sent all
            // of its messages.
            let alone = self.family.watchdog.is_none();
            let over = self.hear().or_else(|| alone.then(|| self.watchdog_is_dead()));
            let over = over.or_else(|| self.watch_the_time());
            if let Some(code) = over {
                return self.leave(code);
            }
            self.pass_signals_on();
            if self.family.watchdog.is_none() && !alone {
                continue;
            }
            self.alarm.sleep([self.signals.poll_fd(), self.link.stream.as_fd()]);
        }
    }

    /// Handles the messages of KEEPER. Returns the exit code when the run is over.
    fn hear(&mut self) -> Option<i32> {
        loop {
            match self.link.receive() {
                Received::Nothing => return None,
                Received::Gone => return Some(self.keeper_is_dead()),
                Received::Message(Message::Done(code)) => {
                    self.end_our_own();
                    return Some(code);
                }
                Received::Message(Message::Started(pid)) => self.command = Some(Pid::from_raw(pid)),
                Received::Message(Message::Exited(exited)) => self.command_has_ended(exited),
                Received::Message(Message::Ending(code)) => {
                    self.ending_as = code;
                    let now = BootInstant::now();
                    self.schedule.ask_to_stop(now, self.job.shared.valid_until().unwrap_or(now));
                }
                Received::Message(Message::Stopped(signal)) => self.stopped(signal),
                Received::Message(Message::Signal(_) | Message::Valid(_)) => {}
            }
        }
    }

    /// Ends the command when its lease is about to end and KEEPER has not done so.
    fn watch_the_time(&mut self) -> Option<i32> {
        self.command?;
        loop {
            // Read the clock first: if FRONT is stopped in between, for hours, the expiry time must
            // be the newer reading. KEEPER updates it with each renewal, without waking FRONT.
            let now = BootInstant::now();
            let valid_until = self.job.shared.valid_until()?;
            self.schedule.expect_delay(self.job.shared.delay());
            match self.schedule.due(now, valid_until) {
                // If no alarm can be set the deadline would be missed, so kill now.
                Due::Nothing(at) if self.alarm.set(at).is_ok() => return None,
                Due::Nothing(_) | Due::Kill => return Some(self.out_of_time()),
                Due::Term => {
                    self.schedule.ask_to_stop(now, valid_until);
                    if self.ended.is_none() {
                        self.say_out_of_time();
                        self.link.send(Message::Ending(exit::LEASE_LOST));
                        self.send(Signal::SIGTERM);
                        self.send(Signal::SIGCONT); // A stopped process defers SIGTERM.
                    }
                }
            }
        }
    }

    pub(super) fn say_out_of_time(&self) {
        let lock = self.lock();
        say!("the lease on lock '{lock}' is about to end and its keeper does not answer; ending the command");
    }

    /// Returns the name of the lock for messages.
    pub(super) fn lock(&self) -> &'a str {
        self.job.plan.locks.first().map_or("?", |lock| lock.as_str())
    }
}
