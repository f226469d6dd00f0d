//! `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::model::{LockName, Ttl};

use super::ask::AskArgs;
use super::values;
use crate::run::Contain;

const ABOUT: &str = "\
Run a command while holding a lock

The command runs without a shell, in a process group of its own. It and all its children are dead before the lease can \
end, whether the store answers or not. It finds LEASEHOLD_LOCK, LEASEHOLD_TOKEN, LEASEHOLD_LEASE_ID, LEASEHOLD_HOLDER \
and LEASEHOLD_STORE in its environment. Who runs it and the program's name, without its arguments, are stored with the \
lease, for those who ask why the lock is held.";

const EXIT: &str = "\
Exit code: that of the command (128+N if signal N ended it), or 75 lock not acquired, 79 lease lost, 124 ended after \
--max-runtime, 126 command not runnable, 127 command not found.";

/// Run a command while holding a lock
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXIT)]
pub(crate) struct RunArgs {
    /// The lock to hold
    pub(crate) lock: LockName,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// After which part of the ttl to renew, 0.05 to 0.9
    #[arg(long, value_name = "PART", default_value = "0.33", value_parser = values::part)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) renew_at: f64,
    /// How long the command has between SIGTERM and SIGKILL when the lease is lost [default: 5s, or less if the ttl is
    /// short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// End the command when it has run for this long, as at the loss of the lease: SIGTERM, then SIGKILL [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Ttl>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// What keeps the processes of the command together [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Keep others out until so long after the start, even if the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Ttl>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
