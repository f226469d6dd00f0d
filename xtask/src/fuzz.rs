//! `cargo xtask fuzz`: runs the fuzz targets, which are tests in modules `fuzz`, for a long time.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::cargo::{cargo, start, wait};

/// Runs the targets whose name begins with `target`, each for `minutes`.
pub(crate) fn run(root: &Path, target: Option<&str>, minutes: u64) -> Result<ExitCode> {
    let filter = format!("fuzz::{}", target.unwrap_or_default());
    // All targets run even if one fails. The tests of the driver itself are no targets.
    let args = ["test", "--workspace", "--all-features", "--tests", "--no-fail-fast", &filter, "--"];
    let mut cargo = cargo(root, args);
    cargo.args(["--nocapture", "--skip", "testing::fuzz"]);
    cargo.env("LEASEHOLD_FUZZ_SECONDS", (minutes * 60).to_string());
    wait(&mut start(&mut cargo)?).map(ExitCode::from)
}
