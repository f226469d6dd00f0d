//! Address of the test instance of an engine.

/// `cargo xtask test` sets it in the environment; a run without an engine must name it:
/// `LEASEHOLD_TEST_SKIP=github`.
pub(super) fn engine_at(engine: &str) -> Option<String> {
    let variable = format!("LEASEHOLD_TEST_{}", engine.to_uppercase().replace('-', "_"));
    let family = engine.split('-').next().unwrap_or(engine);
    let skipped = std::env::var("LEASEHOLD_TEST_SKIP").unwrap_or_default();
    let found = std::env::var(&variable).ok();
    let is_skipped = skipped.split(',').any(|name| [engine, family].contains(&name.trim()));
    assert!(
        found.is_some() || is_skipped,
        "{variable} is not set: run `cargo xtask test`, or LEASEHOLD_TEST_SKIP={family}"
    );
    found
}
