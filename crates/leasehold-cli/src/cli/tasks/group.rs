//! The commands of each group.

use clap::Subcommand;
use leasehold::model::{QueueName, TaskId};

use super::{
    AddArgs, CancelArgs, ListTasksArgs, PauseArgs, ProgressArgs, PurgeArgs, RetentionArgs, RetryArgs,
    UpdateArgs, WorkArgs,
};

#[derive(Debug, Subcommand)]
pub(crate) enum TasksCommand {
    Add(Box<AddArgs>),
    Work(Box<WorkArgs>),
    Progress(ProgressArgs),
    List(ListTasksArgs),
    /// Show everything about a task: its attempts, its error, what people did to it
    Show {
        /// The task
        id: TaskId,
    },
    /// Count the tasks of each queue by their state
    Counts {
        /// The queue; all if not given
        queue: Option<QueueName>,
    },
    Retry(RetryArgs),
    Cancel(CancelArgs),
    Update(Box<UpdateArgs>),
    /// End leases that have run out, and put in line what is due, once
    ///
    /// Nothing depends on it while a worker runs: every worker does this all the time.
    Recover,
    Purge(PurgeArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// List the queues with their counts, and who paused them
    List,
    Pause(PauseArgs),
    /// Let tasks be taken from a queue again
    Resume {
        /// The queue
        queue: QueueName,
    },
    Retention(RetentionArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// The same as leasehold workers
    #[command(hide = true)]
    List,
}
