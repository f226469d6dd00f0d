//! Signals and the terminal: being a good job of the shell that started us.

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;

use super::stand::{Ended, Front};
use crate::run::link::{Exited, Message};
use crate::run::sys;
use crate::run::tree::negative;

impl Front<'_> {
    pub(super) fn pass_signals_on(&mut self) {
        for signal in self.signals.pending() {
            match signal {
                Signal::SIGCHLD => self.reap(),
                Signal::SIGCONT => self.resume = true,
                Signal::SIGTSTP if self.command.is_none() => stop_with_our_job(),
                signal => self.send(signal),
            }
        }
        if std::mem::take(&mut self.resume) {
            self.job.terminal.lend_again(self.command);
            self.send(Signal::SIGCONT);
        }
    }

    /// To the whole group of the command. Before it has started, as far as we know, KEEPER knows better.
    pub(super) fn send(&self, signal: Signal) {
        match (self.command, self.ended) {
            // Also when it has ended: KEEPER is at work on what it left behind.
            (None, _) | (_, Some(_)) => self.link.send(Message::Signal(signal as i32)),
            (Some(command), None) => {
                let _ = kill(negative(command), signal);
            }
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it wants a terminal that it does not have.
    pub(super) fn stopped(&mut self, signal: i32) {
        let Some(command) = self.command.filter(|_| self.job.terminal.exists()) else { return };
        let signal = Signal::try_from(signal).unwrap_or(Signal::SIGSTOP);
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_terminal && self.job.terminal.lend(command) {
            return self.send(Signal::SIGCONT);
        }
        // The shell has to see its job stop, or it will not give its prompt. KEEPER goes on renewing.
        self.job.terminal.take_back(command);
        stop_with_our_job();
        // If nobody is there who could wake us, the system does not let us stop, and the command goes on at once. Only
        // what was stopped by SIGSTOP stays so until somebody sends SIGCONT.
        self.resume = signal != Signal::SIGSTOP;
    }

    /// Whatever it has left behind, the terminal is not for them.
    pub(super) fn command_has_ended(&mut self, how: Exited) {
        let had_terminal = self.command.is_some_and(|command| self.job.terminal.take_back(command));
        let lost = self.schedule.is_ending() || self.job.shared.was_out_of_time();
        self.ended = Some(Ended { how, lost, had_terminal });
    }

    /// The last thing before we exit.
    pub(super) fn leave(&self, code: i32) -> i32 {
        if let Some(command) = self.command {
            self.job.terminal.take_back(command);
        }
        match self.ended {
            Some(Ended { how: Exited::Code(_), lost: false, .. }) => {}
            _ => self.settings.iter().for_each(|settings| self.job.terminal.put_back(settings)),
        }
        let interrupted = Exited::Signal(Signal::SIGINT as i32);
        if self.ended.is_some_and(|ended| ended.how == interrupted && ended.had_terminal && !ended.lost) {
            // A shell ends its loop or script only if it sees that the interrupt has ended us.
            let _ = sys::with_default(Signal::SIGINT, || raise(Signal::SIGINT));
        }
        code
    }
}

/// Stops all processes of our job, as the terminal would: in a pipeline or a script we are not alone in it.
fn stop_with_our_job() {
    let _ = sys::with_default(Signal::SIGTSTP, || kill(Pid::from_raw(0), Signal::SIGTSTP));
}
