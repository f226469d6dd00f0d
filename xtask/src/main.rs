//! Chores of the project: `cargo xtask test` runs everything, `cargo xtask check` holds the source to its rules.

mod check;
mod test;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the project")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run everything: format, source rules, clippy, all tests, documentation
    Test {
        /// Run only the tests whose name contains this; the other steps stay whole
        filter: Option<String>,
    },
    /// Hold the source to its rules: layers, clocks, exit codes, file shape
    Check,
}

fn main() -> Result<ExitCode> {
    let root = root()?;
    match Cli::parse().chore {
        Chore::Test { filter } => test::run(root, filter.as_deref()),
        Chore::Check => check::run(root),
    }
}

/// The top of the repository, so that a chore does the same from any folder in it.
fn root() -> Result<&'static Path> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .context("xtask has no folder above it; keep it at the top of the repository")
}
