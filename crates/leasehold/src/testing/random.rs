//! Random sequences of steps on fresh engines, and the report of a difference.

use std::panic::Location;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

use super::Fixture;

/// Environment variable that multiplies the amount of random work, for a long run.
const EFFORT: &str = "LEASEHOLD_TEST_EFFORT";

/// Extension of the file of failed seeds, which is beside the file of the test.
const SEEDS: &str = "proptest-regressions";

/// Runs `cases` random sequences of steps, each on a fresh engine, after those of the seeds that
/// failed before. Panics with the shortest sequence that fails, and saves its seed.
#[track_caller]
pub(super) fn play_all<S, F>(
    cases: u32,
    steps: impl Strategy<Value = Vec<S>>,
    fresh: impl Fn() -> F,
    play: &impl AsyncFn(&Fixture, &[S]) -> Result<(), String>,
) where
    S: std::fmt::Debug,
    F: Future<Output = Fixture>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let source_file = Location::caller().file();
    let config = Config {
        cases: cases.saturating_mul(effort()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(SEEDS))),
        source_file: Some(source_file),
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&steps, |steps| {
        runtime.block_on(async { play(&fresh().await, &steps).await }).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => {
            // The library has printed the seed, unless it is one of the file.
            let test = std::thread::current();
            let test = test.name().unwrap_or_default();
            panic!(
                "{why}\nafter {steps:#?}\nThe seed is in the file beside {source_file} that ends in \
                 '.{SEEDS}': commit it. To play it again: cargo xtask test {test}"
            )
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

/// Returns the factor by which random work is multiplied: `LEASEHOLD_TEST_EFFORT`, or 1.
pub fn effort() -> u32 {
    std::env::var(EFFORT).ok().and_then(|effort| effort.parse().ok()).unwrap_or(1)
}

/// Returns an error if the value of the engine differs from the value of the rules.
pub(super) fn differs<T: PartialEq + std::fmt::Debug>(
    what: &str,
    engine: &T,
    rules: &T,
) -> Result<(), String> {
    if engine == rules { Ok(()) } else { Err(format!("{what}\nengine: {engine:#?}\nrules:  {rules:#?}")) }
}
