//! Signals and terminal: SUPERVISOR as a job of the shell that started it.

use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::unistd::Pid;

use super::event_loop::{Ended, Supervisor};
use crate::run::link::{Exited, Message};
use crate::run::sys;

impl Supervisor<'_> {
    pub(super) fn forward_signals(&mut self) {
        for signal in self.signals.pending() {
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
    pub(super) fn send(&self, signal: Signal) {
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
    pub(super) fn stopped(&mut self, signal: i32) {
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
        // it, and the command continues immediately. Only a command stopped by SIGSTOP stays
        // stopped until it receives SIGCONT.
        self.resume = signal != Signal::SIGSTOP;
    }

    /// Records the end of the command and takes the terminal back: processes left behind must not
    /// keep it.
    pub(super) fn command_has_ended(&mut self, exited: Exited) {
        let had_terminal = self.command.is_some_and(|command| self.context.terminal.take_back(command));
        let lost = self.schedule.is_ending() || self.context.shared.was_out_of_time();
        self.ended = Some(Ended { exited, lost, had_terminal });
    }

    /// Restores the terminal before the exit and returns the exit code.
    pub(super) fn restore_terminal(&self, code: i32) -> i32 {
        if let Some(command) = self.command {
            self.context.terminal.take_back(command);
        }
        match self.ended {
            Some(Ended { exited: Exited::Code(_), lost: false, .. }) => {}
            _ => self.settings.iter().for_each(|settings| self.context.terminal.put_back(settings)),
        }
        let interrupted = Exited::Signal(Signal::SIGINT as i32);
        if self.ended.is_some_and(|ended| ended.exited == interrupted && ended.had_terminal && !ended.lost) {
            // A shell ends its loop or script only if it sees that its child was killed by the
            // interrupt.
            let _ = sys::with_default(Signal::SIGINT, || raise(Signal::SIGINT));
        }
        code
    }
}

/// Stops all processes of our job, as the terminal would: in a pipeline or a script the job has
/// other processes too.
fn stop_with_our_job() {
    let _ = sys::with_default(Signal::SIGTSTP, || kill(Pid::from_raw(0), Signal::SIGTSTP));
}
