//! The command line: what can be typed, one file per group of commands. Values are checked here, once.
//!
//! | file | commands |
//! |---|---|
//! | `root.rs` | `leasehold` itself, and the options of all commands |
//! | `ask.rs` | the options for asking for a lock, which `run` and `locks acquire` share |
//! | `run.rs`, `locks.rs`, `events.rs`, `upkeep.rs` | the commands |
//! | `tasks/`, `schedules.rs`, `workflows.rs` | tasks, queues and workers; schedules; workflows and executions |
//! | `serve.rs` | the server and its tokens |
//! | `values.rs` | durations, filters and other values as people write them |
//! | `parse.rs` | from the arguments to a command, or to a message that says what is wrong |

mod ask;
mod events;
mod locks;
mod parse;
mod root;
mod run;
mod schedules;
mod serve;
mod tasks;
mod upkeep;
mod values;
mod workflows;

pub(crate) use ask::AskArgs;
pub(crate) use events::{HistoryArgs, WatchArgs};
pub(crate) use locks::{
    AcquireArgs, AskStopArgs, ListArgs, LocksCommand, ReleaseArgs, RenewArgs, StatusArgs, WaitArgs,
};
pub(crate) use parse::parse;
pub(crate) use root::{Cli, Command};
pub(crate) use run::RunArgs;
pub(crate) use schedules::{SchedulesCommand, SetArgs};
pub(crate) use serve::{NewTokenArgs, ServeArgs, TlsArgs, TokenCommand};
pub(crate) use tasks::{
    AddArgs, CancelArgs, ListTasksArgs, PauseArgs, ProgressArgs, PurgeArgs, QueuesCommand, RetentionArgs,
    RetryArgs, Source, TasksCommand, UpdateArgs, WorkArgs, WorkersCommand,
};
pub(crate) use upkeep::{FenceArgs, FenceCommand, StoreCommand, SweepArgs};
pub(crate) use values::{Filter, Target};
pub(crate) use workflows::{
    AbortArgs, ExecutionsCommand, ListExecutionsArgs, RunWorkflowArgs, WorkflowsCommand,
};
