//! `leasehold workflows …`, `executions …` and `schedules …`.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use leasehold::OnLocked;
use leasehold::model::{
    CronExpression, LockName, MisfirePolicy, Priority, QueueName, Reason, ScheduleName, TaskKey, TaskState,
    TimeZoneName, Ttl, ValidationError, WorkflowName,
};

use super::tasks::{LogOptions, PayloadSource, RetryOptions, ReuseArg};
use super::values::{self, ExecutionIdArg, ListView};
use crate::complete;
use crate::run::Contain;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkflowsCommand {
    /// List all workflows that were ever started, with the number of executions in each state
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        view: ListView,
    },
    Run(Box<RunWorkflowArgs>),
    /// Show the holder of the lock of a workflow, and whether it is running
    #[command(visible_alias = "show")]
    Status {
        /// Name of the workflow
        #[arg(add = ArgValueCompleter::new(complete::workflows))]
        workflow: WorkflowName,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExecutionsCommand {
    #[command(visible_alias = "ls")]
    List(ListExecutionsArgs),
    /// Show all details of an execution
    Show {
        /// Id of the execution, in full or its first or last characters
        #[arg(add = ArgValueCompleter::new(complete::executions))]
        id: ExecutionIdArg,
    },
    /// Print what the command of an execution wrote
    Logs {
        /// Id of the execution, in full or its first or last characters
        #[arg(add = ArgValueCompleter::new(complete::executions))]
        id: ExecutionIdArg,
        #[command(flatten)]
        options: LogOptions,
    },
    Abort(AbortArgs),
}

const ABOUT: &str = "\
Start an execution of a workflow and run it here, with a command

The command does not run if the key has started an execution before, unless that execution failed, or if another execution \
of the workflow holds its lock. The command receives the input on stdin; its environment contains LEASEHOLD_WORKFLOW, \
LEASEHOLD_EXECUTION_ID, LEASEHOLD_TOKEN, LEASEHOLD_ATTEMPT, LEASEHOLD_STORE and, with --key, LEASEHOLD_KEY. As with leasehold \
tasks work, the command and all its descendants are dead before the lease can end.

If leasehold is killed while its execution waits in the queue, the execution fails when its --ttl has passed; \
leasehold executions abort removes it at once.";

const EXAMPLES: &str = "\
Exit codes: 0 the execution succeeded (now or earlier under the same key) or was skipped; 1 it failed or was aborted (now or \
earlier); 75 the workflow is locked, or the execution of the same key has not finished yet.

Examples:
  leasehold workflows run deploy --key $GITHUB_SHA --input @event.json -- ./deploy.sh
  leasehold workflows run report --on-locked queue=5 -- make report
  leasehold tasks work workflow/deploy -- ./deploy.sh    (runs executions started by others)";

/// Start an execution of a workflow and run it here, with a command
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct RunWorkflowArgs {
    /// Name of the workflow
    #[arg(add = ArgValueCompleter::new(complete::workflows))]
    pub(crate) workflow: WorkflowName,
    /// Idempotency key of the start, such as the id of an event
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// Input of the execution: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) input: Option<PayloadSource>,
    /// If another execution holds the lock: reject, queue, queue=N (at most N in the queue) or skip
    #[arg(long, value_name = "WHAT", default_value = "reject")]
    pub(crate) on_locked: OnLockedArg,
    /// When the key of an earlier execution may be reused
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ReuseArg::Failed)]
    pub(crate) reuse: ReuseArg,
    /// Maximum runtime; afterwards the execution is aborted
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Duration>,
    /// Duration of the lease without a heartbeat; a crash blocks the workflow for at most this long [default: 30s]
    /// [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
    /// Time for the command to finish when leasehold is asked to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// Time between SIGTERM and SIGKILL for the command [default: 5s, or less if the ttl is short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// Containment of the processes of the command [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// List executions, newest first
#[derive(Debug, Args)]
pub(crate) struct ListExecutionsArgs {
    /// Only executions of this workflow
    #[arg(long, value_name = "WORKFLOW", add = ArgValueCompleter::new(complete::workflows))]
    pub(crate) workflow: Option<WorkflowName>,
    /// Only executions in this state: blocked (or queued), pending, running, succeeded, failed or aborted
    #[arg(long, value_name = "STATE", value_parser = values::execution_state)]
    pub(crate) state: Option<TaskState>,
    /// Only executions with this key, including failed ones whose key was reused later
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// Maximum number of executions
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) view: ListView,
}

/// Abort executions, waiting or running
///
/// A waiting execution is aborted at once. A running execution is ended by its worker, which is notified at once, or at its
/// next heartbeat if the store cannot notify it; the workflow is locked until then.
#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    /// Ids of the executions, in full or their first or last characters
    #[arg(value_name = "ID", required = true, add = ArgValueCompleter::new(complete::executions))]
    pub(crate) ids: Vec<ExecutionIdArg>,
    /// Reason, recorded with the execution
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Policy for a workflow that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnLockedArg(pub(crate) OnLocked);

/// Default maximum number of queued executions.
const DEFAULT_QUEUE_LIMIT: u32 = 100;

impl FromStr for OnLockedArg {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let invalid_policy = || {
            ValidationError::other(format!(
                "'{text}' is not a policy: it must be reject, queue, queue=N or skip"
            ))
        };
        Ok(Self(match (text, text.strip_prefix("queue=")) {
            ("reject", _) => OnLocked::Reject,
            ("skip", _) => OnLocked::Skip,
            ("queue", _) => OnLocked::Queue(DEFAULT_QUEUE_LIMIT),
            (_, Some(limit)) => OnLocked::Queue(limit.parse().map_err(|_| invalid_policy())?),
            _ => return Err(invalid_policy()),
        }))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    Set(Box<SetArgs>),
    /// List the schedules with their next ticks
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        view: ListView,
    },
    /// Show a schedule with its next ticks
    Show {
        /// Name of the schedule
        #[arg(add = ArgValueCompleter::new(complete::schedules))]
        name: ScheduleName,
        /// Number of ticks to show
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
        next: u32,
    },
    /// Add a task as a tick would, now; the schedule itself is not changed
    Run {
        /// Name of the schedule
        #[arg(add = ArgValueCompleter::new(complete::schedules))]
        name: ScheduleName,
    },
    /// Pause a schedule: ticks are skipped until it is resumed
    Pause {
        /// Name of the schedule
        #[arg(add = ArgValueCompleter::new(complete::schedules))]
        name: ScheduleName,
    },
    /// Resume a schedule, from the next tick on
    Resume {
        /// Name of the schedule
        #[arg(add = ArgValueCompleter::new(complete::schedules))]
        name: ScheduleName,
    },
    /// Remove a schedule; its tasks stay
    #[command(visible_alias = "rm")]
    Remove {
        /// Name of the schedule
        #[arg(add = ArgValueCompleter::new(complete::schedules))]
        name: ScheduleName,
    },
}

const SCHEDULE_EXAMPLES: &str = "\
Examples:
  leasehold schedules set nightly '0 3 * * *' reports --zone Europe/Berlin
  leasehold schedules set poll '*/30 * * * * *' feeds --payload '{\"feed\": \"news\"}' --missed none
A tick becomes a task while a worker runs: leasehold tasks work reports -- make-report";

/// Set a schedule: one task for each tick of a cron expression, however many workers are running
///
/// A schedule with the same name is replaced. The expression has five fields (minute, hour, day of month, month, day of week), or six
/// with seconds before them, or is one of @hourly, @daily, @weekly, @monthly, @yearly.
#[derive(Debug, Args)]
#[command(after_help = SCHEDULE_EXAMPLES)]
pub(crate) struct SetArgs {
    /// Name of the schedule
    #[arg(add = ArgValueCompleter::new(complete::schedules))]
    pub(crate) name: ScheduleName,
    /// Cron expression
    pub(crate) cron: CronExpression,
    /// Queue of its tasks
    #[arg(add = ArgValueCompleter::new(complete::queues))]
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
    #[arg(long, value_name = "LOCK", add = ArgValueCompleter::new(complete::locks))]
    pub(crate) lock: Option<LockName>,
    /// Longest run time of one attempt at a task; an attempt that runs longer is ended and has failed
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Ttl>,
    #[command(flatten)]
    pub(crate) retry: RetryOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_may_have_a_limit() {
        let parsed = |text: &str| text.parse::<OnLockedArg>().map(|locked| locked.0);
        assert_eq!(parsed("queue"), Ok(OnLocked::Queue(100)));
        assert_eq!(parsed("queue=3"), Ok(OnLocked::Queue(3)));
        assert_eq!((parsed("reject"), parsed("skip")), (Ok(OnLocked::Reject), Ok(OnLocked::Skip)));
        for invalid in ["", "queue=", "queue=-1", "queue=x", "wait"] {
            assert!(parsed(invalid).is_err(), "{invalid}");
        }
    }
}
