//! Signals that SUPERVISOR receives, as a queue that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
    SIGWINCH, SigSet, SigmaskHow, Signal, sigprocmask,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use super::sys;

/// Signals that SUPERVISOR forwards to the command.
const FORWARDED: [Signal; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

/// Signals that must not terminate or stop MONITOR: MONITOR exits when its work is done, and
/// SUPERVISOR interprets these signals. A service manager that stops a service sends SIGTERM to
/// every process of the service.
const IGNORED_IN_MONITOR: [Signal; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU];

#[derive(Debug)]
pub(super) struct Signals(SignalDelivery<UnixStream, SignalOnly>);

impl Signals {
    /// Starts to listen. Ignored signals stay ignored, by this process and by the command: `nohup`
    /// and shells rely on that.
    pub(super) fn listen() -> io::Result<Self> {
        let forwarded = FORWARDED.into_iter().filter(|signal| !sys::is_ignored(*signal));
        let signals = Self::deliver(forwarded.chain([SIGCHLD]))?;
        unblock_all();
        Ok(signals)
    }

    pub(super) fn children_only() -> io::Result<Self> {
        Self::deliver([SIGCHLD])
    }

    fn deliver(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        let numbers: Vec<i32> = signals.into_iter().map(|signal| signal as i32).collect();
        Ok(Self(SignalDelivery::with_pipe(read, write, SignalOnly, numbers)?))
    }

    /// Returns the signals received since the last call.
    pub(super) fn pending(&mut self) -> Vec<Signal> {
        self.0.pending().filter_map(|signal| Signal::try_from(signal).ok()).collect()
    }

    /// Descriptor that is readable when a signal is pending.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }
}

/// Resets signal state that this process may have inherited from its parent: blocked signals, and
/// an ignored SIGCHLD, with which children would be reaped automatically. Signals to be forwarded
/// stay blocked until each of our processes has installed its handling and calls [`unblock_all`].
pub(super) fn reset_inherited() {
    set_mask(&FORWARDED.into_iter().collect());
    if sys::is_ignored(SIGCHLD) {
        sys::reset(SIGCHLD);
    }
}

pub(crate) fn is_ignored(number: i32) -> bool {
    Signal::try_from(number).is_ok_and(sys::is_ignored)
}

pub(super) fn unblock_all() {
    set_mask(&SigSet::empty());
}

/// Ignores the signals that SUPERVISOR handles. Called in WATCHDOG, and in MONITOR once the command
/// is forked.
pub(super) fn ignore_in_monitor() {
    IGNORED_IN_MONITOR.into_iter().for_each(sys::ignore);
    unblock_all();
}

fn set_mask(blocked: &SigSet) {
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(blocked), None);
}
