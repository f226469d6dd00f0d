//! The command line: what can be typed, one file per group of commands. Values are checked here, once.

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
