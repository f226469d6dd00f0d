//! Commands of the cargo that runs this program.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

/// Returns a command for the root of the repository.
pub(crate) fn cargo(root: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    // Cargo sets `CARGO` for the programs that it runs.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).current_dir(root);
    cargo
}

pub(crate) fn start(cargo: &mut Command) -> Result<Child> {
    let name = cargo.get_program().display().to_string();
    cargo.spawn().with_context(|| format!("cannot start {name}: install the Rust toolchain"))
}

/// Waits for the end of a command; returns its exit code, 1 if it was killed.
pub(crate) fn wait(cargo: &mut Child) -> Result<u8> {
    let status = cargo.wait().context("cannot wait for cargo")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Returns the output of `cargo metadata` with this option.
pub(crate) fn metadata<T: DeserializeOwned>(root: &Path, option: &str) -> Result<T> {
    let mut cargo = cargo(root, ["metadata", "--format-version", "1", "--locked", option]);
    let output = cargo.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cannot read the output of cargo metadata")
}
