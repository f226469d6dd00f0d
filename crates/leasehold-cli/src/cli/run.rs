//! `leasehold run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::model::{LockName, Ttl};

use super::lock_options::LockOptions;
use super::values;
use crate::run::Contain;

const ABOUT: &str = "\
Run a command while holding a lock

The command runs without a shell, in its own process group. The command and all its descendants are dead before the \
lease can end, whether the store responds or not. Its environment \
contains LEASEHOLD_LOCK, LEASEHOLD_TOKEN, LEASEHOLD_LEASE_ID, LEASEHOLD_HOLDER and LEASEHOLD_STORE. The user, the host and \
the name of the program (without its arguments) are stored with the lease and shown with the lock.";

const EXIT: &str = "\
Exit code: that of the command (128+N if signal N killed it), or 75 lock not acquired, 79 lease lost, 124 --max-runtime \
reached, 126 command not runnable, 127 command not found.";

/// Run a command while holding a lock
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_help = EXIT)]
pub(crate) struct RunArgs {
    /// Name of the lock
    pub(crate) lock: LockName,
    #[command(flatten)]
    pub(crate) options: LockOptions,
    /// Fraction of the ttl after which the lease is renewed, 0.05 to 0.9
    #[arg(long, value_name = "PART", default_value = "0.33", value_parser = values::fraction)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) renew_at: f64,
    /// Time between SIGTERM and SIGKILL for the command when the lease is lost [default: 5s, or less if the ttl is short]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// Maximum runtime; afterwards the command is ended with SIGTERM, then SIGKILL [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Ttl>,
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// Containment of the processes of the command [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Minimum time to hold the lock, counted from the start, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Ttl>,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
