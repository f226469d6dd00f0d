//! Top level of the command line, and the global options.

use clap::{Args, Parser, Subcommand};

use super::events::{HistoryArgs, WatchArgs};
use super::locks::LocksCommand;
use super::maintenance::{CompletionsArgs, FenceCommand, StoreCommand, SweepArgs};
use super::run::RunArgs;
use super::schedules::SchedulesCommand;
use super::serve::{ServeArgs, TokenCommand};
use super::tasks::{QueuesCommand, TasksCommand, WorkersCommand};
use super::workflows::{ExecutionsCommand, WorkflowsCommand};
use crate::exit;

const STORES: &str = "\
Stores:
  sqlite:PATH                         a file: one machine, many processes
  postgres://USER@HOST/DATABASE       PostgreSQL: many machines
  redis://HOST                        Redis: many machines; rediss:// with TLS,
                                      redis+cluster://HOST, redis+sentinel://HOST/SERVICE
  dynamodb://TABLE?region=REGION      DynamoDB: many machines; first run leasehold store init
  https://HOST                        a leasehold server: any machine, no driver; its token in
                                      LEASEHOLD_API_TOKEN or the file LEASEHOLD_TOKEN_FILE
  github://OWNER/REPO                 GitHub Issues: many machines, no setup
  memory:                             this process only, for tests
Put passwords into LEASEHOLD_STORE rather than --store: other users can see the arguments of a process.

The store is the first of these:
  --store URL
  LEASEHOLD_STORE
  store = \"URL\" in the file that LEASEHOLD_CONFIG names, or else in leasehold/config.toml
                under XDG_CONFIG_HOME (~/.config)
  sqlite:       leasehold/leasehold.db under XDG_STATE_HOME (~/.local/state)";

/// Locks with fencing tokens, task queues and workflows, for commands and scripts
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "See leasehold --help for stores and exit codes, and leasehold help COMMAND for a command."
)]
#[command(after_long_help = format!("{STORES}\n\n{}", exit::HELP))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
pub(crate) struct Global {
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    #[arg(
        help = "URL of the store: sqlite:PATH, or sqlite: for the default path; postgres://…, redis://…, dynamodb://TABLE, https://HOST, github://OWNER/REPO [env: LEASEHOLD_STORE]"
    )]
    pub(crate) store: Option<String>,
    /// Print JSON: results to stdout, errors to stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Print only results and errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    /// List, explain, acquire and release locks
    #[command(subcommand)]
    Locks(LocksCommand),
    /// Add, run, list and change tasks
    #[command(subcommand)]
    Tasks(TasksCommand),
    /// List, pause and resume task queues
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// Set, list, pause and remove schedules of recurring tasks
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    /// Start and run an execution of a workflow, once per event; list workflows
    #[command(subcommand)]
    Workflows(WorkflowsCommand),
    /// List and abort executions of workflows
    #[command(subcommand)]
    Executions(ExecutionsCommand),
    /// List running workers, and for an hour also workers that were killed
    Workers {
        #[command(subcommand)]
        command: Option<WorkersCommand>,
    },
    Serve(ServeArgs),
    /// Create, list and revoke API tokens of the servers of this store
    #[command(subcommand)]
    Token(TokenCommand),
    History(HistoryArgs),
    Watch(WatchArgs),
    Sweep(SweepArgs),
    /// Check fencing tokens
    #[command(subcommand)]
    Fence(FenceCommand),
    /// Prepare a store
    #[command(subcommand)]
    Store(StoreCommand),
    /// Check whether the store can be used, and print how to fix problems
    Doctor,
    Completions(CompletionsArgs),
    /// Print the manual page: leasehold man | man -l -
    Man,
}
