//! Signals that FRONT receives, as a queue that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use super::sys;

/// Signals that FRONT forwards to the command.
const FORWARDED: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// Signals that must not terminate or stop KEEPER: KEEPER exits when its work is done, and FRONT
/// interprets these signals. A service manager that stops a service sends SIGTERM to every process
/// of the service.
const NOT_FOR_KEEPER: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Subscription of FRONT to signals.
#[derive(Debug)]
pub(super) struct Signals(SignalDelivery<UnixStream, SignalOnly>);

impl Signals {
    /// Starts to listen. Ignored signals stay ignored, by this process and by the command: `nohup`
    /// and shells rely on that.
    pub(super) fn listen() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        let heard = FORWARDED.into_iter().filter(|signal| !sys::is_ignored(*signal));
        let heard: Vec<i32> = heard.chain([Signal::SIGCHLD]).map(|signal| signal as i32).collect();
        let signals = Self(SignalDelivery::with_pipe(read, write, SignalOnly, heard)?);
        let_in();
        Ok(signals)
    }

    /// Listens for SIGCHLD only.
    pub(super) fn of_children() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        Ok(Self(SignalDelivery::with_pipe(read, write, SignalOnly, [Signal::SIGCHLD as i32])?))
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
/// stay blocked until each of our processes has installed its handling and calls [`let_in`].
pub(super) fn start_clean() {
    set_mask(&FORWARDED.into_iter().collect());
    if sys::is_ignored(Signal::SIGCHLD) {
        sys::reset(Signal::SIGCHLD);
    }
}

/// Whether the signal with this number is ignored.
pub(crate) fn is_ignored(number: i32) -> bool {
    Signal::try_from(number).is_ok_and(sys::is_ignored)
}

/// Unblocks all signals.
pub(super) fn let_in() {
    set_mask(&SigSet::empty());
}

/// Ignores the signals that FRONT handles. Called in WATCHDOG, and in KEEPER once the command is
/// forked.
pub(super) fn ignore_in_keeper() {
    NOT_FOR_KEEPER.into_iter().for_each(sys::ignore);
    let_in();
}

fn set_mask(blocked: &SigSet) {
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(blocked), None);
}
