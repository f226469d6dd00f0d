//! `leasehold tasks list`.

use clap::Args;
use leasehold::model::{LockName, QueueName, TaskState, WorkerId};

use crate::cli::values;

/// List tasks, the newest first
#[derive(Debug, Args)]
pub(crate) struct ListTasksArgs {
    /// Only those of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<QueueName>,
    /// Only those in this state: scheduled, blocked, pending, running, succeeded, failed or aborted
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<TaskState>,
    /// Only those with this lock
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    /// Only those that this worker has, or had last
    #[arg(long, value_name = "ID")]
    pub(crate) worker: Option<WorkerId>,
    /// Also those that were archived
    #[arg(long)]
    pub(crate) archived: bool,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// All of them, however many there are
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
}
