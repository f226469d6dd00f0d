//! What can be asked for on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::plan::{Engine, Floor, Keys};

/// Benchmarks: every figure stands beside what the bare engine does in the same round
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) bench: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    Locks(LocksArgs),
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Acquire and release, alone and contended, and `leasehold run` beside `flock`
#[derive(Debug, Args)]
pub(crate) struct LocksArgs {
    /// How often every row is measured; the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// How long each row is measured in each round: many short rounds see through a disk that changes its pace
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// How often each command is started
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) starts: u32,
    /// Only the loads whose name contains this; `run` is the name of the last part
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
    /// Where the databases are made and removed; it decides what an fsync costs
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// The binary to start; else the one beside this program
    #[arg(long, value_name = "FILE")]
    pub(crate) leasehold: Option<PathBuf>,
    /// Write JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Write Markdown, for docs/benchmarks.md
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// One process of several: says `ready`, reads its window, writes what it measured
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) engine: Engine,
    #[arg(long)]
    pub(crate) floor: Floor,
    #[arg(long)]
    pub(crate) keys: Keys,
    /// The number of its first client
    #[arg(long)]
    pub(crate) first: u32,
    /// How many clients it has
    #[arg(long)]
    pub(crate) clients: u32,
    #[arg(long)]
    pub(crate) hold_millis: u32,
    #[arg(long)]
    pub(crate) folder: PathBuf,
}
