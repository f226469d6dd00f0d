//! Development commands: `cargo xtask test` runs all checks, `cargo xtask check` checks the source,
//! `cargo xtask deny` checks the dependencies, `cargo xtask engines` runs the engines of the tests,
//! `cargo xtask simulate` runs simulations, `cargo xtask fuzz` the fuzz targets, `cargo xtask torture` runs
//! `leasehold torture` on each engine, `cargo xtask bench` runs the benchmarks, `cargo xtask docs` builds the
//! documentation as a site, `cargo xtask picture` draws the picture of the README, `cargo xtask screenshots` takes
//! pictures of the dashboard, and `cargo xtask dist` builds packages.

mod bench;
mod cargo;
mod check;
mod deny;
mod dist;
mod engines;
mod fuzz;
mod picture;
mod screenshots;
mod simulate;
mod site;
mod test;
mod torture;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development commands of the project")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all checks: format, source rules, dependencies, clippy, features, all tests, documentation, site
    Test {
        /// Run only the tests whose name contains this; the other steps are unaffected
        filter: Option<String>,
        #[command(flatten)]
        skip: engines::Skip,
    },
    /// Start and stop the engines of the tests: PostgreSQL, Redis, DynamoDB
    #[command(subcommand)]
    Engines(engines::Command),
    /// Check the source: layers, circles, exit codes, file rules, links of the documentation
    Check,
    /// Check the dependencies against deny.toml: bans, licences, sources
    Deny,
    /// Simulate clients under a virtual clock: `--seed`, `--hours`, `--runs`; see its `--help`
    Simulate {
        /// Arguments of the simulation
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run `leasehold torture` on each engine for a while, and print a table
    Torture(torture::Torture),
    /// Run the fuzz targets for a long time
    Fuzz {
        /// Run only the targets whose name begins with this, such as `store_urls`
        target: Option<String>,
        /// Minutes for each target
        #[arg(long, default_value_t = 1)]
        minutes: u64,
    },
    /// Run the benchmarks: `cargo xtask bench locks`, `tasks`, `http` or `dashboard`; see their `--help`
    Bench {
        /// Arguments of the benchmarks
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<OsString>,
    },
    /// Build the documentation as a site; `--update` rewrites its generated pages
    Docs(site::Docs),
    /// Build packages: static binary, deb, rpm, wheel, npm, container image
    Dist(dist::Dist),
    /// Draw the picture of the README from the output of the binary
    Picture(picture::Picture),
    /// Take pictures of every page of the dashboard in Chromium: light, dark, and as a phone shows it
    Screenshots(screenshots::Screenshots),
}

fn main() -> Result<ExitCode> {
    let root = root()?;
    let code = |passes: bool| if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match Cli::parse().command {
        Command::Test { filter, skip } => test::run(root, filter.as_deref(), &skip),
        Command::Engines(command) => engines::run(root, &command),
        Command::Check => check::passes(root).map(code),
        Command::Deny => deny::passes(root).map(code),
        Command::Simulate { args } => simulate::run(root, &args),
        Command::Torture(args) => torture::run(root, &args),
        Command::Fuzz { target, minutes } => fuzz::run(root, target.as_deref(), minutes),
        Command::Bench { args } => bench::run(root, &args),
        Command::Docs(args) => site::run(root, &args).map(|()| ExitCode::SUCCESS),
        Command::Dist(args) => dist::run(root, &args),
        Command::Picture(args) => picture::run(root, &args).map(|()| ExitCode::SUCCESS),
        Command::Screenshots(args) => screenshots::run(root, &args).map(|()| ExitCode::SUCCESS),
    }
}

/// Returns the root of the repository, so that a command works from any folder in it.
fn root() -> Result<&'static Path> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().context("the folder of xtask has no parent; keep it at the root of the repository")
}
