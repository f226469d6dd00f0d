//! Helpers shared by the tests of the engines.

use leasehold::model::Timestamp;
use leasehold::store::Clock;

/// Returns a manual clock that starts in November 2023.
pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// Returns the URL of the test instance of an engine. `cargo xtask test` starts the instances and sets the environment
/// variables. To run the tests without an engine, the caller must name it, so that no test is skipped silently:
/// `LEASEHOLD_TEST_SKIP=postgres,redis`.
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb", feature = "github"))]
pub(super) fn engine_at(engine: &str) -> Option<String> {
    let variable = format!("LEASEHOLD_TEST_{}", engine.to_uppercase().replace('-', "_"));
    if let Ok(url) = std::env::var(&variable) {
        return Some(url);
    }
    let skipped = std::env::var("LEASEHOLD_TEST_SKIP").unwrap_or_default();
    // Skipping postgres also skips postgres-pooler.
    let family = engine.split('-').next().unwrap_or(engine);
    assert!(
        skipped.split(',').any(|name| [engine, family].contains(&name.trim())),
        "{variable} is not set: run `cargo xtask test`, or keep the engines running with `cargo xtask engines up` and \
         set what it prints; to skip this engine: LEASEHOLD_TEST_SKIP={engine}"
    );
    None
}
