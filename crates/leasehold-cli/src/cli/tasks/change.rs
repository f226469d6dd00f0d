//! Stepping in by hand: `leasehold tasks retry`, `cancel`, `update`, `purge`, and `queues pause`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use leasehold::model::{Priority, QueueName, Reason, TaskId, TaskState, Timestamp};

use super::Source;
use crate::cli::values;

/// Try failed or stopped tasks again, with all their attempts; run scheduled ones now
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks retry --failed --queue mail")]
#[command(group = ArgGroup::new("which").required(true).multiple(false))]
pub(crate) struct RetryArgs {
    /// The tasks
    #[arg(value_name = "ID", group = "which")]
    pub(crate) ids: Vec<TaskId>,
    /// All that have failed, of one queue
    #[arg(long, group = "which", requires = "queue")]
    pub(crate) failed: bool,
    /// Of this queue
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids")]
    pub(crate) queue: Option<QueueName>,
}

/// Stop tasks, whether they wait or run
///
/// Those that wait are stopped at once. The worker of one that runs learns it with its next sign of life, and ends it.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<TaskId>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Change a task if it is still at the version that you saw
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks update ID --version 3 --priority 100\n\n\
    The version is shown by leasehold tasks show. If somebody has changed the task since, nothing happens, and the \
    message says which version it is at.")]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct UpdateArgs {
    /// The task
    pub(crate) id: TaskId,
    /// The version that you saw
    #[arg(long, value_name = "V", allow_hyphen_values = true)]
    pub(crate) version: u64,
    /// What it is about from now on: JSON, @FILE, or - for stdin; not while it runs or when it is over
    #[arg(long, value_name = "JSON", allow_hyphen_values = true, group = "change")]
    pub(crate) payload: Option<Source>,
    /// Its weight, -1000 to 1000; not when it is over
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true, group = "change")]
    pub(crate) priority: Option<Priority>,
    /// Not before this time; not while it runs or when it is over
    #[arg(long, value_name = "TIME", value_parser = values::time, group = "change")]
    pub(crate) run_at: Option<Timestamp>,
    /// How often it is tried, 1 to 1000; not when it is over
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_hyphen_values = true, group = "change")]
    pub(crate) max_attempts: Option<u32>,
}

/// Forget tasks that have ended, or put them away
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks purge --queue mail --state succeeded --older-than 7d --yes")]
pub(crate) struct PurgeArgs {
    /// Only those of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<QueueName>,
    /// Only those that ended like this: succeeded, failed or aborted
    #[arg(long, value_name = "STATE", value_parser = values::end_state)]
    pub(crate) state: Option<TaskState>,
    /// Only those that ended so long ago
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
    /// Put them away instead: they are no longer listed or counted, but still there
    #[arg(long)]
    pub(crate) archive: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Take nothing more from a queue until it is resumed; what runs goes on
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The queue
    pub(crate) queue: QueueName,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}
