//! Clock of a process that a test steps and speeds up, with a library that the process loads first.
//!
//! libfaketime does the same, and cannot start Redis: its allocator reads the clock before
//! libfaketime is ready, and both wait for each other.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Clock of the processes that are started with [`FakeClock::environment`]. It does not reach
/// programs that read the clock without the C library, so each test shows first that it does.
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
    /// How far the wall clock is ahead, in microseconds.
    offset: i64,
    /// Wall time from which on the clock runs faster, and its rate.
    fast: Option<(i64, i64)>,
}

impl FakeClock {
    /// Builds the library in this folder. The clock shows the true time.
    pub(crate) fn new(folder: &Path) -> Self {
        let (library, file) = (folder.join("libfake_clock.so"), folder.join("clock"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/helper/fake_clock.c");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        let built = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("a C compiler").success());
        let clock = Self { library, file, offset: 0, fast: None };
        clock.write(0);
        clock
    }

    /// Returns the variables of a process that has this clock.
    pub(crate) fn environment(&self) -> [(String, OsString); 2] {
        [("LD_PRELOAD".into(), self.library.clone().into()), ("FAKE_CLOCK".into(), self.file.clone().into())]
    }

    /// Sets the wall clock by this many seconds, forwards or backwards.
    pub(crate) fn step(&mut self, seconds: i64) {
        self.offset += seconds * 1_000_000;
        self.write(0);
    }

    /// Lets the wall clock run this many times as fast as time does.
    pub(crate) fn run_fast(&mut self, rate: i64) {
        self.fast = Some((micros(ClockId::CLOCK_REALTIME), rate));
        self.write(0);
    }

    /// Lets the wall clock and the monotonic clock run this many times as fast as time does.
    pub(crate) fn run_all_clocks_fast(&mut self, rate: i64) {
        self.fast = Some((micros(ClockId::CLOCK_REALTIME), rate));
        self.write(micros(ClockId::CLOCK_MONOTONIC));
    }

    /// Lets the wall clock run as time does, from where it is.
    pub(crate) fn run_normally(&mut self) {
        if let Some((base, rate)) = self.fast.take() {
            self.offset += (rate - 1) * (micros(ClockId::CLOCK_REALTIME) - base);
        }
        self.write(0);
    }

    /// Replaces the file as a whole, so that no process reads half of it.
    fn write(&self, monotonic_base: i64) {
        let (wall_base, rate) = self.fast.unwrap_or((0, 1));
        let numbers = [self.offset, rate, wall_base, monotonic_base];
        let new = self.file.with_extension("new");
        std::fs::write(&new, numbers.map(i64::to_ne_bytes).concat()).unwrap();
        std::fs::rename(&new, &self.file).unwrap();
    }
}

fn micros(clock: ClockId) -> i64 {
    let time = clock_gettime(clock).unwrap();
    time.tv_sec() * 1_000_000 + time.tv_nsec() / 1000
}

/// Asserts that a clock, in seconds since 1970, is ahead of the true time by this many seconds.
#[track_caller]
pub(crate) fn assert_ahead(clock: f64, seconds: f64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let ahead = clock - now.as_secs_f64();
    assert!((ahead - seconds).abs() < 60.0, "the clock is {ahead} s ahead instead of {seconds} s");
}
