//! `cargo xtask bench`: builds what is to be measured as it is released, and passes the rest on.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Builds the binary and the benchmarks, and runs these.
pub(crate) fn run(root: &Path, args: &[OsString]) -> Result<ExitCode> {
    // `leasehold run` is measured as it ships: built alone, so that no feature of the benchmarks gets into it.
    if cargo(root, &["build", "--release", "--quiet", "-p", "leasehold-cli"], &[])? != 0 {
        eprintln!(
            "leasehold-cli does not build: `leasehold run` is measured as it was built before, or not at all"
        );
    }
    let code = cargo(root, &["run", "--release", "--quiet", "-p", "leasehold-bench", "--"], args)?;
    Ok(ExitCode::from(code))
}

fn cargo(root: &Path, words: &[&str], args: &[OsString]) -> Result<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(&cargo).args(words).args(args).current_dir(root).status();
    let status =
        status.with_context(|| format!("cannot start {}: install the Rust toolchain", cargo.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
