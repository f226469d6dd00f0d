//! `leasehold schedules …`.

use clap::{Args, Subcommand};
use leasehold::model::{
    CronExpression, LockName, MisfirePolicy, Priority, QueueName, ScheduleName, TimeZoneName, Ttl,
};

use super::tasks::{PayloadSource, RetryOptions};
use super::values;

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    Set(Box<SetArgs>),
    /// List the schedules with their next ticks
    List,
    /// Show a schedule with its next ticks
    Show {
        /// Name of the schedule
        name: ScheduleName,
        /// Number of ticks to show
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
        next: u32,
    },
    /// Pause a schedule: ticks are skipped until it is resumed
    Pause {
        /// Name of the schedule
        name: ScheduleName,
    },
    /// Resume a schedule, from the next tick on
    Resume {
        /// Name of the schedule
        name: ScheduleName,
    },
    /// Remove a schedule; its tasks stay
    Remove {
        /// Name of the schedule
        name: ScheduleName,
    },
}

const EXAMPLES: &str = "\
Examples:
  leasehold schedules set nightly '0 3 * * *' reports --zone Europe/Berlin
  leasehold schedules set poll '*/30 * * * * *' feeds --payload '{\"feed\": \"news\"}' --missed none
A tick becomes a task while a worker runs: leasehold tasks work reports -- make-report";

/// Set a schedule: one task for each tick of a cron expression, however many workers are running
///
/// A schedule with the same name is replaced. The expression has five fields (minute, hour, day of month, month, day of week), or six
/// with seconds before them, or is one of @hourly, @daily, @weekly, @monthly, @yearly.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Name of the schedule
    pub(crate) name: ScheduleName,
    /// Cron expression
    pub(crate) cron: CronExpression,
    /// Queue of its tasks
    pub(crate) queue: QueueName,
    /// Time zone of the expression
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) zone: TimeZoneName,
    /// Payload of its tasks: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<PayloadSource>,
    /// Ticks at which no worker was running: add a task for all of them, for the last, or for none
    ///
    /// A tick is missed if it is more than 3 s old when a worker starts. A tick that a running worker sees late, because
    /// the store was unreachable, is missed after a minute.
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub(crate) missed: MisfirePolicy,
    /// Maximum delay of a task after its tick, derived from a hash of the name and the tick; at most 1d [default: none]
    #[arg(long, value_name = "DURATION", value_parser = values::jitter, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Ttl>,
    /// Priority of its tasks, -1000 to 1000
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Lock that its tasks hold while they run
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    #[command(flatten)]
    pub(crate) retry: RetryOptions,
}
