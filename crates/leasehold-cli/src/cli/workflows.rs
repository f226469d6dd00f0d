//! `leasehold workflows …` and `executions …`.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use leasehold::OnLocked;
use leasehold::model::{ExecutionId, Reason, Reuse, TaskKey, TaskState, Ttl, ValidationError, WorkflowName};

use super::tasks::Source;
use super::values;
use crate::run::Contain;

#[derive(Debug, Subcommand)]
pub(crate) enum WorkflowsCommand {
    /// List the workflows that were ever started, with the counts of their executions
    List,
    Run(Box<RunWorkflowArgs>),
    /// Show who has a workflow's lock, and whether it is at work
    Status {
        /// The workflow
        workflow: WorkflowName,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExecutionsCommand {
    List(ListExecutionsArgs),
    /// Show everything about an execution
    Show {
        /// The execution
        id: ExecutionId,
    },
    Abort(AbortArgs),
}

const ABOUT: &str = "\
Start an execution of a workflow and run it here, with a command

Nothing is run if the key has started one before, unless that one failed, or if another execution of the workflow is in the \
way. The input is on the command's stdin, and LEASEHOLD_WORKFLOW, LEASEHOLD_EXECUTION_ID, LEASEHOLD_TOKEN, LEASEHOLD_ATTEMPT, \
LEASEHOLD_STORE and, with --key, LEASEHOLD_KEY are in its environment. The command runs as that of leasehold tasks work: it \
and all its children are dead before the lease can end.

One that waits for its turn stays in line if leasehold is killed before it comes; leasehold executions abort takes it out.";

const EXAMPLES: &str = "\
Exit codes: 0 it succeeded, also earlier under the same key, or it was skipped; 1 it failed or was aborted, also earlier;
75 the workflow is locked, or the execution of the same key is not over yet.

Examples:
  leasehold workflows run deploy --key $GITHUB_SHA --input @event.json -- ./deploy.sh
  leasehold workflows run report --on-locked queue=5 -- make report
  leasehold tasks work workflow/deploy -- ./deploy.sh    (runs whatever others have started)";

/// Start an execution of a workflow and run it here, with a command
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXAMPLES)]
pub(crate) struct RunWorkflowArgs {
    /// The workflow
    pub(crate) workflow: WorkflowName,
    /// What makes it the same start when it comes again, such as the id of an event
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// What it is started with: JSON, @FILE, or - for stdin [default: null]
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) input: Option<Source>,
    /// If another execution is in the way: reject, queue, queue=N (if no more than N wait then) or skip
    #[arg(long, value_name = "WHAT", default_value = "reject")]
    pub(crate) on_locked: Locked,
    /// When the key of an earlier execution may be used anew
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Again::Failed)]
    pub(crate) reuse: Again,
    /// It is stopped when it has run for so long
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Duration>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// How long its lease lasts without a heartbeat; a crash of this machine costs so long [default: 30s]
    /// [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
    /// When this is asked to end: how long the command may go on
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// How long the command has between SIGTERM and SIGKILL [default: 5s, or less if the ttl is short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// What keeps the processes of the command together [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// List executions, the newest first
#[derive(Debug, Args)]
pub(crate) struct ListExecutionsArgs {
    /// Only those of this workflow
    #[arg(long, value_name = "WORKFLOW")]
    pub(crate) workflow: Option<WorkflowName>,
    /// Only those in this state: blocked (or queued), pending, running, succeeded, failed or aborted
    #[arg(long, value_name = "STATE", value_parser = values::execution_state)]
    pub(crate) state: Option<TaskState>,
    /// Only those that were started with this key, also the failed ones whose key a later one has used again
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<TaskKey>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Stop executions, whether they wait or run
///
/// Those that wait are stopped at once. One that runs is ended by its worker, which learns it at once, or with its next heartbeat
/// if the store cannot notify it; its workflow is locked until then.
#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    /// The executions
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<ExecutionId>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// What to do if another execution is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Locked(pub(crate) OnLocked);

/// So many wait at most, if nobody says otherwise.
const PLACES: u32 = 100;

impl FromStr for Locked {
    type Err = ValidationError;
    fn from_str(text: &str) -> Result<Self, ValidationError> {
        let wrong = || {
            ValidationError(format!("'{text}' is not a policy: it must be reject, queue, queue=N or skip"))
        };
        Ok(Self(match (text, text.strip_prefix("queue=")) {
            ("reject", _) => OnLocked::Reject,
            ("skip", _) => OnLocked::Skip,
            ("queue", _) => OnLocked::Queue(PLACES),
            (_, Some(places)) => OnLocked::Queue(places.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }))
    }
}

/// When a key may be used anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Again {
    /// Never
    Never,
    /// When the earlier execution has failed
    Failed,
    /// When the earlier execution is over
    Finished,
}

impl From<Again> for Reuse {
    fn from(again: Again) -> Self {
        match again {
            Again::Never => Self::Never,
            Again::Failed => Self::Failed,
            Again::Finished => Self::Finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_have_a_length() {
        let parsed = |text: &str| text.parse::<Locked>().map(|locked| locked.0);
        assert_eq!(parsed("queue"), Ok(OnLocked::Queue(100)));
        assert_eq!(parsed("queue=3"), Ok(OnLocked::Queue(3)));
        assert_eq!((parsed("reject"), parsed("skip")), (Ok(OnLocked::Reject), Ok(OnLocked::Skip)));
        for nonsense in ["", "queue=", "queue=-1", "queue=x", "wait"] {
            assert!(parsed(nonsense).is_err(), "{nonsense}");
        }
    }
}
