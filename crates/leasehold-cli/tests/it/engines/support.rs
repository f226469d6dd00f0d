//! Address of the test instance of an engine.

/// Returns what `cargo xtask test` sets in the environment.
pub(crate) fn engine_at(engine: &str) -> String {
    let variable = format!("LEASEHOLD_TEST_{}", engine.to_uppercase().replace('-', "_"));
    std::env::var(&variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or skip the engine with --skip")
    })
}
