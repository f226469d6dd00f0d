//! Workers whose clocks are wrong: stepped by an hour in either direction, or ten times as fast. Only
//! the boot clock of the machine counts for a holder, and only the clock of the engine for a lease.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::fake_clock::FakeClock;
use super::load::{Load, Loss, worker_command};
use crate::support::{Sandbox, run};

/// Gives each of the three workers a clock of its own, and sets the clocks under load.
fn are_wrong(store: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut clocks = ["0", "1", "2"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        FakeClock::new(&folder)
    });
    let mut load = Load::start_with(store, with_clocks(folder.path()), &[]);
    load.disturb("clocks of workers", Loss::Nothing, || {
        let [ahead, behind, fast] = &mut clocks;
        ahead.step(3600);
        behind.step(-3600);
        fast.run_all_clocks_fast(10);
        reaches_leasehold(store, ahead, " behind this machine's");
        reaches_leasehold(store, behind, " ahead of this machine's");
        assert!(runs_fast(fast));
        // Back again by two hours: each clock that was ahead is now behind.
        ahead.step(-7200);
        behind.step(7200);
        std::thread::sleep(Duration::from_secs(2));
    });
    let taken = ["0", "1", "2"].map(|name| folder.path().join(name).join("taken").exists());
    assert_eq!(taken, [true; 3], "a worker does not have its clock");
    load.assert_fit();
}

/// Returns the command of a worker that takes the first clock that no other worker has.
fn with_clocks(folder: &Path) -> Vec<std::ffi::OsString> {
    let script = "for clock in \"$0\"/*; do mkdir \"$clock/taken\" 2>/dev/null && break; done; \
                  FAKE_CLOCK=$clock/clock LD_PRELOAD=$clock/libfake_clock.so exec \"$@\"";
    let mut command = vec!["sh".into(), "-c".into(), script.into(), folder.into()];
    command.extend(worker_command());
    command
}

/// Asserts that the binary sees the clock.
#[track_caller]
fn reaches_leasehold(store: &str, clock: &FakeClock, warning: &str) {
    let sandbox = Sandbox::new();
    let doctor = run(sandbox.command(["doctor"]).env("LEASEHOLD_STORE", store).envs(clock.environment()));
    assert!(doctor.stdout.contains(warning), "{doctor:?}");
}

fn runs_fast(clock: &FakeClock) -> bool {
    let script = "date +%s%N; sleep 1; date +%s%N";
    let ran = run(Command::new("sh").args(["-c", script]).envs(clock.environment()));
    let times: Vec<i128> = ran.stdout.lines().map(|line| line.parse().unwrap()).collect();
    times[1] - times[0] > 5_000_000_000
}

#[test]
fn on_sqlite_no_clock_of_a_worker_counts() {
    let folder = tempfile::tempdir().unwrap();
    are_wrong(&format!("sqlite:{}", folder.path().join("store.db").display()));
}

#[cfg(feature = "postgres")]
#[test]
fn on_postgres_no_clock_of_a_worker_counts() {
    let schema = format!("clocks_{}", std::process::id());
    are_wrong(&format!("{}?schema={schema}", crate::engines::support::engine_at("postgres")));
}

#[cfg(feature = "redis")]
#[test]
fn on_redis_no_clock_of_a_worker_counts() {
    let prefix = format!("clocks-{}", std::process::id());
    are_wrong(&format!("{}?prefix={prefix}", crate::engines::support::engine_at("redis")));
}
