//! Top level of the command line, the global options, and the commands with few arguments.

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use leasehold::model::{LockName, Token, Ttl};

use super::events::{HistoryArgs, WatchArgs};
use super::locks::{LocksCommand, RunArgs};
#[cfg(feature = "serve")]
use super::serve::{ServeArgs, TokenCommand};
use super::tasks::{QueuesCommand, TasksCommand};
#[cfg(feature = "torture")]
use super::torture::TortureArgs;
use super::values::{self, ListView};
use super::workflows::{ExecutionsCommand, SchedulesCommand, WorkflowsCommand};
use crate::{complete, exit};

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

const COMPLETIONS: &str = "\
Add the line of your shell to its startup file:
  bash  source <(leasehold completions bash)                    ~/.bashrc
  zsh   source <(leasehold completions zsh)                     ~/.zshrc, after compinit
  fish  leasehold completions fish | source                     ~/.config/fish/config.fish
The script calls leasehold, which reads names of locks, queues, schedules and workflows and short ids of tasks \
from the store of LEASEHOLD_STORE, or of --store if it is typed before them.";

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
    /// Print times in UTC; without this option they are in local time on a terminal, and in UTC elsewhere
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) utc: bool,
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
    Workers(WorkersArgs),
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    #[cfg(feature = "serve")]
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
    Doctor(DoctorArgs),
    #[cfg(feature = "torture")]
    Torture(Box<TortureArgs>),
    Completions(CompletionsArgs),
    /// Print the manual page: leasehold man | man -l -
    Man,
}

impl Command {
    /// Returns the presentation that the caller chose for a list.
    pub(crate) fn list_view(&self) -> ListView {
        match self {
            Self::Locks(LocksCommand::List(args)) => args.view,
            Self::Tasks(TasksCommand::List(args)) => args.view,
            Self::Executions(ExecutionsCommand::List(args)) => args.view,
            Self::Tasks(TasksCommand::Counts { view, .. })
            | Self::Queues(QueuesCommand::List { view })
            | Self::Schedules(SchedulesCommand::List { view })
            | Self::Workflows(WorkflowsCommand::List { view }) => *view,
            Self::Workers(
                WorkersArgs { command: Some(WorkersCommand::List { view }), .. } | WorkersArgs { view, .. },
            ) => *view,
            #[cfg(feature = "serve")]
            Self::Token(TokenCommand::List { view }) => *view,
            _ => ListView::default(),
        }
    }
}

/// List running workers, and for an hour also workers that were killed
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    view: ListView,
    #[command(subcommand)]
    command: Option<WorkersCommand>,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// Same as leasehold workers
    #[command(hide = true)]
    List {
        #[command(flatten)]
        view: ListView,
    },
}

/// Whether a word is the name of a command.
pub(crate) fn is_command(word: &str) -> bool {
    Cli::command().get_subcommands().any(|command| command.get_name() == word)
}

/// Check whether the store can be used, and print how to fix problems
///
/// Changes nothing in the store, unless --race is given.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also acquire a lock from 16 clients at once, for two seconds: exactly one may win each time
    ///
    /// Finds stores that ignore conditions, in contrast to what they claim. leasehold torture finds more, and takes longer. The
    /// name of the lock begins with leasehold-doctor; it is free afterwards, and forgotten like all idle locks.
    #[cfg(feature = "torture")]
    #[arg(long)]
    pub(crate) race: bool,
}

/// Remove expired leases and tickets, and grant their locks to waiters
///
/// Not required for correctness: every acquire does this for its lock first. A sweep cleans up lists and history.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Maximum number of locks
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// Also delete idle locks: without holders and waiters, and not granted for this long
    ///
    /// Tokens still increase when such a lock is used again. Servers and sweepers do this after a day. On PostgreSQL a lock is
    /// deleted by the second of two calls that are a minute apart.
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) forget_after: Option<Ttl>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    Check(FenceArgs),
}

/// Check whether the lease with this token is valid: exit code 0 if it is, 1 if not
#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// Name of the lock
    #[arg(add = ArgValueCompleter::new(complete::locks))]
    pub(crate) name: LockName,
    /// Token to check
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(crate) token: Token,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Prepare the store: create tables and files that do not exist yet
    ///
    /// Only DynamoDB requires it: a table costs money, so only this command creates it. Other stores create what they need
    /// when they are first opened. A store that is ready is not changed.
    Init,
}

/// Print completions for a shell: commands, options, and names and ids from the store
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    pub(crate) shell: clap_complete::Shell,
}
