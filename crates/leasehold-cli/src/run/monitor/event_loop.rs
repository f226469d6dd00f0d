//! Main function of MONITOR, and its event loop while it holds the lease: from the start of the command
//! to the death of the last of its processes, and the release.

use std::fmt::Display;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use leasehold::model::format_duration;
use leasehold::{BootInstant, Error, GuardState};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getppid, setpgid};

use super::events::{Event, Events};
use super::lease::{Lease, STOP_SIGNALS};
use crate::exit;
use crate::output::{accepts_output, short};
use crate::run::command::{MonitoredCommand, TreeState};
use crate::run::link::{Exited, Message};
use crate::run::plan::RunContext;
use crate::run::pre_exec::{Image, NotStarted, PreExecChild};
use crate::run::status::status;
use crate::run::timing::Due;
use crate::run::{signals, sys, tree};

/// Number of renewals after which a lease that is too short for the command will not get longer. The first one
/// gives a lease that was handed over its whole ttl, and one response may be late.
const MAX_SHORT_RENEWALS: u64 = 2;

pub(super) struct Monitor<'a> {
    context: &'a RunContext<'a>,
    events: &'a mut Events,
    command: MonitoredCommand,
    /// Lease; held until no process of the command is alive, also if one of several locks is lost earlier.
    lease: Lease<'a>,
    lost: bool,
    /// Whether a request to release the lock has been passed on to the command.
    release_requested: bool,
    max_runtime_at: Option<BootInstant>,
    /// Whether it has been reported that renewals fail.
    renewals_fail: bool,
    /// Time to which the timer is set.
    timer_at: BootInstant,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(
        context: &'a RunContext<'a>,
        child: PreExecChild,
        lease: Lease<'a>,
        events: &'a mut Events,
    ) -> Self {
        let valid_until = lease.status.borrow().valid_until;
        Self {
            context,
            events,
            command: MonitoredCommand::new(child, &context.containment, context.timing, valid_until),
            lease,
            lost: false,
            release_requested: false,
            max_runtime_at: None,
            renewals_fail: false,
            timer_at: valid_until,
        }
    }

    /// Runs the command. Returns the exit code when every process is dead and the lock is released.
    pub(super) async fn run(mut self) -> i32 {
        if self.wait_for_usable_lease().await {
            self.start();
        } else {
            let _ = kill(self.command.child.pid, Signal::SIGKILL);
        }
        loop {
            self.check_lease();
            if self.tree_exited() || self.unkillable() {
                return self.finish().await;
            }
            self.check_deadlines();
            match self.events.next(&mut self.lease.status).await {
                Event::Supervisor(Message::Signal(signal)) if self.command.ended.is_none() => {
                    self.command.send(Signal::try_from(signal).ok());
                }
                // The command has ended; a signal now means that the user does not want to wait for
                // the processes it left behind.
                Event::Supervisor(Message::Signal(signal)) if STOP_SIGNALS.contains(&signal) => {
                    self.command.schedule.kill_now();
                }
                Event::Supervisor(Message::Ending(code)) => self.mark_ending(code),
                Event::SupervisorExited => {
                    // Immediately: during a grace period the process that killed SUPERVISOR may kill
                    // MONITOR too.
                    status!(
                        "the leasehold process that supervised the command has exited; killing the command"
                    );
                    self.mark_ending(exit::INTERNAL);
                    self.command.schedule.kill_now();
                }
                Event::Timer => self.observe_delay(),
                // The loop checks the rest.
                Event::Supervisor(_) | Event::Child | Event::Lease => {}
            }
        }
    }

    fn observe_delay(&mut self) {
        let late = BootInstant::now().after(self.timer_at);
        self.context.shared.observe_delay(late);
    }

    /// Waits until the lease is long enough to start the command. A lease that was handed over in
    /// the queue lasts only as long as its ticket until it is renewed; that may be so short that
    /// the command would have to be ended before the first renewal. Returns `false` if the lease is
    /// lost, if the store responds so late that no lease is long enough, or if SUPERVISOR withdraws or
    /// exits.
    async fn wait_for_usable_lease(&mut self) -> bool {
        loop {
            self.check_lease();
            if self.lost {
                return false;
            }
            let now = BootInstant::now();
            let renewal = now.plus(self.command.valid_until.after(now).mul_f64(self.context.plan.renew_at));
            if renewal < self.context.timing.term_at(self.command.valid_until) {
                return true;
            }
            if self.lease.renewals() >= MAX_SHORT_RENEWALS {
                let kill_after = format_duration(self.context.timing.kill_after);
                let ttl = format_duration(self.context.plan.ttl.as_duration());
                status!(
                    "the store is too slow for --kill-after {kill_after} with --ttl {ttl}: the command would \
                     be ended before a renewal; use a longer --ttl or a shorter --kill-after"
                );
                self.command.code = Some(exit::UNAVAILABLE);
                return false;
            }
            if self.events.set_timer(self.command.valid_until).is_err() {
                return false;
            }
            match self.events.next(&mut self.lease.status).await {
                Event::Supervisor(Message::Signal(signal)) if STOP_SIGNALS.contains(&signal) => {
                    self.command.code = Some(exit::SIGNAL_BASE + signal);
                    return false;
                }
                Event::SupervisorExited => return false,
                Event::Timer if BootInstant::now() >= self.command.valid_until => {
                    status!("the lease ended before the command could start");
                    self.command.code = Some(exit::LEASE_LOST);
                    return false;
                }
                _ => {}
            }
        }
    }

    /// Starts the command. The expiry time is shared with SUPERVISOR and WATCHDOG before the command runs.
    fn start(&mut self) {
        self.context.containment.end_abandoned();
        if self.command.child.needs_terminal_from_parent() {
            self.context.terminal.lend_at_start(self.command.child.pid);
        }
        self.max_runtime_at = self
            .context
            .plan
            .max_runtime
            .map(|max_runtime| BootInstant::now().plus(max_runtime.as_duration()));
        self.context.shared.set_valid_until(self.command.valid_until);
        let _ = kill(getppid(), Signal::SIGCHLD); // From now on WATCHDOG watches the expiry time.
        self.events.send(Message::Started(self.command.child.pid.as_raw()));
        let not_after = self.context.timing.term_at(self.command.valid_until);
        // If the message cannot be delivered the child is dead, which the loop detects.
        let _ = self.command.child.go(not_after, &self.lease.variables());
        // Not earlier: only from here on must a kill of everything called "leasehold" spare this
        // process, and now no caller waits for the time that the renaming takes.
        #[cfg(target_os = "linux")]
        sys::set_process_title(&format!("lease-monitor {}", self.context.plan.locks[0]));
    }

    fn check_lease(&mut self) {
        let status = self.lease.status.borrow_and_update().clone();
        if status.state == GuardState::Lost {
            let loss = self.lease.loss().filter(|_| !self.lost);
            self.lost = true;
            if let Some(error) = loss {
                // A lease that expired only now had not expired yet when the command ended.
                let taken = BootInstant::now() < status.valid_until;
                match self.command.ended {
                    None => status!("{error}; ending the command"),
                    Some(_) if taken => report_late_loss(&mut self.command, &error),
                    Some(_) => {}
                }
            }
            return self.request_stop(exit::LEASE_LOST);
        }
        self.command.valid_until = status.valid_until;
        if self.context.shared.valid_until().is_some() {
            self.context.shared.set_valid_until(status.valid_until);
        }
        if let Some(request) = status.release_request.filter(|_| !self.release_requested) {
            self.release_requested = true;
            let reason = request.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            status!("{} asks for the lock{reason}; asking the command to stop", request.by);
            self.command.send(Some(Signal::SIGTERM));
            self.command.send(Some(Signal::SIGCONT));
        }
    }

    /// Reaps dead children. Returns whether the command and all processes that it started are dead.
    fn tree_exited(&mut self) -> bool {
        loop {
            match self.command.poll() {
                TreeState::Exited => return true,
                TreeState::Alive => return false,
                TreeState::CommandEnded(ended) => self.command_ended(ended),
                TreeState::CommandStopped(signal) => self.events.send(Message::Stopped(signal)),
            }
        }
    }

    fn command_ended(&mut self, ended: Exited) {
        let ended = match self.command.child.not_started() {
            Some(NotStarted::TooLate) => {
                status!("the lease ended before the command could start");
                Exited::Code(exit::LEASE_LOST)
            }
            Some(NotStarted::Refused(errno)) => Exited::Code(self.exec_failed(errno)),
            None => ended,
        };
        if self.context.shared.was_out_of_time() {
            self.mark_ending(exit::LEASE_LOST);
        }
        self.command.record_end(ended);
        self.events.send(Message::Exited(ended));
    }

    fn exec_failed(&self, errno: Errno) -> i32 {
        let command = self.context.plan.command[0].display();
        let (reason, code) = match errno {
            Errno::ENOENT if Path::new(&self.context.plan.command[0]).exists() => {
                ("its interpreter is missing", exit::NOT_RUNNABLE)
            }
            Errno::ENOENT => ("it no longer exists", exit::NOT_FOUND),
            errno => (errno.desc(), exit::NOT_RUNNABLE),
        };
        status!("command '{command}' cannot be run: {reason}");
        code
    }

    /// Warns when renewals begin to fail, long before the command has to be ended, and says when they
    /// succeed again.
    fn check_renewals(&mut self, now: BootInstant) {
        let failing = self.lease.status.borrow().state == GuardState::Uncertain;
        let is_ending = self.command.schedule.is_ending() || self.command.ended.is_some();
        if failing == self.renewals_fail || is_ending || self.context.plan.quiet || !accepts_output() {
            return;
        }
        self.renewals_fail = failing;
        let lock = &self.context.plan.locks[0];
        if failing {
            let ends = short(self.context.timing.term_at(self.command.valid_until).after(now));
            status!(
                "the lease on lock '{lock}' could not be renewed; unless a renewal succeeds, the command is \
                 asked to stop in {ends}"
            );
        } else {
            status!("the lease on lock '{lock}' is renewed again");
        }
    }

    fn check_deadlines(&mut self) {
        // Read the clock first: a renewal that arrives in between must count.
        let mut now = BootInstant::now();
        self.command.valid_until = self.lease.status.borrow().valid_until;
        self.check_renewals(now);
        self.command.schedule.set_timer_delay(self.context.shared.delay());
        let mut due = self.command.schedule.due(now, self.command.valid_until);
        if due == Due::Term {
            let lock = &self.context.plan.locks[0];
            status!("the lease on lock '{lock}' could not be renewed; ending the command before it ends");
            self.request_stop(exit::LEASE_LOST);
            now = BootInstant::now();
            due = self.command.schedule.due(now, self.command.valid_until);
        }
        if self.stop_if_overdue(now) {
            now = BootInstant::now();
            due = self.command.schedule.due(now, self.command.valid_until);
        }
        let next = match due {
            Due::Nothing(at) => {
                let at = at.min(now.plus(self.context.timing.probe_interval()));
                self.max_runtime_at
                    .filter(|_| !self.command.schedule.is_ending())
                    .map_or(at, |overdue| overdue.min(at))
            }
            Due::Term => now,
            Due::Kill => {
                self.mark_ending(exit::LEASE_LOST); // No effect if it is ending for another reason.
                self.kill_all(now)
            }
        };
        self.timer_at = next;
        if self.events.set_timer(next).is_err() {
            // Without a timer the deadline would be missed, so kill now.
            self.mark_ending(exit::INTERNAL);
            self.kill_all(now);
        }
    }

    /// Asks the command to stop if it has reached its maximum runtime. Returns whether it did.
    fn stop_if_overdue(&mut self, now: BootInstant) -> bool {
        let is_overdue = self.max_runtime_at.is_some_and(|at| at <= now);
        if !is_overdue || self.command.ended.is_some() || self.command.schedule.is_ending() {
            return false;
        }
        let max_runtime =
            self.context.plan.max_runtime.map(|max_runtime| max_runtime.to_string()).unwrap_or_default();
        status!("the command ran for {max_runtime}, its --max-runtime; ending it");
        self.request_stop(exit::TIMED_OUT);
        true
    }

    /// Makes one kill pass. Returns when to make the next.
    fn kill_all(&mut self, now: BootInstant) -> BootInstant {
        let (next, reported) = self.command.kill_pass(now);
        if reported {
            status!("the lock stays held until they have ended, as long as its lease can be renewed");
        }
        next
    }

    /// Whether processes survive SIGKILL although the lease has ended: waiting longer cannot help.
    fn unkillable(&self) -> bool {
        self.command.unkillable() || (self.command.survivors_reported && self.lost)
    }

    fn request_stop(&mut self, code: i32) {
        // Before any signal, so that SUPERVISOR does not ask again and knows why the command ends.
        self.command.request_stop(code, || self.events.send(Message::Ending(code)));
    }

    /// Marks the command as ending. If it has not ended by itself before, `code` states why.
    fn mark_ending(&mut self, code: i32) {
        if self.command.mark_ending(code) {
            self.events.send(Message::Ending(code));
        }
    }

    async fn finish(mut self) -> i32 {
        if self.command.left_behind > 0 && self.command.code.is_none() && !self.command.survivors_reported {
            let (count, were) = match self.command.left_behind {
                1 => ("1 process".to_owned(), "was"),
                n => (format!("{n} processes"), "were"),
            };
            status!("{count} left behind by the command {were} ended");
        }
        if self.lost {
            self.lease.explain_loss().await;
        } else if BootInstant::now() >= self.command.valid_until {
            // This process was stopped or the machine suspended, and no timer has noticed the end of the lease.
            let lock = &self.context.plan.locks[0];
            report_late_loss(&mut self.command, format_args!("the lease on lock '{lock}' has ended"));
        }
        match self.lease.release().await {
            Err(error @ (Error::Lost { .. } | Error::NotHeld { .. })) if !self.lost => {
                report_late_loss(&mut self.command, error);
            }
            Err(error @ Error::Store { .. }) if self.command.code.is_none() => {
                status!(
                    "the lock could not be released, and becomes free when its lease expires at the latest: {error}"
                );
            }
            Ok(()) | Err(_) => {}
        }
        self.command.code.or(self.command.ended.map(Exited::code)).unwrap_or(exit::INTERNAL)
    }
}

/// Records that the lease was lost although the command had ended by itself: the command may have run past
/// the end of its lease.
fn report_late_loss(command: &mut MonitoredCommand, error: impl Display) {
    if command.code.is_none() {
        status!("{error}; the command may have run beside another holder");
        command.code = Some(exit::LEASE_LOST);
    }
}

/// Runs MONITOR and returns the code for `_exit`. If the event loop is reached, exits instead of returning.
pub(in crate::run) fn run_monitor(context: &RunContext<'_>, image: &Image, link: UnixStream) -> i32 {
    // A process group of its own: SUPERVISOR interprets the signals that the terminal or the shell
    // sends to its job.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    tree::become_subreaper();
    set_process_name();
    // Fork the command first: the fork requires a single thread, and must be made by a thread that lives as
    // long as this process, because the system ties the parent-death signal to that thread.
    let forked = PreExecChild::fork(image, &context.terminal, &context.containment, link);
    let started = forked.and_then(|(child, link)| {
        signals::ignore_in_monitor();
        sys::undo_low_priority(); // The command keeps the inherited priority.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(acquire_and_run(context, child, link))
    });
    started.unwrap_or_else(|error| {
        status!("cannot start the command: {error}");
        exit::INTERNAL
    })
}

/// Exits when the run is over; returns only if the events cannot be received.
async fn acquire_and_run(context: &RunContext<'_>, child: PreExecChild, link: UnixStream) -> io::Result<i32> {
    let mut events = Events::new(link)?;
    let code = match Box::pin(Lease::acquire(context, &child, &mut events)).await {
        Ok(lease) => Monitor::new(context, child, lease, &mut events).run().await,
        Err(code) => {
            // The child waits for a "go" that will not be sent.
            let _ = kill(child.pid, Signal::SIGKILL);
            let _ = waitpid(child.pid, None);
            code
        }
    };
    events.send(Message::Done(code));
    // Exit immediately: any further cleanup would only delay the user's prompt.
    sys::exit_now(code)
}

/// Renames this process, so that a kill of all processes called "leasehold" spares one that can
/// still end the command.
pub(in crate::run) fn set_process_name() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"lease-monitor");
}
