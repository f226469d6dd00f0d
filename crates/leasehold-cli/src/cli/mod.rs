//! Command line: arguments of all commands, validated when they are parsed.
#![expect(clippy::doc_markdown, reason = "the comments are the help texts")]

mod events;
mod locks;
mod parse;
mod root;
#[cfg(feature = "serve")]
mod serve;
mod tasks;
#[cfg(feature = "torture")]
mod torture;
mod values;
mod workflows;

pub(crate) use events::{HistoryArgs, SelectedQueue, SelectedTasks, WatchArgs};
pub(crate) use locks::{
    AcquireArgs, AskStopArgs, ListArgs, LockOptions, LocksCommand, ReleaseArgs, RenewArgs, RunArgs,
    StatusArgs, WaitArgs,
};
pub(crate) use parse::{COMPLETE, complete_and_exit, parse};
pub(crate) use root::{
    Cli, Command, DoctorArgs, FenceArgs, FenceCommand, StoreCommand, SweepArgs, is_command,
};
#[cfg(feature = "serve")]
pub(crate) use serve::{NewTokenArgs, ServeArgs, TlsArgs, TokenCommand};
pub(crate) use tasks::{
    AddArgs, CancelArgs, ListTasksArgs, LogOptions, LogsArgs, PauseArgs, PayloadSource, ProgressArgs,
    PurgeArgs, QueuesCommand, RetentionArgs, RetryArgs, TasksCommand, UpdateArgs, WaitTasksArgs, WorkArgs,
};
#[cfg(feature = "torture")]
pub(crate) use torture::{TortureArgs, TortureCommand};
pub(crate) use values::{
    ExecutionIdArg, IdArg, LockFilter, OutputFormat, PartOfId, TaskIdArg, WaitFor, WorkerIdArg,
};
pub(crate) use workflows::{
    AbortArgs, ExecutionsCommand, ListExecutionsArgs, RunWorkflowArgs, SchedulesCommand, SetArgs,
    WorkflowsCommand,
};
