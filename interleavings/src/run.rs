//! Runs a check under many schedules.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use crate::simulated::forget_statics;

/// Number of random schedules of one check, and of schedules with few preemptions.
const SCHEDULES: usize = 500;
/// Number of preemptions in the latter.
const PREEMPTIONS: usize = 3;
/// Number of schedules within which a mutant must be found.
const MUTANT_SCHEDULES: usize = 20_000;

/// Runs a check under random schedules, and under schedules with few preemptions, which find rare
/// orders. Panics with the schedule if a property does not hold, or if all tasks wait for ever.
pub fn check(check: fn()) {
    let schedules = SCHEDULES * leasehold::testing::effort() as usize;
    run(check, schedules);
    println!("{} schedules", 2 * schedules);
}

/// Whether a check of a mutant fails in at least one schedule.
pub fn is_found(check: fn()) -> bool {
    catch_unwind(AssertUnwindSafe(|| run(check, MUTANT_SCHEDULES))).is_err()
}

fn run(check: fn(), schedules: usize) {
    let execution = move || {
        forget_statics();
        check();
    };
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(PctScheduler::new(PREEMPTIONS, schedules), config.clone()).run(execution);
    Runner::new(RandomScheduler::new(schedules), config).run(execution);
}
