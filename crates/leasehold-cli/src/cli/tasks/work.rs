//! `leasehold tasks work`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::model::{QueueName, Ttl};

use crate::cli::values;
use crate::run::Contain;

const ABOUT: &str = "\
Work on the tasks of a queue with a command

For each task the command runs once, without a shell: the payload is on its stdin, and LEASEHOLD_TASK, LEASEHOLD_QUEUE, \
LEASEHOLD_TOKEN, LEASEHOLD_ATTEMPT, LEASEHOLD_STORE and, where the task has them, LEASEHOLD_KEY, LEASEHOLD_LOCK and \
LEASEHOLD_LOCK_TOKEN are in its environment. What it writes to stdout is passed on and kept as the result: as it is if it \
is JSON, else as a text. The last lines on stderr are kept as the error.

It and all its children are dead before the lease on the task can end, whether the store answers or not, and also if \
leasehold itself is killed. SIGINT and SIGTERM end the worker when its tasks are done, or at the end of --grace; a second \
one ends it at once. What it could not finish is given back.";

const EXIT: &str = "\
The exit code of the command decides:
  0         succeeded
  75        not now: put off for the task's backoff, which counts as no attempt
  65, 78    failed for good
  others    this attempt failed; the next one follows if attempts are left

Examples:
  leasehold tasks work video --slots 4 -- ./encode.sh
  leasehold tasks work mail letters --until-empty -- python3 send.py";

/// Work on the tasks of a queue with a command
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXIT)]
pub(crate) struct WorkArgs {
    /// The queues to take tasks from: all are one line, by priority and arrival
    #[arg(value_name = "QUEUE", required = true)]
    pub(crate) queues: Vec<QueueName>,
    /// Run so many at once, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::work_slots, allow_hyphen_values = true)]
    pub(crate) slots: u32,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// How long a lease on a task lasts without a heartbeat; a crash of this machine costs so long
    /// [default: 30s, or longer if the store wants so] [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
    /// When the worker is asked to end: how long the commands that run may go on
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// How long a command has between SIGTERM and SIGKILL [default: 5s, or less if the ttl is short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// End a command that has run for this long; the attempt failed, and the next one follows if attempts are left
    /// [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Ttl>,
    /// How often this worker looks for leases of workers that are gone, 10ms to 1d [default: a third of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) recover_every: Option<Duration>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// What keeps the processes of a command together [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// End after one task
    #[arg(long, conflicts_with_all = ["until_empty", "slots"])]
    pub(crate) once: bool,
    /// End when nothing is left that could run now
    #[arg(long)]
    pub(crate) until_empty: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// From within a command of tasks work: tell how far its task has come
///
/// Others see it within about a second, with leasehold tasks list and show.
#[derive(Debug, Args)]
#[command(after_help = "Example: leasehold tasks progress --done 40 --of 100 --note 'second pass'")]
pub(crate) struct ProgressArgs {
    /// So much is done
    #[arg(long, value_name = "N")]
    pub(crate) done: u64,
    /// Of so much, if that is known
    #[arg(long, value_name = "M")]
    pub(crate) of: Option<u64>,
    /// What is being done
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}
