//! `leasehold tasks work`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::model::{QueueName, Ttl};

use crate::cli::values;
use crate::run::Contain;

const ABOUT: &str = "\
Run a command for each task of a queue

The command runs once for each task, without a shell. It receives the payload on stdin; its environment contains \
LEASEHOLD_TASK, LEASEHOLD_QUEUE, LEASEHOLD_TOKEN, LEASEHOLD_ATTEMPT, LEASEHOLD_STORE and, if the task has them, LEASEHOLD_KEY, \
LEASEHOLD_LOCK and LEASEHOLD_LOCK_TOKEN. Its stdout is forwarded and stored as the result: unchanged if it is JSON, otherwise \
as a string. The last lines of its stderr are stored as the error.

The command and all its descendants are dead before the lease on the task can end, whether the store responds or not, and \
also if leasehold itself is killed. SIGINT and SIGTERM stop the worker when its running tasks are finished, or after --grace; \
a second signal stops it immediately. Unfinished tasks are returned to the queue.";

const EXIT: &str = "\
The exit code of the command determines the result:
  0         succeeded
  75        snoozed: retried after the backoff of the task, without counting as an attempt
  65, 78    failed, without a retry
  others    this attempt failed; retried if attempts are left

Examples:
  leasehold tasks work video --slots 4 -- ./encode.sh
  leasehold tasks work mail letters --until-empty -- python3 send.py";

/// Run a command for each task of a queue
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXIT)]
pub(crate) struct WorkArgs {
    /// Queues to lease tasks from, ordered together by priority and time of arrival
    #[arg(value_name = "QUEUE", required = true)]
    pub(crate) queues: Vec<QueueName>,
    /// Number of concurrent tasks, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::work_slots, allow_hyphen_values = true)]
    pub(crate) slots: u32,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// Duration of the lease on a task without a heartbeat; after a crash the task is retried after this time
    /// [default: 30s, or longer if the store requires it] [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
    /// Time for running commands to finish when the worker is asked to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// Time between SIGTERM and SIGKILL for a command [default: 5s, or less if the ttl is short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// Maximum runtime of a command; afterwards it is ended, and the attempt has failed [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Ttl>,
    /// Interval at which this worker recovers tasks of dead workers, 10ms to 1d [default: a third of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) recover_every: Option<Duration>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// Containment of the processes of a command [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Stop after one task
    #[arg(long, conflicts_with_all = ["until_empty", "slots"])]
    pub(crate) once: bool,
    /// Stop when no task is left that could run now
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Report the progress of a task from within its command
///
/// leasehold tasks list and show print the progress within about a second.
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks progress --done 40 --of 100 --note 'second pass'")]
pub(crate) struct ProgressArgs {
    /// Units of work that are done
    #[arg(long, value_name = "N")]
    pub(crate) done: u64,
    /// Total units of work, if known
    #[arg(long, value_name = "M")]
    pub(crate) of: Option<u64>,
    /// Description of the current step
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}
