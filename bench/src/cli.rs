//! What can be asked for on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::http::Kind;
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
    Tasks(TasksArgs),
    Http(HttpArgs),
    #[command(hide = true)]
    Worker(WorkerArgs),
    #[command(hide = true)]
    Crew(CrewArgs),
    #[command(hide = true)]
    HttpServer(HttpServerArgs),
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

/// Adding tasks, working them off, and how soon one begins; with `--peers` beside other projects
#[derive(Debug, Args)]
pub(crate) struct TasksArgs {
    /// How often every row is measured; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// How long tasks are added in each row of each round
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// How many tasks are worked off in each row of each round
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) tasks: u64,
    /// How long tasks are added to an idle worker in each round, 50 a second
    #[arg(long, default_value_t = 2.0)]
    pub(crate) start_seconds: f64,
    /// How many tasks wait when the cost of a lease is compared with that at 10,000…
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(20_000..=100_000_000))]
    pub(crate) deep: u64,
    /// …or as many as can be added in this time
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) fill_seconds: u64,
    /// Only the loads whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
    /// Also other projects: installs them from npm, `PyPI` and crates.io, which takes minutes
    #[arg(long)]
    pub(crate) peers: bool,
    /// Where they are installed and kept; else in a temporary folder
    #[arg(long, value_name = "FOLDER", requires = "peers")]
    pub(crate) peers_dir: Option<PathBuf>,
    /// Where the databases are made and removed; it decides what an fsync costs
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// Write JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Write Markdown, for docs/benchmarks.md
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// The server under load, beside a handler that does nothing
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// How often every row is measured; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// How long each row is measured in each round
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// How many wait at once in the last row; each needs two open files
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) waiters: u32,
    /// Write Markdown, for docs/benchmarks.md
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// A server in a process of its own: says where it listens, ends with its input
#[derive(Debug, Args)]
pub(crate) struct HttpServerArgs {
    #[arg(long)]
    pub(crate) kind: Kind,
}

/// A worker in a process of its own: says `ready`, begins and ends when it is told, writes what it saw
#[derive(Debug, Args)]
pub(crate) struct CrewArgs {
    #[arg(long)]
    pub(crate) engine: Engine,
    #[arg(long)]
    pub(crate) folder: PathBuf,
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
