//! Arguments of `torture`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold::model::Ttl;
use leasehold_torture::FaultKind;

use super::values;

/// Test a store under faults: compete for locks and tasks, and check what is promised
///
/// Worker processes compete for locks, take them by force, and add and run tasks and executions, while processes are killed and
/// stopped, and connections are cut, blocked and delayed. What they saw is then checked: no two holders at a time, rising
/// tokens, no lost write behind a fence, a fair queue, no lost task, one task per key and per tick of a schedule. Exits with 1
/// if a promise is broken, and prints the part of the history that shows it. Ctrl-C ends the run early and checks what there
/// is; a second one ends it at once.
///
/// Faults of connections need a store on this machine that is reached without TLS. The names of all locks, queues and
/// workflows begin with torture-SEED; executions of the workflow stay in the store as long as its retention says. Use a store
/// for tests.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TortureArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TortureCommand>,
    /// Seconds in which faults are injected
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub(crate) seconds: u64,
    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) workers: u32,
    /// Number of locks that all workers compete for
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) locks: u32,
    /// TTL of leases; raised to the minimum of the store
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,
    /// Faults to inject: all, none, or a list of kill, stop, cut, black-hole, delay, late-request,
    /// late-response, lost-response, duplicate
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = faults)]
    pub(crate) faults: Faults,
    /// Seed of all random choices [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// File for the history, to check it again with leasehold torture check
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TortureCommand {
    /// Check a recorded history again
    Check {
        /// File that --record has written
        file: PathBuf,
    },
    /// Worker process; its standard input says what to do
    #[command(hide = true)]
    Worker,
}

/// Kinds of faults.
#[derive(Debug, Clone)]
pub(crate) struct Faults(pub(crate) Vec<FaultKind>);

fn faults(text: &str) -> Result<Faults, String> {
    match text {
        "all" => Ok(Faults(FaultKind::all())),
        "none" => Ok(Faults(Vec::new())),
        list => list.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Faults),
    }
}
