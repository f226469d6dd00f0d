//! Command-line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::report::Format;

/// Benchmarks: every result is compared with the raw engine in the same round
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
    Dashboard(DashboardArgs),
    /// Client process: prints `ready`, reads its window, prints its measurements
    #[command(hide = true)]
    ClientProcess {
        load: String,
    },
    /// Worker process: prints `ready`, starts and stops on input, prints the measured times
    #[command(hide = true)]
    TaskWorker {
        sandbox: String,
    },
    /// Server process: prints its address, stops at the end of its input
    #[command(hide = true)]
    HttpServer {
        kind: String,
    },
}

/// Acquire and release, uncontended and contended, and `leasehold run` compared with `flock`
#[derive(Debug, Args)]
pub(crate) struct LocksArgs {
    /// Number of rounds; the results are medians
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Duration of each measurement; many short rounds average out a disk with changing speed
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// Number of starts of each command
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) starts: u32,
    /// Only loads whose name contains this; the commands are named `run`
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
    /// Folder for the databases; it determines the cost of an fsync
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// Binary to start; by default the one in the folder of this program
    #[arg(long, value_name = "FILE")]
    pub(crate) leasehold: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Enqueue, drain and start of tasks; with `--peers` also of other projects
#[derive(Debug, Args)]
pub(crate) struct TasksArgs {
    /// Number of rounds; the results are medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Duration of each enqueue measurement
    #[arg(long, default_value_t = 0.5)]
    pub(crate) seconds: f64,
    /// Number of tasks of each drain measurement
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) tasks: u64,
    /// Duration of each start measurement, with 50 tasks per second
    #[arg(long, default_value_t = 2.0)]
    pub(crate) start_seconds: f64,
    /// Number of pending tasks when the cost of a lease is compared with that at 10,000…
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(20_000..=100_000_000))]
    pub(crate) deep: u64,
    /// …or as many as can be enqueued in this time
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) fill_seconds: u64,
    /// Only loads whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) only: String,
    /// Measure other projects too: installs them from npm, `PyPI` and crates.io, which takes minutes
    #[arg(long)]
    pub(crate) peers: bool,
    /// Folder in which they are installed and kept; by default a temporary folder
    #[arg(long, value_name = "FOLDER", requires = "peers")]
    pub(crate) peers_dir: Option<PathBuf>,
    /// Folder for the databases; it determines the cost of an fsync
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// The server under load, compared with a handler that does nothing
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Number of rounds, each with new servers; the results are medians. Many short ones: the same
    /// program is up to 40 % faster in one round than in the next
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Duration of each measurement
    #[arg(long, default_value_t = 0.7)]
    pub(crate) seconds: f64,
    /// Number of concurrent waiters in the last row; each needs two open files
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) waiters: u32,
    #[command(flatten)]
    pub(crate) format: Format,
}

/// Pages of the dashboard on a large store: each must take less than 300 ms
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Number of held locks
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) locks: u32,
    /// Number of them that have a waiter
    #[arg(long, default_value_t = 10_000)]
    pub(crate) waited: u32,
    /// Number of tasks; half of them are finished
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) tasks: u32,
    /// Number of open tabs
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) tabs: u32,
    /// Empty store to fill [default: a temporary SQLite file]
    #[arg(long, value_name = "URL", conflicts_with = "dir")]
    pub(crate) store: Option<String>,
    /// Folder for the SQLite file
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: Format,
}
