//! What the tests of the engines share.

use leasehold::model::Timestamp;
use leasehold::store::Clock;

/// A clock that begins on an ordinary day.
pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

/// Where the tests' own instance of an engine is. `cargo xtask test` starts them and says so in the environment; whoever
/// goes without one has to name it, so that nothing is skipped silently: `LEASEHOLD_TEST_SKIP=postgres,redis`.
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb", feature = "github"))]
pub(super) fn engine_at(engine: &str) -> Option<String> {
    let variable = format!("LEASEHOLD_TEST_{}", engine.to_uppercase().replace('-', "_"));
    if let Ok(url) = std::env::var(&variable) {
        return Some(url);
    }
    let skipped = std::env::var("LEASEHOLD_TEST_SKIP").unwrap_or_default();
    // Whoever goes without postgres goes without postgres-pooler.
    let family = engine.split('-').next().unwrap_or(engine);
    assert!(
        skipped.split(',').any(|name| [engine, family].contains(&name.trim())),
        "{variable} is not set: run `cargo xtask test`, or keep the engines running with `cargo xtask engines up` and \
         set what it prints; to go without this engine: LEASEHOLD_TEST_SKIP={engine}"
    );
    None
}
