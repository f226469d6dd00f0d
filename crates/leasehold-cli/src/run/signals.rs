//! The signals that FRONT gets, as things to be read one after the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use super::sys;

/// What FRONT passes on to the command.
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

/// What must not end or stop KEEPER: it ends when its work is done, and FRONT knows what such a signal means. A service
/// manager that stops a service sends SIGTERM to every process of it.
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

/// The signals of FRONT.
#[derive(Debug)]
pub(super) struct Signals(SignalDelivery<UnixStream, SignalOnly>);

impl Signals {
    /// Starts to listen. What is ignored stays ignored, by us and by the command: `nohup` and shells ask for that.
    pub(super) fn listen() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        let heard = FORWARDED.into_iter().filter(|signal| !sys::is_ignored(*signal));
        let heard: Vec<i32> = heard.chain([Signal::SIGCHLD]).map(|signal| signal as i32).collect();
        let signals = Self(SignalDelivery::with_pipe(read, write, SignalOnly, heard)?);
        let_in();
        Ok(signals)
    }

    /// Listens for news of children alone.
    pub(super) fn of_children() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        Ok(Self(SignalDelivery::with_pipe(read, write, SignalOnly, [Signal::SIGCHLD as i32])?))
    }

    /// What has come since the last time.
    pub(super) fn pending(&mut self) -> Vec<Signal> {
        self.0.pending().filter_map(|signal| Signal::try_from(signal).ok()).collect()
    }

    /// Readable when something has come.
    pub(super) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }
}

/// Undoes what our own parent may have left: blocked signals, and children that vanish without a trace. What is to be
/// forwarded waits outside until each of our processes has made up its mind about it, and calls [`let_in`].
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

/// From now on signals come in.
pub(super) fn let_in() {
    set_mask(&SigSet::empty());
}

/// In KEEPER, once the command is forked.
pub(super) fn ignore_in_keeper() {
    NOT_FOR_KEEPER.into_iter().for_each(sys::ignore);
    let_in();
}

fn set_mask(blocked: &SigSet) {
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(blocked), None);
}
