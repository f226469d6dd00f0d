//! Command line: arguments of all commands, validated when they are parsed.

mod events;
mod lock_options;
mod locks;
mod maintenance;
mod parse;
mod root;
mod run;
mod schedules;
mod serve;
mod tasks;
mod values;
mod workflows;

pub(crate) use events::{HistoryArgs, WatchArgs};
pub(crate) use lock_options::LockOptions;
pub(crate) use locks::{
    AcquireArgs, AskStopArgs, ListArgs, LocksCommand, ReleaseArgs, RenewArgs, StatusArgs, WaitArgs,
};
pub(crate) use maintenance::{FenceArgs, FenceCommand, StoreCommand, SweepArgs};
pub(crate) use parse::parse;
pub(crate) use root::{Cli, Command};
pub(crate) use run::RunArgs;
pub(crate) use schedules::{SchedulesCommand, SetArgs};
pub(crate) use serve::{NewTokenArgs, ServeArgs, TlsArgs, TokenCommand};
pub(crate) use tasks::{
    AddArgs, CancelArgs, ListTasksArgs, PauseArgs, PayloadSource, ProgressArgs, PurgeArgs, QueuesCommand,
    RetentionArgs, RetryArgs, TasksCommand, UpdateArgs, WorkArgs, WorkersCommand,
};
pub(crate) use values::{LockFilter, WaitFor};
pub(crate) use workflows::{
    AbortArgs, ExecutionsCommand, ListExecutionsArgs, RunWorkflowArgs, WorkflowsCommand,
};
