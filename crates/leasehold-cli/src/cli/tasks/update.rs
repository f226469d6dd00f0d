//! Arguments of `leasehold tasks retry`, `cancel`, `update` and `purge`, and of `queues retention`
//! and `pause`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use leasehold::model::{Priority, QueueName, Reason, TaskId, TaskState, Timestamp};

use super::PayloadSource;
use crate::cli::values::{self, KeepFor};

/// Retry failed or aborted tasks, with all their attempts; run scheduled tasks now
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks retry --failed --queue mail")]
#[command(group = ArgGroup::new("which").required(true).multiple(false))]
pub(crate) struct RetryArgs {
    /// Ids of the tasks
    #[arg(value_name = "ID", group = "which")]
    pub(crate) ids: Vec<TaskId>,
    /// All failed tasks of a queue
    #[arg(long, group = "which", requires = "queue")]
    pub(crate) failed: bool,
    /// Queue of the failed tasks
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids")]
    pub(crate) queue: Option<QueueName>,
}

/// Cancel tasks, waiting or running
///
/// A waiting task is aborted at once. A running task is ended by its worker, which is notified at once, or at its next
/// heartbeat if the store cannot notify it.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Ids of the tasks
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<TaskId>,
    /// Reason, recorded with the task
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Change a task if its version is still the expected one
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks update ID --version 3 --priority 100\n\n\
    leasehold tasks show prints the version. If the task has been changed since, nothing happens, and the error \
    names the current version.")]
#[command(group = ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct UpdateArgs {
    /// Id of the task
    pub(crate) id: TaskId,
    /// Expected version
    #[arg(long, value_name = "V", allow_hyphen_values = true)]
    pub(crate) version: u64,
    /// New payload: JSON, @FILE, or - for stdin; rejected if the task is running or finished
    #[arg(long, value_name = "JSON", allow_hyphen_values = true, group = "change")]
    pub(crate) payload: Option<PayloadSource>,
    /// New priority, -1000 to 1000; rejected if the task is finished
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true, group = "change")]
    pub(crate) priority: Option<Priority>,
    /// New earliest start; rejected if the task is running or finished
    #[arg(long, value_name = "TIME", value_parser = values::time, group = "change")]
    pub(crate) run_at: Option<Timestamp>,
    /// New maximum number of attempts, 1 to 1000; rejected if the task is finished
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_hyphen_values = true, group = "change")]
    pub(crate) max_attempts: Option<u32>,
}

/// Delete or archive finished tasks
///
/// Executions of workflows are kept for at least 30 days: until then their key must be known.
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks purge --queue mail --state succeeded --older-than 7d --yes")]
pub(crate) struct PurgeArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<QueueName>,
    /// Only tasks in this state: succeeded, failed or aborted
    #[arg(long, value_name = "STATE", value_parser = values::end_state)]
    pub(crate) state: Option<TaskState>,
    /// Only tasks that finished at least this long ago
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) older_than: Duration,
    /// Archive the tasks instead of deleting them: they are no longer listed or counted
    #[arg(long)]
    pub(crate) archive: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Show or set the retention of finished tasks
///
/// The setting is stored in the store and applied by every worker and server. Without a queue it applies to all queues
/// without a setting of their own; the default is seven days. Executions of workflows are kept for at least 30 days. The
/// key of a task is deleted with the task.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold queues retention mail --succeeded 1d --failed forever
  leasehold queues retention --all 30d")]
pub(crate) struct RetentionArgs {
    /// Name of the queue [default: all queues without a setting of their own]
    pub(crate) queue: Option<QueueName>,
    /// Retention of all finished tasks: a duration, or forever
    #[arg(long, value_name = "DURATION", value_parser = values::keep_for, conflicts_with_all = ["succeeded", "failed", "aborted"])]
    pub(crate) all: Option<KeepFor>,
    /// Retention of succeeded tasks
    #[arg(long, value_name = "DURATION", value_parser = values::keep_for)]
    pub(crate) succeeded: Option<KeepFor>,
    /// Retention of failed tasks
    #[arg(long, value_name = "DURATION", value_parser = values::keep_for)]
    pub(crate) failed: Option<KeepFor>,
    /// Retention of aborted tasks
    #[arg(long, value_name = "DURATION", value_parser = values::keep_for)]
    pub(crate) aborted: Option<KeepFor>,
    /// Remove the setting
    #[arg(long, conflicts_with_all = ["all", "succeeded", "failed", "aborted"])]
    pub(crate) reset: bool,
}

/// Pause a queue: no further task is leased until it is resumed; running tasks continue
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Name of the queue
    pub(crate) queue: QueueName,
    /// Reason, shown with the queue
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}
