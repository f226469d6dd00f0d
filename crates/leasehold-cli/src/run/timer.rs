//! Timer on the boot clock, which advances while the machine is suspended.

use std::io;

use leasehold::BootInstant;

#[cfg(target_os = "linux")]
pub(super) use exact::Timer;
#[cfg(not(target_os = "linux"))]
pub(super) use ticking::Timer;

/// Kernel timer on the boot clock: exact, and due immediately after the machine resumes.
#[cfg(target_os = "linux")]
mod exact {
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

    use super::{BootInstant, io};

    #[derive(Debug)]
    pub(in crate::run) struct Timer(TimerFd);

    impl Timer {
        pub(in crate::run) fn new() -> io::Result<Self> {
            let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
            Ok(Self(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
        }

        /// Sets the timer to this moment; replaces the previous setting.
        pub(in crate::run) fn set(&self, at: BootInstant) -> io::Result<()> {
            let micros = at.as_micros().max(1); // All zeroes would mean "never".
            let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
            let nanos = i64::try_from(micros % 1_000_000 * 1_000).unwrap_or(0);
            let at = Expiration::OneShot(TimeSpec::new(seconds, nanos));
            Ok(self.0.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
        }

        /// Sleeps until the timer expires, one of the other descriptors is readable, or a signal arrives.
        pub(in crate::run) fn sleep(&self, others: [BorrowedFd<'_>; 2]) {
            let [one, two] = others;
            let mut fds = [one, two, self.0.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            self.clear();
        }

        pub(in crate::run) fn clear(&self) {
            let _ = self.0.wait();
        }
    }

    impl AsRawFd for Timer {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }
}

/// Fallback for systems without such a timer: polls the clock.
#[cfg(not(target_os = "linux"))]
mod ticking {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::{BootInstant, io};

    const TICK: Duration = Duration::from_millis(200);

    #[derive(Debug)]
    pub(in crate::run) struct Timer(Cell<Option<BootInstant>>);

    impl Timer {
        pub(in crate::run) fn new() -> io::Result<Self> {
            Ok(Self(Cell::new(None)))
        }

        pub(in crate::run) fn set(&self, at: BootInstant) -> io::Result<()> {
            self.0.set(Some(at));
            Ok(())
        }

        pub(in crate::run) fn sleep(&self, others: [BorrowedFd<'_>; 2]) {
            let mut fds = others.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::try_from(self.next_poll()).unwrap_or(PollTimeout::ZERO));
        }

        pub(in crate::run) fn next_poll(&self) -> Duration {
            self.0.get().map_or(TICK, |at| at.after(BootInstant::now()).min(TICK))
        }
    }
}
