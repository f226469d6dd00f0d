//! What FRONT does from beginning to end: it hears what KEEPER says, watches the time, and passes signals on.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::Moment;
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

/// The processes around FRONT.
pub(in crate::run) struct Family {
    /// None once it is dead and reaped: its number may then belong to anybody.
    pub(super) watchdog: Option<Pid>,
    /// Whether KEEPER may still have something to do.
    pub(super) keeper_may_work: bool,
    /// Children from before, when this process was another program. They are none of our business.
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
    /// The command and its group, once it has started.
    pub(super) command: Option<Pid>,
    pub(super) ended: Option<Ended>,
    /// The exit code for a command that was ended before it ended by itself.
    pub(super) ending_as: i32,
    /// Somebody has been told that not everything can be killed.
    pub(super) complained: bool,
    /// The command was stopped, and we with it; now it is to go on.
    pub(super) resume: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) how: Exited,
    /// Whether it had been asked to stop before, because of its lease or its maximum runtime.
    pub(super) lost: bool,
    pub(super) had_terminal: bool,
}

/// How long KEEPER has the first word when a command is to be ended.
const DEFER: Duration = Duration::from_millis(50);

impl<'a> Front<'a> {
    pub(in crate::run) fn new(job: &'a Job<'a>, family: Family, link: UnixStream) -> io::Result<Self> {
        let signals = Signals::listen()?;
        sys::ignore(Signal::SIGTTOU); // We write, and hand the terminal over, from the background too.
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

    /// Until everything is over. Returns the code to exit with.
    pub(in crate::run) fn stand(mut self) -> i32 {
        loop {
            // Whatever woke us, and however long we were away: news first, then the time, then everything else. WATCHDOG
            // ends after KEEPER has said all that it has to say.
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

    /// What KEEPER says. Gives the exit code when there is nothing more to be done.
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
                    let now = Moment::now();
                    self.schedule.ask_to_stop(now, self.job.shared.valid_until().unwrap_or(now));
                }
                Received::Message(Message::Stopped(signal)) => self.stopped(signal),
                Received::Message(Message::Signal(_) | Message::Valid(_)) => {}
            }
        }
    }

    /// Ends the command when its lease comes to its end and KEEPER has not done so.
    fn watch_the_time(&mut self) -> Option<i32> {
        self.command?;
        loop {
            // The clock first: if we are stopped in between, for hours, the other reading must be the newer one. KEEPER
            // moves it with each renewal, and does not wake us for it.
            let now = Moment::now();
            let valid_until = self.job.shared.valid_until()?;
            self.schedule.expect_delay(self.job.shared.delay());
            match self.schedule.due(now, valid_until) {
                // Without an alarm we would miss the time. If there is none to be had, the time is now.
                Due::Nothing(at) if self.alarm.set(at).is_ok() => return None,
                Due::Nothing(_) | Due::Kill => return Some(self.out_of_time()),
                Due::Term => {
                    self.schedule.ask_to_stop(now, valid_until);
                    if self.ended.is_none() {
                        self.say_out_of_time();
                        self.link.send(Message::Ending(exit::LEASE_LOST));
                        self.send(Signal::SIGTERM);
                        self.send(Signal::SIGCONT); // What is stopped does not hear.
                    }
                }
            }
        }
    }

    pub(super) fn say_out_of_time(&self) {
        let lock = self.lock();
        say!("the lease on lock '{lock}' is about to end and its keeper does not answer; ending the command");
    }

    /// The lock, as people know it.
    pub(super) fn lock(&self) -> &'a str {
        self.job.plan.locks.first().map_or("?", |lock| lock.as_str())
    }
}
