//! Hands the terminal to the command and takes it back, as a shell does with its jobs.

use std::cell::Cell;
use std::fs::File;
use std::io::{IsTerminal, Stdin, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::Signal;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, getpid, tcgetpgrp, tcsetpgrp};

use super::sys;

/// Terminal that this process was started from, if any.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<Tty>,
    /// Process group of SUPERVISOR: the shell's job.
    job: Pid,
    /// Whether the command gets the terminal before it starts.
    lend_at_start: bool,
    /// Whether the command has had the terminal.
    lent: Cell<bool>,
}

#[derive(Debug)]
enum Tty {
    Stdin(Stdin),
    Opened(File),
}

impl Terminal {
    /// Finds the terminal. Must be called by SUPERVISOR.
    pub(super) fn find() -> Self {
        let tty = if stdin().is_terminal() {
            Some(Tty::Stdin(stdin()))
        } else {
            File::open("/dev/tty").ok().map(Tty::Opened)
        };
        let mut terminal = Self { tty, ..Self::none() };
        // In a pipeline (`leasehold run … | less`) other processes of the job may need the terminal
        // as well. The command then gets it on demand: a background process that reads from it is
        // stopped.
        terminal.lend_at_start = matches!(terminal.tty, Some(Tty::Stdin(_)))
            && stdout().is_terminal()
            && terminal.foreground() == Some(terminal.job);
        terminal.lent.set(terminal.lend_at_start);
        terminal
    }

    /// Returns the state for a command that runs without a terminal.
    pub(super) fn none() -> Self {
        Self { tty: None, job: getpgrp(), lend_at_start: false, lent: Cell::new(false) }
    }

    /// Returns the process group of SUPERVISOR.
    pub(super) const fn job(&self) -> Pid {
        self.job
    }

    pub(super) fn exists(&self) -> bool {
        self.tty.is_some()
    }

    /// Takes the terminal. Runs in the command, before it starts.
    pub(super) fn take_for_command(&self) {
        // If our job is in the background by now, the terminal belongs to another job.
        if self.lend_at_start && self.foreground() == Some(self.job) {
            sys::ignore(Signal::SIGTTOU);
            self.hand_to(getpid());
            sys::reset(Signal::SIGTTOU);
        }
    }

    /// Hands the terminal to a command that cannot take it by itself. Runs in MONITOR, before the
    /// command starts. MONITOR ignores SIGTTOU.
    pub(super) fn lend_at_start(&self, command: Pid) {
        if self.lend_at_start {
            self.lend(command);
        }
    }

    /// Hands the terminal to the command if our job is in the foreground. Runs in SUPERVISOR. Returns
    /// whether it did.
    pub(super) fn lend(&self, command: Pid) -> bool {
        let lent = self.foreground() == Some(self.job) && self.hand_to(command);
        self.lent.set(self.lent.get() || lent);
        lent
    }

    /// Hands the terminal again to a command that had it before. Runs in SUPERVISOR, when the job resumes.
    pub(super) fn lend_again(&self, command: Option<Pid>) {
        if let Some(command) = command.filter(|_| self.lent.get()) {
            self.lend(command);
        }
    }

    /// Takes the terminal back if the command has it. Runs in SUPERVISOR. Returns whether the command had it.
    pub(super) fn take_back(&self, command: Pid) -> bool {
        self.foreground() == Some(command) && self.hand_to(self.job)
    }

    /// Returns the settings to restore if the command cannot do so itself.
    pub(super) fn settings(&self) -> Option<Termios> {
        tcgetattr(self.fd().filter(|_| self.lend_at_start)?).ok()
    }

    /// Restores the settings, unless another job uses the terminal by now.
    pub(super) fn put_back(&self, settings: &Termios) {
        if let Some(fd) = self.fd().filter(|_| self.foreground() == Some(self.job)) {
            let _ = tcsetattr(fd, SetArg::TCSANOW, settings);
        }
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.fd()?).ok()
    }

    /// Makes the group the foreground group. The caller has to ignore SIGTTOU, which would stop it
    /// when it is in the background.
    fn hand_to(&self, group: Pid) -> bool {
        self.fd().is_some_and(|fd| tcsetpgrp(fd, group).is_ok())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self.tty.as_ref()? {
            Tty::Stdin(stdin) => Some(stdin.as_fd()),
            Tty::Opened(file) => Some(file.as_fd()),
        }
    }
}
