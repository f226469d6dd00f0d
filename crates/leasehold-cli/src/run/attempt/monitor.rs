//! Monitor of an attempt. This program is started again, under another name, with its link to the worker
//! as stdin; the started process forks MONITOR and becomes WATCHDOG. MONITOR watches the command from its
//! start to the death of the last of its processes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use leasehold::BootInstant;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, dup2_stdin, getppid, setsid};

use super::launch::{LaunchSpec, NAME};
use crate::exit;
use crate::run::command::{MonitoredCommand, TreeState};
use crate::run::contain::Containment;
use crate::run::link::{Exited, Link, Message, Received};
use crate::run::monitor::set_process_name;
use crate::run::pre_exec::{Image, NotStarted, PreExecChild};
use crate::run::signals::{self, Signals};
use crate::run::status::status;
use crate::run::sys::{self, Shared};
use crate::run::terminal::Terminal;
use crate::run::timer::Timer;
use crate::run::timing::{Due, Timing};
use crate::run::tree;
use crate::run::watchdog::Watchdog;

struct AttemptMonitor {
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

impl AttemptMonitor {
    fn new(
        child: PreExecChild,
        link: UnixStream,
        valid_until: BootInstant,
        timing: Timing,
        shared: Shared,
        containment: Containment,
    ) -> io::Result<Self> {
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
    fn run(mut self, variables: &[u8]) -> i32 {
        self.containment.end_abandoned();
        self.send(Message::Started(self.command.child.pid.as_raw()));
        // If the message cannot be delivered the child is dead, which the loop below detects.
        let not_after = self.timing.term_at(self.command.valid_until);
        let _ = self.command.child.go(not_after, variables);
        loop {
            self.signals.pending(); // Signals only end the sleep of the loop; the state is checked below.
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
                Received::Exited => {
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
                TreeState::CommandEnded(ended) => self.command_ended(ended),
                TreeState::CommandStopped(_) => {}
            }
        }
    }

    fn command_ended(&mut self, ended: Exited) {
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

    fn request_stop(&mut self) {
        self.command.request_stop(exit::LEASE_LOST, || {});
    }

    fn send(&self, message: Message) {
        if let Some(link) = &self.link {
            link.send(message);
        }
    }
}

/// Runs the monitor if this process was started as one: `lease-monitor FILE COMMAND ARGUMENTS…`.
/// Returns its exit code, or `None` if this process is not a monitor.
pub(crate) fn run_attempt_monitor(arguments: &[OsString]) -> Option<i32> {
    let [name, file, command @ ..] = arguments else { return None };
    if name != NAME || command.is_empty() {
        return None;
    }
    Some(start(Path::new(file), command).unwrap_or_else(|error| {
        status!("cannot start the command: {error}");
        exit::INTERNAL
    }))
}

/// Forks MONITOR and becomes WATCHDOG.
fn start(file: &Path, command: &[OsString]) -> io::Result<i32> {
    let worker = getppid();
    signals::reset_inherited();
    tree::become_subreaper();
    let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let spec = LaunchSpec::read(&link)?;
    let Some(image) = Image::new(command, file) else {
        return Err(io::Error::other("the command contains a NUL byte"));
    };
    let containment = spec.contain.prepare()?;
    let (shared, timing) = (Shared::new()?, spec.timing);
    shared.set_valid_until(spec.valid_until);
    match sys::fork()? {
        ForkResult::Parent { child: monitor } => {
            // A second open copy of the link would hide the death of MONITOR from the worker.
            drop(link);
            dup2_stdin(File::open("/dev/null")?)?;
            shared.set_monitor(monitor);
            Ok(Watchdog { parent: worker, monitor, shared, timing, containment }.run())
        }
        ForkResult::Child => {
            let run = || run_monitor(spec, &image, link, shared, containment);
            let ended = catch_unwind(AssertUnwindSafe(run));
            let code = ended.unwrap_or(Ok(exit::INTERNAL)).unwrap_or_else(|error| {
                status!("cannot start the command: {error}");
                exit::INTERNAL
            });
            sys::exit_now(code)
        }
    }
}

/// Runs MONITOR: forks the command, and watches it until all of its processes have ended.
fn run_monitor(
    spec: LaunchSpec,
    image: &Image,
    link: UnixStream,
    shared: Shared,
    containment: Containment,
) -> io::Result<i32> {
    set_process_name();
    tree::become_subreaper();
    // A session without a terminal: a command that asks on the terminal fails. In the session of the worker it would
    // be stopped, and no shell would resume it.
    let _ = setsid();
    let (payload_reader, payload_writer) = io::pipe()?;
    dup2_stdin(&payload_reader)?;
    drop(payload_reader);
    let (child, (link, mut payload_writer)) =
        PreExecChild::fork(image, &Terminal::none(), &containment, (link, payload_writer))?;
    signals::ignore_in_monitor();
    sys::undo_low_priority(); // The command keeps the inherited priority.
    // Only the command holds the read end of the payload pipe now: when the command ends, the writer
    // thread ends.
    dup2_stdin(File::open("/dev/null")?)?;
    let LaunchSpec { valid_until, timing, variables, payload, .. } = spec;
    let monitor = AttemptMonitor::new(child, link, valid_until, timing, shared, containment)?;
    // On a separate thread, because the command need not read all of its input, or any. Started after
    // the fork, which requires a single thread.
    std::thread::spawn(move || payload_writer.write_all(&payload));
    Ok(monitor.run(&variables))
}
