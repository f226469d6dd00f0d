//! Chores of the project: `cargo xtask test` runs everything, `cargo xtask check` holds the source to its rules,
//! `cargo xtask deny` holds the dependencies to theirs,
//! `cargo xtask engines` keeps the engines running that the tests need, `cargo xtask bench` measures.

mod bench;
mod check;
mod deny;
mod engines;
mod test;

use std::ffi::OsString;
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
    /// Run everything: format, source rules, dependencies, clippy, all tests, documentation
    Test {
        /// Run only the tests whose name contains this; the other steps stay whole
        filter: Option<String>,
        #[command(flatten)]
        skip: engines::Skip,
    },
    /// Keep the engines running that the tests need: PostgreSQL, Redis, DynamoDB
    #[command(subcommand)]
    Engines(engines::Command),
    /// Hold the source to its rules: layers, clocks, exit codes, file shape
    Check,
    /// Hold the dependencies to deny.toml: bans, licences, sources
    Deny,
    /// Measure: `cargo xtask bench locks` or `tasks`, and `--help` after that for what it can do
    Bench {
        /// Passed on to the benchmarks
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<OsString>,
    },
}

fn main() -> Result<ExitCode> {
    let root = root()?;
    match Cli::parse().chore {
        Chore::Test { filter, skip } => test::run(root, filter.as_deref(), &skip),
        Chore::Engines(command) => engines::run(root, &command),
        Chore::Check => check::run(root),
        Chore::Deny => deny::run(root),
        Chore::Bench { args } => bench::run(root, &args),
    }
}

/// The top of the repository, so that a chore does the same from any folder in it.
fn root() -> Result<&'static Path> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().context("xtask has no folder above it; keep it at the top of the repository")
}
