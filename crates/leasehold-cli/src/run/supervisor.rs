//! SUPERVISOR: the process that the shell started. One thread, no runtime, no call that could wait
//! for a store. SUPERVISOR receives messages of MONITOR, watches the expiry time, forwards signals as a
//! job of the shell, and kills the whole tree when MONITOR has not ended the command in time, or when
//! MONITOR or WATCHDOG is dead.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use leasehold::BootInstant;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::sys::termios::Termios;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use super::link::{Exited, Link, Message, Received};
use super::plan::RunContext;
use super::signals::Signals;
use super::status::status;
use super::sys;
use super::timer::Timer;
use super::timing::{Due, KillSchedule, RELEASE_TIMEOUT};
use super::tree::{self, ProcessTree, Reaped};
use crate::exit;

/// Process that the shell started.
pub(super) struct Supervisor<'a> {
    context: &'a RunContext<'a>,
    /// Pid of WATCHDOG; `None` once it is reaped, because the pid may be reused then.
    watchdog: Option<Pid>,
    monitor_has_work: bool,
    /// Children inherited across `exec`; never signalled.
    inherited: Vec<Pid>,
    link: Link,
    signals: Signals,
    timer: Timer,
    schedule: KillSchedule,
    settings: Option<Termios>,
    /// Pid and process group of the command, once it has started.
    command: Option<Pid>,
    ended: Option<Ended>,
    /// Exit code for a command that was ended before it ended by itself.
    end_code: i32,
    survivors_reported: bool,
    /// Whether the command, which was stopped together with SUPERVISOR, is to be resumed now.
    resume: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    exited: Exited,
    /// Whether the command had been asked to stop before, because of its lease or its maximum runtime.
    lost: bool,
    had_terminal: bool,
}

/// Time for MONITOR to release the lock after every process of the command is dead, if the lease is about to end or
/// MONITOR may not respond.
const RELEASE_GRACE: Duration = Duration::from_secs(1);
/// Time for MONITOR to exit after its last message, and the interval at which SUPERVISOR checks it.
const EXIT_GRACE: Duration = Duration::from_millis(10);
const EXIT_POLL: Duration = Duration::from_micros(50);
/// Maximum time for killing processes that do not die.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time by which SUPERVISOR defers to MONITOR when a command is to be ended.
const DEFER: Duration = Duration::from_millis(50);

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        context: &'a RunContext<'a>,
        watchdog: Pid,
        inherited: Vec<Pid>,
        link: UnixStream,
    ) -> io::Result<Self> {
        let signals = Signals::listen()?;
        sys::ignore(Signal::SIGTTOU); // SUPERVISOR uses the terminal from the background too.
        Ok(Self {
            context,
            watchdog: Some(watchdog),
            monitor_has_work: true,
            inherited,
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
    pub(super) fn run(mut self) -> i32 {
        loop {
            // The order matters, since SUPERVISOR may have been stopped for any time: messages first,
            // then the expiry time, then everything else. WATCHDOG exits after MONITOR has sent all
            // of its messages.
            let watchdog_died = self.watchdog.is_none();
            let code = self.handle_messages().or_else(|| watchdog_died.then(|| self.watchdog_died()));
            let code = code.or_else(|| self.check_deadlines());
            if let Some(code) = code {
                return self.restore_terminal(code);
            }
            self.forward_signals();
            if self.watchdog.is_none() && !watchdog_died {
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
                Received::Exited => return Some(self.monitor_died()),
                Received::Message(Message::Done(code)) => {
                    self.end_watchdog();
                    self.await_monitor();
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
            // Read the clock first: if SUPERVISOR is stopped in between, for hours, the expiry time must be
            // the newer reading. MONITOR updates it with each renewal, without a message to SUPERVISOR.
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

    fn report_out_of_time(&self) {
        let lock = self.lock();
        status!(
            "the lease on lock '{lock}' is about to end and its monitor does not respond; ending the command"
        );
    }

    fn lock(&self) -> &'a str {
        self.context.plan.locks.first().map_or("?", |lock| lock.as_str())
    }

    fn forward_signals(&mut self) {
        let signals = self.signals.pending();
        self.forward(signals);
    }

    fn forward(&mut self, signals: Vec<Signal>) {
        for signal in signals {
            match signal {
                Signal::SIGCHLD => _ = self.reap_all(),
                Signal::SIGCONT => self.resume = true,
                Signal::SIGTSTP if self.command.is_none() => stop_with_our_job(),
                signal => self.send(signal),
            }
        }
        if std::mem::take(&mut self.resume) {
            self.context.terminal.lend_again(self.command);
            self.send(Signal::SIGCONT);
        }
    }

    /// Sends a signal to the whole process group of the command. While SUPERVISOR knows of no running
    /// command, the signal goes to MONITOR.
    fn send(&self, signal: Signal) {
        match (self.command, self.ended) {
            // Also after the command has ended: MONITOR is ending the processes that it left behind.
            (None, _) | (_, Some(_)) => self.link.send(Message::Signal(signal as i32)),
            (Some(command), None) => {
                let _ = killpg(command, signal);
            }
        }
    }

    /// Handles a stop of the command: by Ctrl-Z, or because the command needs a terminal that it
    /// does not have.
    fn stopped(&mut self, signal: i32) {
        let Some(command) = self.command.filter(|_| self.context.terminal.exists()) else { return };
        let signal = Signal::try_from(signal).unwrap_or(Signal::SIGSTOP);
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_terminal && self.context.terminal.lend(command) {
            return self.send(Signal::SIGCONT);
        }
        // The shell shows its prompt only when it sees its job stop. MONITOR continues to renew.
        self.context.terminal.take_back(command);
        stop_with_our_job();
        // If no process could resume this one (an orphaned process group), the system does not stop
        // it, and a command that the user stopped continues immediately. Others stay stopped until they
        // receive SIGCONT: one that needs the terminal would be stopped again at once.
        self.resume = signal == Signal::SIGTSTP;
        let signals = self.signals.pending();
        if wants_terminal && !signals.contains(&Signal::SIGCONT) {
            status!(
                "the command is stopped: it needs the terminal, which this job does not have, and no shell \
                 can resume this job; end it, or send SIGCONT to process {}",
                getpid()
            );
        }
        self.forward(signals);
    }

    /// Records the end of the command and takes the terminal back: processes left behind must not keep it.
    fn command_has_ended(&mut self, exited: Exited) {
        let had_terminal = self.command.is_some_and(|command| self.context.terminal.take_back(command));
        // No timer has noticed the end of the lease if all processes of leasehold were stopped meanwhile.
        let is_over = self.context.shared.valid_until().is_some_and(|until| BootInstant::now() >= until);
        let lost = self.schedule.is_ending() || self.context.shared.was_out_of_time() || is_over;
        self.ended = Some(Ended { exited, lost, had_terminal });
    }

    /// Restores the terminal before the exit and returns the exit code.
    fn restore_terminal(&self, code: i32) -> i32 {
        if let Some(command) = self.command {
            self.context.terminal.take_back(command);
        }
        match self.ended {
            Some(Ended { exited: Exited::Code(_), lost: false, .. }) => {}
            _ => self.settings.iter().for_each(|settings| self.context.terminal.put_back(settings)),
        }
        let interrupted = Exited::Signal(Signal::SIGINT as i32);
        if self.ended.is_some_and(|ended| ended.exited == interrupted && ended.had_terminal && !ended.lost) {
            // A shell ends its loop or script only if it sees that its child was killed by the interrupt.
            let _ = sys::with_default(Signal::SIGINT, || raise(Signal::SIGINT));
        }
        code
    }

    /// Kills everything below MONITOR because the lease is about to end. MONITOR may be stopped,
    /// stuck, or killing the same processes.
    fn out_of_time(&mut self) -> i32 {
        if !self.schedule.is_ending() && self.ended.is_none() {
            self.report_out_of_time();
        }
        let code = self.exit_code();
        self.kill_and_await_release();
        code
    }

    /// Ends the command because WATCHDOG was killed: with one supervising process less, the command
    /// must not continue.
    fn watchdog_died(&mut self) -> i32 {
        let lock = self.lock();
        let code = match self.command {
            None => {
                status!("the watchdog of lock '{lock}' exited; the command was not started");
                exit::INTERNAL
            }
            Some(_) => {
                status!("the watchdog of lock '{lock}' was killed; the command was ended");
                self.exit_code()
            }
        };
        self.kill_and_await_release();
        code
    }

    /// Kills everything below MONITOR, and leaves MONITOR the time to release the lock.
    fn kill_and_await_release(&mut self) {
        self.kill_all();
        let mut deadline = self.release_deadline(self.ended.is_some());
        while BootInstant::now() < deadline {
            match self.link.receive() {
                Received::Message(Message::Done(_)) | Received::Exited => break,
                Received::Message(Message::Exited(_)) => deadline = self.release_deadline(true),
                Received::Message(_) => {}
                Received::Nothing => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        self.end_watchdog_and_monitor();
    }

    /// Returns until when MONITOR may release the lock. A MONITOR that has reported the end of the command waits for
    /// the store, which may be slow: without the release the lock stays held until the end of the lease.
    fn release_deadline(&self, has_ended: bool) -> BootInstant {
        let now = BootInstant::now();
        let least = now.plus(RELEASE_GRACE);
        let valid_until = self.context.shared.valid_until().filter(|_| has_ended);
        valid_until.map_or(least, |until| until.min(now.plus(RELEASE_TIMEOUT + RELEASE_GRACE)).max(least))
    }

    /// Ends the command because MONITOR exited without a final message. All processes of the command
    /// are below SUPERVISOR now, and no process renews the lease.
    fn monitor_died(&mut self) -> i32 {
        // WATCHDOG last: as long as any process of the tree is alive, WATCHDOG can still end it if
        // SUPERVISOR is killed too.
        self.monitor_has_work = false;
        self.kill_all();
        self.end_watchdog_and_monitor();
        let lock = self.lock();
        match (self.command, self.ended) {
            (None, _) => {
                status!("the lease monitor of lock '{lock}' exited; the command was not started");
                exit::INTERNAL
            }
            (Some(_), None) => {
                status!("the lease monitor of lock '{lock}' was killed; the command was ended");
                self.exit_code()
            }
            (Some(_), Some(_)) => {
                status!("the lease monitor of lock '{lock}' was killed before it could release the lock");
                self.exit_code()
            }
        }
    }

    /// Returns the exit code of the command if it ended by itself, otherwise the code that states
    /// why it was ended.
    fn exit_code(&self) -> i32 {
        self.ended.filter(|ended| !ended.lost).map_or(self.end_code, |ended| ended.exited.code())
    }

    /// Ends WATCHDOG and MONITOR. Must be called when every other process is dead.
    fn end_watchdog_and_monitor(&mut self) {
        self.monitor_has_work = false;
        self.end_watchdog();
        self.kill_all();
        self.context.containment.remove();
    }

    fn end_watchdog(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            let _ = kill(watchdog, Signal::SIGKILL);
            while waitpid(watchdog, None) == Err(Errno::EINTR) {}
        }
    }

    /// Waits a moment for MONITOR, which has sent its last message and exits. SUPERVISOR has inherited it
    /// from WATCHDOG. Usually no process is left then, and `kill_all` need not read all of `/proc`. MONITOR
    /// is not signalled: WATCHDOG may have reaped it, and its pid may be reused.
    fn await_monitor(&self) {
        let Some(monitor) = self.context.shared.monitor() else { return };
        let deadline = BootInstant::now().plus(EXIT_GRACE);
        while matches!(waitpid(monitor, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive))
            && BootInstant::now() < deadline
        {
            std::thread::sleep(EXIT_POLL);
        }
    }

    /// Kills until no process is alive. Processes that cannot be killed are reported and left.
    fn kill_all(&mut self) {
        let give_up = BootInstant::now().plus(KILL_TIMEOUT);
        let mut pause = Duration::from_millis(1);
        let mut empty_passes = 0;
        while !self.reap_all() {
            let pass = self.tree().kill();
            // One pass may miss a process that was forked meanwhile; the next pass does not.
            empty_passes = if pass.alive == 0 { empty_passes + 1 } else { 0 };
            if empty_passes == 2 {
                return;
            }
            let all_refused = pass.alive > 0 && pass.alive == pass.refused.len();
            // The cgroup was killed with them: a process that is still dying refuses a signal too.
            let is_final = all_refused && self.context.containment.cgroup().is_none();
            if is_final || BootInstant::now() >= give_up {
                if !std::mem::replace(&mut self.survivors_reported, true) {
                    tree::report_survivors(&pass);
                }
                return;
            }
            if pass.alive > 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }

    /// Selects everything below SUPERVISOR except WATCHDOG and MONITOR, as long as those still have work.
    fn tree(&self) -> ProcessTree {
        let monitor = self.context.shared.monitor().filter(|_| self.monitor_has_work);
        ProcessTree {
            roots: vec![getpid()],
            excluded_trees: self.inherited.clone(),
            excluded: self.watchdog.into_iter().chain(monitor).collect(),
            group: self.command.filter(|_| self.ended.is_none()),
            cgroup: self.context.containment.cgroup().cloned(),
            init: None,
        }
    }

    /// Reaps dead children. Returns whether no process is left for certain.
    fn reap_all(&mut self) -> bool {
        loop {
            match tree::reap() {
                Reaped::NoChildren => return true,
                Reaped::Nothing => return false,
                Reaped::Stopped(..) => {}
                Reaped::Ended(pid, _) => {
                    if Some(pid) == self.watchdog {
                        self.watchdog = None;
                    }
                }
            }
        }
    }
}

/// Stops all processes of our job, as the terminal would: in a pipeline or a script the job has
/// other processes too.
fn stop_with_our_job() {
    let _ = sys::with_default(Signal::SIGTSTP, || kill(Pid::from_raw(0), Signal::SIGTSTP));
}
