//! KEEPER while it holds the lease: from the start of the command to the death of the last of its
//! processes, and the release.

use std::path::Path;
use std::time::Duration;

use leasehold::{BootInstant, Error, GuardState};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::getppid;

use super::events::{Event, Events};
use super::lease::{ENDS, Lease};
use crate::exit;
use crate::run::link::{Exited, Message};
use crate::run::say::say;
use crate::run::start::Job;
use crate::run::stub::{NotStarted, Stub};
#[cfg(target_os = "linux")]
use crate::run::sys;
use crate::run::timing::{Due, Schedule};
use crate::run::tree::{self, Below, Reaped, negative};

pub(super) struct Hold<'a> {
    job: &'a Job<'a>,
    events: &'a mut Events,
    stub: Stub,
    /// Lease; held until no process of the command is alive, also if one of several locks is lost
    /// earlier.
    lease: Option<Lease<'a>>,
    lost: bool,
    /// Expiry time of the lease as far as KEEPER knows.
    valid_until: BootInstant,
    schedule: Schedule,
    below: Below,
    /// How the command ended; processes that it left behind may still be alive.
    ended: Option<Exited>,
    /// Exit code, if it is not the command's own.
    code: Option<i32>,
    asked: bool,
    /// Time at which the command reaches its maximum runtime.
    overdue_at: Option<BootInstant>,
    left_behind: usize,
    killing: Killing,
    /// Time to which the alarm is set.
    rings_at: BootInstant,
}

/// Progress of the kill passes.
struct Killing {
    pause: Duration,
    since: Option<BootInstant>,
    complained: bool,
}

/// Time after which processes that survive SIGKILL are reported.
const STUBBORN: Duration = Duration::from_secs(2);

impl<'a> Hold<'a> {
    pub(super) fn new(job: &'a Job<'a>, stub: Stub, lease: Lease<'a>, events: &'a mut Events) -> Self {
        let valid_until = lease.health.borrow().valid_until;
        let below = stub.below(&job.contained);
        let killing = Killing { pause: Duration::from_millis(1), since: None, complained: false };
        Self {
            job,
            events,
            stub,
            lease: Some(lease),
            lost: false,
            valid_until,
            schedule: Schedule::new(job.timing, Duration::ZERO),
            below,
            ended: None,
            code: None,
            asked: false,
            overdue_at: None,
            left_behind: 0,
            killing,
            rings_at: valid_until,
        }
    }

    /// Runs the command. Returns the exit code when every process is dead and the lock is released.
    pub(super) async fn run(mut self) -> i32 {
        if self.wait_for_time_to_work().await {
            self.start();
        } else {
            let _ = kill(self.stub.pid, Signal::SIGKILL);
        }
        loop {
            self.look_at_lease();
            if self.everything_is_dead() || self.nothing_helps() {
                return self.finish().await;
            }
            self.watch_the_time();
            let lease = self.lease.as_mut().map(|lease| &mut lease.health);
            match self.events.next(lease).await {
                Event::Front(Message::Signal(signal)) if self.ended.is_none() => {
                    self.send(Signal::try_from(signal).ok());
                }
                // The command has ended; a signal now means that the user does not want to wait for
                // the processes it left behind.
                Event::Front(Message::Signal(signal)) if ENDS.contains(&signal) => self.schedule.kill_now(),
                Event::Front(Message::Ending(code)) => self.ending(code),
                Event::FrontGone => {
                    // Immediately: during a grace period the process that killed FRONT may kill
                    // KEEPER too.
                    say!("the leasehold process in front of the command is gone; killing the command");
                    self.ending(exit::INTERNAL);
                    self.schedule.kill_now();
                }
                Event::Alarm => self.observe_delay(),
                // The loop checks the rest.
                Event::Front(_) | Event::Child | Event::Lease => {}
            }
        }
    }

    /// Records how late the alarm fired.
    fn observe_delay(&mut self) {
        let late = BootInstant::now().after(self.rings_at);
        self.job.shared.observe_delay(late);
    }

    /// Waits until the lease is long enough to start the command. A lease that was handed over in
    /// the queue lasts only as long as its ticket until it is renewed; that may be so short that
    /// the command would have to be ended before the first renewal. Returns `false` if the lease is
    /// lost, or if FRONT withdraws or exits.
    async fn wait_for_time_to_work(&mut self) -> bool {
        loop {
            self.look_at_lease();
            if self.lost {
                return false;
            }
            let now = BootInstant::now();
            let renewal = now.plus(self.valid_until.after(now).mul_f64(self.job.plan.renew_at));
            if renewal < self.job.timing.term_at(self.valid_until) {
                return true;
            }
            let lease = self.lease.as_mut().map(|lease| &mut lease.health);
            if self.events.wake_at(self.valid_until).is_err() {
                return false;
            }
            match self.events.next(lease).await {
                Event::Front(Message::Signal(signal)) => {
                    self.code = Some(exit::SIGNAL_BASE + signal);
                    return false;
                }
                Event::FrontGone => return false,
                Event::Alarm if BootInstant::now() >= self.valid_until => {
                    say!("the lease ended before the command could start");
                    self.code = Some(exit::LEASE_LOST);
                    return false;
                }
                _ => {}
            }
        }
    }

    /// Starts the command. The expiry time is shared with FRONT and WATCHDOG before the command
    /// runs.
    fn start(&mut self) {
        self.job.contained.end_abandoned();
        if self.stub.needs_terminal_from_parent() {
            self.job.terminal.lend_at_start(self.stub.pid);
        }
        self.overdue_at =
            self.job.plan.max_runtime.map(|longest| BootInstant::now().plus(longest.as_duration()));
        self.job.shared.set_valid_until(self.valid_until);
        let _ = kill(getppid(), Signal::SIGCHLD); // From now on WATCHDOG watches the expiry time.
        self.events.tell(Message::Started(self.stub.pid.as_raw()));
        let variables = self.lease.as_ref().map(Lease::variables).unwrap_or_default();
        let not_after = self.job.timing.term_at(self.valid_until);
        // If the message cannot be delivered the stub is dead, which the loop detects.
        let _ = self.stub.go(not_after, &variables);
        // Not earlier: only from here on must a kill of everything called "leasehold" spare this
        // process, and now no caller waits for the time that the renaming takes.
        #[cfg(target_os = "linux")]
        sys::show_as(&format!("lease-keeper {}", self.job.plan.locks[0]));
    }

    fn look_at_lease(&mut self) {
        let Some(lease) = &mut self.lease else { return };
        let health = lease.health.borrow_and_update().clone();
        if health.state == GuardState::Lost {
            let loss = lease.loss().filter(|_| !self.lost);
            self.lost = true;
            if let Some(error) = loss {
                // A lease that expired only now had not expired yet when the command ended.
                let taken = BootInstant::now() < health.valid_until;
                match self.ended {
                    None => say!("{error}; ending the command"),
                    Some(_) if taken => self.lost_before_the_end(&error),
                    Some(_) => {}
                }
            }
            return self.ask_to_stop(exit::LEASE_LOST);
        }
        self.valid_until = health.valid_until;
        if self.job.shared.valid_until().is_some() {
            self.job.shared.set_valid_until(health.valid_until);
        }
        if let Some(asked) = health.asked.filter(|_| !self.asked) {
            self.asked = true;
            let why = asked.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            say!("{} asks for the lock{why}; asking the command to stop", asked.by);
            self.send(Some(Signal::SIGTERM));
            self.send(Some(Signal::SIGCONT));
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
            WaitStatus::Stopped(_, signal) => return self.events.tell(Message::Stopped(signal as i32)),
            _ => return,
        };
        let ended = match self.stub.not_started() {
            Some(NotStarted::TooLate) => {
                say!("the lease ended before the command could start");
                Exited::Code(exit::LEASE_LOST)
            }
            Some(NotStarted::Refused(errno)) => Exited::Code(self.could_not_start(errno)),
            None => ended,
        };
        if self.job.shared.was_out_of_time() {
            self.ending(exit::LEASE_LOST);
        }
        self.ended = Some(ended);
        self.below.leader_is_buried();
        self.stub.is_buried();
        self.events.tell(Message::Exited(ended));
    }

    fn could_not_start(&self, errno: Errno) -> i32 {
        let command = self.job.plan.command[0].display();
        let (why, code) = match errno {
            Errno::ENOENT if Path::new(&self.job.plan.command[0]).exists() => {
                ("its interpreter is missing", exit::NOT_RUNNABLE)
            }
            Errno::ENOENT => ("it is not there any more", exit::NOT_FOUND),
            errno => (errno.desc(), exit::NOT_RUNNABLE),
        };
        say!("command '{command}' cannot be run: {why}");
        code
    }

    /// Asks the processes that outlive the command to stop, once.
    fn end_what_is_left(&mut self) {
        if self.ended.is_none() || self.left_behind > 0 {
            return;
        }
        // Processes in the group of a command that was asked to stop have received SIGTERM already.
        let asked = self.schedule.is_ending().then_some(self.stub.pid);
        self.schedule.ask_to_stop(BootInstant::now(), self.valid_until);
        self.left_behind = self.below.signal(Signal::SIGTERM, asked).alive;
        self.below.signal(Signal::SIGCONT, None);
    }

    fn watch_the_time(&mut self) {
        // Read the clock first: a renewal that arrives in between must count.
        let mut now = BootInstant::now();
        if let Some(lease) = &self.lease {
            self.valid_until = lease.health.borrow().valid_until;
        }
        self.schedule.expect_delay(self.job.shared.delay());
        let mut due = self.schedule.due(now, self.valid_until);
        if due == Due::Term {
            let lock = &self.job.plan.locks[0];
            say!("the lease on lock '{lock}' could not be renewed; ending the command before it ends");
            self.ask_to_stop(exit::LEASE_LOST);
            now = BootInstant::now();
            due = self.schedule.due(now, self.valid_until);
        }
        if self.end_if_overdue(now) {
            now = BootInstant::now();
            due = self.schedule.due(now, self.valid_until);
        }
        let next = match due {
            Due::Nothing(at) => {
                let at = at.min(now.plus(self.job.timing.probe_every()));
                self.overdue_at.filter(|_| !self.schedule.is_ending()).map_or(at, |overdue| overdue.min(at))
            }
            Due::Term => now,
            Due::Kill => {
                self.ending(exit::LEASE_LOST); // No effect if it is ending for another reason.
                self.kill_all(now)
            }
        };
        self.rings_at = next;
        if self.events.wake_at(next).is_err() {
            // Without an alarm the deadline would be missed, so kill now.
            self.ending(exit::INTERNAL);
            self.kill_all(now);
        }
    }

    /// Asks the command to stop if it has reached its maximum runtime. Returns whether it did.
    fn end_if_overdue(&mut self, now: BootInstant) -> bool {
        let is_overdue = self.overdue_at.is_some_and(|at| at <= now);
        if !is_overdue || self.ended.is_some() || self.schedule.is_ending() {
            return false;
        }
        let longest = self.job.plan.max_runtime.map(|longest| longest.to_string()).unwrap_or_default();
        say!("the command ran for {longest}, its --max-runtime; ending it");
        self.ask_to_stop(exit::TIMED_OUT);
        true
    }

    /// Makes one kill pass. Returns when to make the next.
    fn kill_all(&mut self, now: BootInstant) -> BootInstant {
        let pass = self.below.kill();
        let since = *self.killing.since.get_or_insert(now);
        if now.after(since) >= STUBBORN && !self.killing.complained {
            self.killing.complained = true;
            tree::complain(&pass);
            say!("the lock stays held until they have ended, as long as its lease can be renewed");
        }
        let next = now.plus(self.killing.pause);
        self.killing.pause = (self.killing.pause * 2).min(Duration::from_millis(200));
        next
    }

    /// Whether the processes that survive SIGKILL have outlived the lease: waiting longer cannot
    /// help.
    fn nothing_helps(&self) -> bool {
        self.killing.complained && (self.lost || BootInstant::now() >= self.valid_until)
    }

    /// Asks the command to stop, unless that has been done.
    fn ask_to_stop(&mut self, code: i32) {
        let asked = self.schedule.is_ending();
        self.ending(code);
        if !asked {
            self.send(Some(Signal::SIGTERM));
            self.send(Some(Signal::SIGCONT)); // A stopped process defers SIGTERM.
        }
    }

    /// Marks the command as ending. If it has not ended by itself before, `code` states why.
    fn ending(&mut self, code: i32) {
        if self.ended.is_none() {
            if !self.schedule.is_ending() {
                // Before any signal, so that FRONT does not ask again and knows why the command
                // ends.
                self.events.tell(Message::Ending(code));
            }
            self.code.get_or_insert(code);
        }
        self.schedule.ask_to_stop(BootInstant::now(), self.valid_until);
    }

    /// Sends a signal to the whole process group of the command, as long as the group id cannot
    /// have been reused.
    fn send(&self, signal: Option<Signal>) {
        if self.ended.is_none() {
            let _ = kill(negative(self.stub.pid), signal);
        }
    }

    /// Records that the lease was lost although the command had ended by itself: the command may
    /// have run past the end of its lease.
    fn lost_before_the_end(&mut self, error: &Error) {
        if self.code.is_none() {
            say!("{error}; the command may have run beside another holder");
            self.code = Some(exit::LEASE_LOST);
        }
    }

    async fn finish(mut self) -> i32 {
        if self.left_behind > 0 && self.code.is_none() && !self.killing.complained {
            let (count, were) = match self.left_behind {
                1 => ("1 process".to_owned(), "was"),
                n => (format!("{n} processes"), "were"),
            };
            say!("{count} left behind by the command {were} ended");
        }
        if let Some(lease) = self.lease.take() {
            match lease.release().await {
                Err(error @ (Error::Lost { .. } | Error::NotHeld { .. })) if !self.lost => {
                    self.lost_before_the_end(&error);
                }
                Err(error @ Error::Store { .. }) if self.code.is_none() => {
                    say!("the lock could not be released, and frees itself when its time is over: {error}");
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.code.or(self.ended.map(Exited::code)).unwrap_or(exit::INTERNAL)
    }
}
