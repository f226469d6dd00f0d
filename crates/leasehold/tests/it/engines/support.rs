//! Helpers shared by the tests of the engines.

use leasehold::model::Timestamp;
use leasehold::store::Clock;

/// Returns a manual clock that starts in November 2023.
pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// Returns the URL of the test instance of an engine. `cargo xtask test` starts the instances and sets
/// the environment variables; its `--skip` leaves the tests of an engine out by their names.
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb", feature = "github"))]
pub(super) fn engine_at(engine: &str) -> String {
    let variable = format!("LEASEHOLD_TEST_{}", engine.to_uppercase().replace('-', "_"));
    std::env::var(&variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run `cargo xtask test`, or keep the engines running with `cargo xtask \
             engines up` and set what it prints"
        )
    })
}
