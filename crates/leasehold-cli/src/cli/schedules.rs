//! `leasehold schedules …`.

use clap::{Args, Subcommand};
use leasehold::model::{
    CronExpression, LockName, MisfirePolicy, Priority, QueueName, ScheduleName, TimeZoneName, Ttl,
};

use super::tasks::{Source, Steps};
use super::values;

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    Set(Box<SetArgs>),
    /// List the schedules, with their next ticks
    List,
    /// Show a schedule, with its next ticks
    Show {
        /// The schedule
        name: ScheduleName,
        /// How many ticks ahead
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
        next: u32,
    },
    /// Let no tick count until it is resumed
    Pause {
        /// The schedule
        name: ScheduleName,
    },
    /// Let ticks count again, from now on
    Resume {
        /// The schedule
        name: ScheduleName,
    },
    /// Remove a schedule; the tasks it has made stay
    Remove {
        /// The schedule
        name: ScheduleName,
    },
}

const EXAMPLES: &str = "\
Examples:
  leasehold schedules set nightly '0 3 * * *' reports --zone Europe/Berlin
  leasehold schedules set poll '*/30 * * * * *' feeds --payload '{\"feed\": \"news\"}' --missed none
A tick becomes a task while a worker runs: leasehold tasks work reports -- make-report";

/// Set a schedule: a task for each tick of a cron expression, once, however many workers there are
///
/// One with the same name is replaced. The expression has five fields (minute, hour, day of month, month, day of week), or six
/// with seconds before them, or is one of @hourly, @daily, @weekly, @monthly, @yearly.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Its name
    pub(crate) name: ScheduleName,
    /// When: a cron expression
    pub(crate) cron: CronExpression,
    /// The queue that its tasks go to
    pub(crate) queue: QueueName,
    /// The time zone of the expression
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) zone: TimeZoneName,
    /// What its tasks are about: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<Source>,
    /// Ticks at which no worker was running: a task for all of them, for the last, or for none
    ///
    /// A worker that starts runs a tick that is at most 3 s old as if it had been running; every earlier tick was missed. A
    /// tick that a running worker sees late, because the store was away, was missed after a minute.
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub(crate) missed: MisfirePolicy,
    /// Run each task up to this long after its tick, by a hash of the name and the tick; 1d at most [default: none]
    #[arg(long, value_name = "DURATION", value_parser = values::jitter, allow_hyphen_values = true)]
    pub(crate) jitter: Option<Ttl>,
    /// Weight of its tasks among those that could run, -1000 to 1000
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Its tasks run only while they hold this lock
    #[arg(long, value_name = "LOCK")]
    pub(crate) lock: Option<LockName>,
    #[command(flatten)]
    pub(crate) steps: Steps,
}
