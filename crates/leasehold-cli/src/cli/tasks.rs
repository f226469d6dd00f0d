//! `leasehold tasks …`, `queues …` and `workers`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use leasehold::model::{
    LockName, Payload, Priority, QueueName, Reason, RetryPolicy, Reuse, TaskKey, TaskState, Timestamp, Ttl,
    ValidationError,
};

use super::values::{self, KeepFor, ListView, TaskIdArg, WorkerIdArg};
use crate::complete;
use crate::run::{Contain, WaitTimeout};

const EXAMPLES: &str = "\
Examples:
  leasehold tasks add mail --payload '{\"to\": \"ada\"}' --key welcome-ada
  leasehold tasks add report --payload @order.json --run-at 2030-01-01T06:00:00Z
  find . -name '*.mp4' -printf '\"%p\"\\n' | leasehold tasks add video --lines -";

/// Add a task to a queue and print its id
///
/// With --key, a task with the same key and payload is not added again: the id of the existing task, the word duplicate
/// and its state are printed. If that task has failed or was aborted, the exit code is 1. See --reuse.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// Name of the queue; it is created with its first task
    #[arg(add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: QueueName,
    /// Payload of the task: JSON, @FILE, or - for stdin [default: null]
    #[arg(value_name = "PAYLOAD", allow_negative_numbers = true, conflicts_with_all = ["payload", "lines"])]
    pub(crate) positional: Option<PayloadSource>,
    /// Same as PAYLOAD
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) payload: Option<PayloadSource>,
    /// Add a task for each line of this file, or of stdin if it is -; each line is a JSON payload
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, conflicts_with_all = ["payload", "key"])]
    pub(crate) lines: Option<PathBuf>,
    /// Idempotency key, unique per queue
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// When the key of an earlier task may be reused, also with another payload [default: never]
    #[arg(long, value_name = "WHEN", value_enum, requires = "key")]
    pub(crate) reuse: Option<ReuseArg>,
    /// Earliest start, such as 2030-01-01T06:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    pub(crate) run_at: Option<Timestamp>,
    /// Delay before the earliest start
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,
    /// Priority among the pending tasks, -1000 to 1000: each step counts like 30 s of waiting
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// Lock that the task holds while it runs; other tasks are not delayed while it waits
    #[arg(long, value_name = "LOCK", add = ArgValueCompleter::new(complete::locks))]
    pub(crate) lock: Option<LockName>,
    /// Longest run time of one attempt; an attempt that runs longer is ended and has failed
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Ttl>,
    /// Wait until the task has finished, or with --wait=DURATION at most this long; exit codes as of tasks wait
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, conflicts_with = "lines")]
    #[arg(default_missing_value = "forever", value_parser = values::wait_timeout)]
    pub(crate) wait: Option<WaitTimeout>,
    #[command(flatten)]
    pub(crate) retry: RetryOptions,
}

/// Wait until tasks have finished, and print their states
///
/// Exit codes: 0 if all tasks have succeeded, 1 if one has failed or was aborted, 75 after --timeout.
#[derive(Debug, Args)]
pub(crate) struct WaitTasksArgs {
    /// Ids of the tasks, in full or their first or last characters
    #[arg(value_name = "ID", required = true, add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) ids: Vec<TaskIdArg>,
    /// Exit with code 75 after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}

/// Retry policy of a task.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct RetryOptions {
    /// Maximum number of attempts, 1 to 1000 [default: 5]
    #[arg(long, value_name = "N", value_parser = values::attempts, allow_hyphen_values = true)]
    max_attempts: Option<u32>,
    /// Delay after the first failed attempt; doubles with each further one, up to an hour [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    backoff: Option<Ttl>,
}

impl RetryOptions {
    /// Returns the policy with the values of these options, and those of `before` for the rest.
    pub(crate) fn apply_to(self, before: RetryPolicy) -> RetryPolicy {
        let first = self.backoff.unwrap_or(before.initial_delay);
        RetryPolicy {
            attempts: self.max_attempts.unwrap_or(before.attempts),
            initial_delay: first,
            max_delay: before.max_delay.max(first),
        }
    }
}

/// Source of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PayloadSource {
    Inline(Payload),
    File(PathBuf),
    Stdin,
}

impl FromStr for PayloadSource {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        match (text, text.strip_prefix('@')) {
            ("-", _) => Ok(Self::Stdin),
            (_, Some("")) => Err(ValidationError::other("there is no file name after '@'")),
            (_, Some(file)) => Ok(Self::File(file.into())),
            (json, None) => Payload::new(json.trim()).map(Self::Inline),
        }
    }
}

/// When a worker begins each line of output with the id of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrefixArg {
    Auto,
    Always,
    Never,
}

impl PrefixArg {
    /// Returns the choice; `None` leaves it to the worker.
    pub(crate) const fn choice(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::Always => Some(true),
            Self::Never => Some(false),
        }
    }
}

/// When a key may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReuseArg {
    /// Never
    Never,
    /// If the earlier one has failed
    Failed,
    /// If the earlier one has finished
    Finished,
}

impl From<ReuseArg> for Reuse {
    fn from(again: ReuseArg) -> Self {
        match again {
            ReuseArg::Never => Self::Never,
            ReuseArg::Failed => Self::Failed,
            ReuseArg::Finished => Self::Finished,
        }
    }
}

/// Retry failed or aborted tasks, with all their attempts; run scheduled tasks now
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold tasks retry 5f0c9a1e
  leasehold tasks retry --failed --queue mail")]
#[command(group = ArgGroup::new("which").required(true).multiple(false))]
pub(crate) struct RetryArgs {
    /// Ids of the tasks, in full or their first or last characters
    #[arg(value_name = "ID", group = "which", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) ids: Vec<TaskIdArg>,
    /// All failed tasks, or with --queue those of one queue
    #[arg(long, group = "which")]
    pub(crate) failed: bool,
    /// Queue of the failed tasks
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: Option<QueueName>,
}

/// Cancel tasks, waiting or running
///
/// A waiting task is aborted at once. A running task is ended by its worker, which is notified at once, or at its next
/// heartbeat if the store cannot notify it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold tasks cancel 5f0c9a1e --reason 'wrong address'
  leasehold tasks cancel --queue mail --state scheduled --yes")]
#[command(group = ArgGroup::new("which").required(true).multiple(true))]
pub(crate) struct CancelArgs {
    /// Ids of the tasks, in full or their first or last characters
    #[arg(value_name = "ID", group = "which", conflicts_with_all = ["queue", "lock", "state"])]
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) ids: Vec<TaskIdArg>,
    /// All unfinished tasks of this queue
    #[arg(long, value_name = "QUEUE", group = "which", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: Option<QueueName>,
    /// All unfinished tasks with this lock
    #[arg(long, value_name = "LOCK", group = "which", add = ArgValueCompleter::new(complete::locks))]
    pub(crate) lock: Option<LockName>,
    /// Only those in this state: scheduled, blocked, pending or running
    #[arg(long, value_name = "STATE", value_parser = values::open_state)]
    pub(crate) state: Option<TaskState>,
    /// Do not ask for confirmation, for --queue and --lock
    #[arg(long)]
    pub(crate) yes: bool,
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
    /// Id of the task, in full or its first or last characters
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) id: TaskIdArg,
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
    #[arg(long, value_name = "TIME", group = "change")]
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
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
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
    #[arg(add = ArgValueCompleter::new(complete::queues))]
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
    #[arg(add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: QueueName,
    /// Reason, shown with the queue
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TasksCommand {
    Add(Box<AddArgs>),
    Work(Box<WorkArgs>),
    Progress(ProgressArgs),
    Wait(WaitTasksArgs),
    #[command(visible_alias = "ls")]
    List(ListTasksArgs),
    /// Show all details of a task: attempts, errors, manual changes
    Show {
        /// Id of the task, in full or its first or last characters
        #[arg(add = ArgValueCompleter::new(complete::tasks))]
        id: TaskIdArg,
    },
    /// Explain why a task does not run now
    Why {
        /// Id of the task, in full or its first or last characters
        #[arg(add = ArgValueCompleter::new(complete::tasks))]
        id: TaskIdArg,
    },
    Logs(LogsArgs),
    /// Count the tasks of each queue by their state
    Counts {
        /// Name of the queue [default: all]
        #[arg(add = ArgValueCompleter::new(complete::queues))]
        queue: Option<QueueName>,
        #[command(flatten)]
        view: ListView,
    },
    Retry(RetryArgs),
    #[command(visible_alias = "rm")]
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
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        view: ListView,
    },
    Pause(PauseArgs),
    /// Resume a paused queue
    Resume {
        /// Name of the queue
        #[arg(add = ArgValueCompleter::new(complete::queues))]
        queue: QueueName,
    },
    Retention(RetentionArgs),
}

/// Print what the commands of a task wrote
///
/// leasehold tasks work keeps the last 64 KiB of each attempt in the store (--keep-output). Lines that a command wrote to
/// stderr are printed to stderr.
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks logs 01890a5d-ac96-774b-bcce-b302099a8057 -f")]
pub(crate) struct LogsArgs {
    /// Id of the task, in full or its first or last characters
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) id: TaskIdArg,
    #[command(flatten)]
    pub(crate) options: LogOptions,
}

/// Options of tasks logs and executions logs.
#[derive(Debug, Args)]
pub(crate) struct LogOptions {
    /// Print further lines until the task is finished
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the attempt with this number
    #[arg(long, value_name = "N")]
    pub(crate) attempt: Option<u32>,
}

/// List tasks, newest first
#[derive(Debug, Args)]
pub(crate) struct ListTasksArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: Option<QueueName>,
    /// Only tasks in this state: scheduled, blocked, pending, running, succeeded, failed or aborted
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<TaskState>,
    /// Only tasks with this lock
    #[arg(long, value_name = "LOCK", add = ArgValueCompleter::new(complete::locks))]
    pub(crate) lock: Option<LockName>,
    /// Only tasks that this worker runs, or ran last
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::workers))]
    pub(crate) worker: Option<WorkerIdArg>,
    /// Also archived tasks
    #[arg(long)]
    pub(crate) archived: bool,
    /// Maximum number of tasks
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// List all tasks
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) view: ListView,
}

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
    #[arg(value_name = "QUEUE", required = true, add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queues: Vec<QueueName>,
    /// Number of concurrent tasks, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::work_slots, allow_hyphen_values = true)]
    pub(crate) slots: u32,
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
    /// Size of the output of each attempt, its last part, that is kept for leasehold tasks logs; 0 keeps none
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = values::output_bytes)]
    pub(crate) keep_output: usize,
    /// When each line of output begins with the id of its task; auto: on a terminal, with several slots
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub(crate) prefix: PrefixArg,
    /// Interval at which this worker recovers tasks of dead workers, 10ms to 1d [default: a third of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) recover_every: Option<Duration>,
    /// Containment of the processes of a command [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Stop after one task
    #[arg(long, conflicts_with_all = ["until_empty", "until_done", "slots"])]
    pub(crate) once: bool,
    /// Stop when no task is left that could run now
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// Stop when every task of the queues has finished, also retried, scheduled and blocked ones; the exit code is 1 if a
    /// task that ran here has failed
    #[arg(long, conflicts_with = "until_empty")]
    pub(crate) until_done: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_a_file_or_stdin() {
        assert_eq!("-".parse(), Ok(PayloadSource::Stdin));
        assert_eq!("@a b".parse(), Ok(PayloadSource::File("a b".into())));
        assert_eq!("-1".parse(), Ok(PayloadSource::Inline(Payload::new("-1").unwrap())));
        for invalid in ["", "@", "{", "hello", "'1'"] {
            assert!(invalid.parse::<PayloadSource>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn the_maximum_delay_is_never_shorter_than_the_first() {
        let options = RetryOptions { max_attempts: None, backoff: Some(Ttl::from_secs(7200)) };
        let retries = options.apply_to(RetryPolicy::default());
        assert_eq!((retries.initial_delay, retries.max_delay), (Ttl::from_secs(7200), Ttl::from_secs(7200)));
        assert_eq!(retries.attempts, RetryPolicy::default().attempts);
    }
}
