//! Stepping in by hand: `leasehold tasks retry`, `cancel`, `update`, `purge`, and `queues pause`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use leasehold::model::{Priority, QueueName, Reason, TaskId, TaskState, Timestamp};

use super::Source;
use crate::cli::values::{self, Keep};

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
/// Those that wait are stopped at once. One that runs is ended by its worker, which learns it at once, or with its next heartbeat
/// if the store cannot notify it.
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

/// Delete tasks that have ended, or archive them
///
/// Executions of workflows are not forgotten before 30 days have passed: until then their key must be known.
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
    /// Archive them instead: they are no longer listed or counted, but still there
    #[arg(long)]
    pub(crate) archive: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Show or set how long finished tasks of a queue are kept
///
/// It is kept in the store: every worker and server that forgets finished tasks reads it. Without a queue it is for all queues
/// that have nothing set of their own; seven days if nothing is set. Executions of workflows are kept for 30 days at least. The
/// key of a task is forgotten with it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold queues retention mail --succeeded 1d --failed forever
  leasehold queues retention --all 30d")]
pub(crate) struct RetentionArgs {
    /// The queue; all that have nothing set of their own if not given
    pub(crate) queue: Option<QueueName>,
    /// Keep every finished task for so long: a duration, or forever
    #[arg(long, value_name = "DURATION", value_parser = values::keep, conflicts_with_all = ["succeeded", "failed", "aborted"])]
    pub(crate) all: Option<Keep>,
    /// Keep tasks that succeeded for so long
    #[arg(long, value_name = "DURATION", value_parser = values::keep)]
    pub(crate) succeeded: Option<Keep>,
    /// Keep tasks that failed for so long
    #[arg(long, value_name = "DURATION", value_parser = values::keep)]
    pub(crate) failed: Option<Keep>,
    /// Keep tasks that were aborted for so long
    #[arg(long, value_name = "DURATION", value_parser = values::keep)]
    pub(crate) aborted: Option<Keep>,
    /// Remove what was set
    #[arg(long, conflicts_with_all = ["all", "succeeded", "failed", "aborted"])]
    pub(crate) reset: bool,
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
