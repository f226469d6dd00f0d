//! Command groups `leasehold tasks`, `queues` and `workers`, and `tasks list`.

use clap::{Args, Subcommand};
use leasehold::model::{LockName, QueueName, TaskId, TaskState, WorkerId};

use super::{
    AddArgs, CancelArgs, PauseArgs, ProgressArgs, PurgeArgs, RetentionArgs, RetryArgs, UpdateArgs, WorkArgs,
};
use crate::cli::values;

#[derive(Debug, Subcommand)]
pub(crate) enum TasksCommand {
    Add(Box<AddArgs>),
    Work(Box<WorkArgs>),
    Progress(ProgressArgs),
    List(ListTasksArgs),
    /// Show all details of a task: attempts, errors, manual changes
    Show {
        /// Id of the task
        id: TaskId,
    },
    /// Count the tasks of each queue by their state
    Counts {
        /// Name of the queue [default: all]
        queue: Option<QueueName>,
    },
    Retry(RetryArgs),
    Cancel(CancelArgs),
    Update(Box<UpdateArgs>),
    /// Expire overdue leases and promote due tasks, once
    ///
    /// Not needed while a worker is running: every worker does this continuously.
    Recover,
    Purge(PurgeArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// List the queues with the number of tasks in each state
    List,
    Pause(PauseArgs),
    /// Resume a paused queue
    Resume {
        /// Name of the queue
        queue: QueueName,
    },
    Retention(RetentionArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// Same as leasehold workers
    #[command(hide = true)]
    List,
}

/// List tasks, newest first
#[derive(Debug, Args)]
pub(crate) struct ListTasksArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<QueueName>,
    /// Only tasks in this state: scheduled, blocked, pending, running, succeeded, failed or aborted
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<TaskState>,
    /// Only tasks with this lock
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    /// Only tasks that this worker runs, or ran last
    #[arg(long, value_name = "ID")]
    pub(crate) worker: Option<WorkerId>,
    /// Also archived tasks
    #[arg(long)]
    pub(crate) archived: bool,
    /// Maximum number of tasks
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// List all tasks
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}
