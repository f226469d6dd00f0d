//! Waking at a moment of the boot clock, which goes on while the machine sleeps.

use std::io;

use leasehold::Moment;

#[cfg(target_os = "linux")]
pub(super) use exact::Alarm;
#[cfg(not(target_os = "linux"))]
pub(super) use ticking::Alarm;

/// A timer of the kernel on the boot clock: exact, and due at once after the machine wakes up.
#[cfg(target_os = "linux")]
mod exact {
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::time::TimeSpec;
    use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

    use super::{Moment, io};

    #[derive(Debug)]
    pub(in crate::run) struct Alarm(TimerFd);

    impl Alarm {
        pub(in crate::run) fn new() -> io::Result<Self> {
            let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
            Ok(Self(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
        }

        /// Ring at that moment, and at no other.
        pub(in crate::run) fn set(&self, at: Moment) -> io::Result<()> {
            let micros = at.as_micros().max(1); // All zeroes would mean "never".
            let seconds = i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX);
            let nanos = i64::try_from(micros % 1_000_000 * 1_000).unwrap_or(0);
            let at = Expiration::OneShot(TimeSpec::new(seconds, nanos));
            Ok(self.0.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?)
        }

        /// Sleeps until it rings, one of the others can be read, or a signal comes.
        pub(in crate::run) fn sleep(&self, others: [BorrowedFd<'_>; 2]) {
            let [one, two] = others;
            let mut fds = [one, two, self.0.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
            self.hush();
        }

        /// Stops ringing.
        pub(in crate::run) fn hush(&self) {
            let _ = self.0.wait();
        }
    }

    impl AsRawFd for Alarm {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_fd().as_raw_fd()
        }
    }
}

/// Where there is no such timer: a look at the clock every now and then.
#[cfg(not(target_os = "linux"))]
mod ticking {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::{Moment, io};

    const TICK: Duration = Duration::from_millis(200);

    #[derive(Debug)]
    pub(in crate::run) struct Alarm(Cell<Option<Moment>>);

    impl Alarm {
        pub(in crate::run) fn new() -> io::Result<Self> {
            Ok(Self(Cell::new(None)))
        }

        pub(in crate::run) fn set(&self, at: Moment) -> io::Result<()> {
            self.0.set(Some(at));
            Ok(())
        }

        pub(in crate::run) fn sleep(&self, others: [BorrowedFd<'_>; 2]) {
            let mut fds = others.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::try_from(self.next_look()).unwrap_or(PollTimeout::ZERO));
        }

        pub(in crate::run) fn next_look(&self) -> Duration {
            self.0.get().map_or(TICK, |at| at.after(Moment::now()).min(TICK))
        }
    }
}
