//! Event loop of SUPERVISOR: receives messages of MONITOR, watches the expiry time, and forwards
//! signals.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::exit;
use crate::run::link::{Exited, Link, Message, Received};
use crate::run::plan::RunContext;
use crate::run::signals::Signals;
use crate::run::status::status;
use crate::run::sys;
use crate::run::terminal::Settings;
use crate::run::timer::Timer;
use crate::run::timing::{Due, KillSchedule};

/// Other processes that SUPERVISOR keeps track of.
pub(in crate::run) struct ProcessFamily {
    /// Pid of WATCHDOG; `None` once it is reaped, because the pid may be reused then.
    pub(super) watchdog: Option<Pid>,
    /// Whether MONITOR may still have work to do.
    pub(super) monitor_has_work: bool,
    /// Children inherited across `exec`; never signalled.
    pub(super) inherited: Vec<Pid>,
}

impl ProcessFamily {
    pub(in crate::run) fn new(watchdog: Pid, inherited: Vec<Pid>) -> Self {
        Self { watchdog: Some(watchdog), monitor_has_work: true, inherited }
    }
}

/// Process that the shell started.
pub(in crate::run) struct Supervisor<'a> {
    pub(super) context: &'a RunContext<'a>,
    pub(super) family: ProcessFamily,
    pub(super) link: Link,
    pub(super) signals: Signals,
    timer: Timer,
    pub(super) schedule: KillSchedule,
    pub(super) settings: Option<Settings>,
    /// Pid and process group of the command, once it has started.
    pub(super) command: Option<Pid>,
    pub(super) ended: Option<Ended>,
    /// Exit code for a command that was ended before it ended by itself.
    pub(super) end_code: i32,
    /// Whether processes that cannot be killed have been reported.
    pub(super) survivors_reported: bool,
    /// Whether the command, which was stopped together with SUPERVISOR, is to be resumed now.
    pub(super) resume: bool,
}

/// How the command ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) exited: Exited,
    /// Whether the command had been asked to stop before, because of its lease or its maximum
    /// runtime.
    pub(super) lost: bool,
    pub(super) had_terminal: bool,
}

/// Time by which SUPERVISOR defers to MONITOR when a command is to be ended.
const DEFER: Duration = Duration::from_millis(50);

impl<'a> Supervisor<'a> {
    pub(in crate::run) fn new(
        context: &'a RunContext<'a>,
        family: ProcessFamily,
        link: UnixStream,
    ) -> io::Result<Self> {
        let signals = Signals::listen()?;
        sys::ignore(Signal::SIGTTOU); // SUPERVISOR uses the terminal from the background too.
        Ok(Self {
            context,
            family,
            link: Link::new(link)?,
            signals,
            timer: Timer::new()?,
            schedule: KillSchedule::new(context.timing, DEFER),
            settings: context.terminal.settings(),
            command: None,
            ended: None,
            end_code: exit::LEASE_LOST,
            survivors_reported: false,
            resume: false,
        })
    }

    /// Runs until every process is dead. Returns the exit code.
    pub(in crate::run) fn run(mut self) -> i32 {
        loop {
            // The order matters, since SUPERVISOR may have been stopped for any time: messages first,
            // then the expiry time, then everything else. WATCHDOG exits after MONITOR has sent all
            // of its messages.
            let watchdog_died = self.family.watchdog.is_none();
            let code = self.handle_messages().or_else(|| watchdog_died.then(|| self.watchdog_died()));
            let code = code.or_else(|| self.check_deadlines());
            if let Some(code) = code {
                return self.restore_terminal(code);
            }
            self.forward_signals();
            if self.family.watchdog.is_none() && !watchdog_died {
                continue;
            }
            self.timer.sleep([self.signals.poll_fd(), self.link.stream.as_fd()]);
        }
    }

    /// Handles the messages of MONITOR. Returns the exit code when the run is over.
    fn handle_messages(&mut self) -> Option<i32> {
        loop {
            match self.link.receive() {
                Received::Nothing => return None,
                Received::Gone => return Some(self.monitor_died()),
                Received::Message(Message::Done(code)) => {
                    self.end_watchdog_and_monitor();
                    return Some(code);
                }
                Received::Message(Message::Started(pid)) => self.command = Some(Pid::from_raw(pid)),
                Received::Message(Message::Exited(exited)) => self.command_has_ended(exited),
                Received::Message(Message::Ending(code)) => {
                    self.end_code = code;
                    let now = BootInstant::now();
                    self.schedule.request_stop(now, self.context.shared.valid_until().unwrap_or(now));
                }
                Received::Message(Message::Stopped(signal)) => self.stopped(signal),
                Received::Message(Message::Signal(_) | Message::Valid(_)) => {}
            }
        }
    }

    /// Ends the command when its lease is about to end and MONITOR has not done so.
    fn check_deadlines(&mut self) -> Option<i32> {
        self.command?;
        loop {
            // Read the clock first: if SUPERVISOR is stopped in between, for hours, the expiry time
            // must be the newer reading. MONITOR updates it with each renewal, without waking
            // SUPERVISOR.
            let now = BootInstant::now();
            let valid_until = self.context.shared.valid_until()?;
            self.schedule.set_timer_delay(self.context.shared.delay());
            match self.schedule.due(now, valid_until) {
                // If no timer can be set the deadline would be missed, so kill now.
                Due::Nothing(at) if self.timer.set(at).is_ok() => return None,
                Due::Nothing(_) | Due::Kill => return Some(self.out_of_time()),
                Due::Term => {
                    self.schedule.request_stop(now, valid_until);
                    if self.ended.is_none() {
                        self.report_out_of_time();
                        self.link.send(Message::Ending(exit::LEASE_LOST));
                        self.send(Signal::SIGTERM);
                        self.send(Signal::SIGCONT); // A stopped process defers SIGTERM.
                    }
                }
            }
        }
    }

    pub(super) fn report_out_of_time(&self) {
        let lock = self.lock();
        status!(
            "the lease on lock '{lock}' is about to end and its monitor does not respond; ending the command"
        );
    }

    /// Returns the name of the lock for messages.
    pub(super) fn lock(&self) -> &'a str {
        self.context.plan.locks.first().map_or("?", |lock| lock.as_str())
    }
}
