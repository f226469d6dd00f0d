//! `leasehold` itself, and the options that every command has.

use clap::{Args, Parser, Subcommand};

use super::events::{HistoryArgs, WatchArgs};
use super::locks::LocksCommand;
use super::run::RunArgs;
use super::schedules::SchedulesCommand;
use super::serve::{ServeArgs, TokenCommand};
use super::tasks::{QueuesCommand, TasksCommand, WorkersCommand};
use super::upkeep::{CompletionsArgs, FenceCommand, StoreCommand, SweepArgs};
use super::workflows::{ExecutionsCommand, WorkflowsCommand};
use crate::exit;

const STORES: &str = "\
Stores:
  sqlite:PATH                         a file: one machine, many processes
  postgres://USER@HOST/DATABASE       PostgreSQL: many machines
  redis://HOST                        Redis: many machines; rediss:// with TLS,
                                      redis+cluster://HOST, redis+sentinel://HOST/SERVICE
  dynamodb://TABLE?region=REGION      DynamoDB: many machines; leasehold store init makes the table
  https://HOST                        a leasehold server: any machine, no driver; its token in
                                      LEASEHOLD_API_TOKEN or the file LEASEHOLD_TOKEN_FILE
  github://OWNER/REPO                 GitHub Issues: many machines, and nothing to set up
  memory:                             this process only, for tests
A password is safer in LEASEHOLD_STORE than in --store, which others can see in the list of processes.

The store is the first of these:
  --store URL
  LEASEHOLD_STORE
  store = \"URL\" in the file that LEASEHOLD_CONFIG names, or else in leasehold/config.toml
                under XDG_CONFIG_HOME (~/.config)
  sqlite:       leasehold/leasehold.db under XDG_STATE_HOME (~/.local/state)";

/// Run it once, everywhere: locks with fencing tokens and task queues, for commands and scripts
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
        help = "Where locks and tasks live: sqlite:PATH, or sqlite: for the default place; postgres://…, redis://…, dynamodb://TABLE, https://HOST, github://OWNER/REPO [env: LEASEHOLD_STORE]"
    )]
    pub(crate) store: Option<String>,
    /// Write JSON for programs: results to stdout, errors to stderr
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Write only results and errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    /// See, explain, take and free locks
    #[command(subcommand)]
    Locks(LocksCommand),
    /// Add tasks, work on them with a command, see and change them
    #[command(subcommand)]
    Tasks(TasksCommand),
    /// See, pause and resume the queues of tasks
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// Set, see, pause and remove schedules: tasks that come again and again
    #[command(subcommand)]
    Schedules(SchedulesCommand),
    /// Start an execution of a workflow once for each event and run it; see the workflows
    #[command(subcommand)]
    Workflows(WorkflowsCommand),
    /// See and stop executions of workflows
    #[command(subcommand)]
    Executions(ExecutionsCommand),
    /// List the workers that run, and for an hour those that were killed
    Workers {
        #[command(subcommand)]
        command: Option<WorkersCommand>,
    },
    Serve(ServeArgs),
    /// Make, list and revoke the tokens of servers over this store
    #[command(subcommand)]
    Token(TokenCommand),
    History(HistoryArgs),
    Watch(WatchArgs),
    Sweep(SweepArgs),
    /// Check fencing tokens
    #[command(subcommand)]
    Fence(FenceCommand),
    /// Make a store ready
    #[command(subcommand)]
    Store(StoreCommand),
    /// Check that the store can be used, and say what to do if it cannot
    Doctor,
    Completions(CompletionsArgs),
    /// Write the manual page to stdout: leasehold man | man -l -
    Man,
}
