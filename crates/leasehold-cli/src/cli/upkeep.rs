//! `leasehold sweep`, `fence`, `store` and `completions`.

use clap::{Args, Subcommand};
use leasehold::model::{LockName, Token, Ttl};

use super::values;

/// Clear away leases and tickets that have ended, and serve those who wait for them
///
/// Nothing depends on it: whoever wants a lock clears it first. It keeps lists and history tidy.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// At most so many locks
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// Also forget idle locks: not held, not waited for, and not granted for this long
    ///
    /// Tokens rise all the same when such a lock is used again. Servers and sweepers do this after a day. On PostgreSQL a lock is
    /// forgotten by the second of two calls that are a minute apart.
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) forget_after: Option<Ttl>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    Check(FenceArgs),
}

/// Tell whether the lease with this token is alive: exit code 0 if it is, 1 if not
#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// The lock
    pub(crate) name: LockName,
    /// The token that was granted
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(crate) token: Token,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Make the store ready to be used: create what is not there yet
    ///
    /// Only DynamoDB needs it: a table costs money, and is made by this command alone. The other stores also make what
    /// they need when they are first opened. Nothing happens to a store that is ready.
    Init,
}

/// Write completions for a shell to stdout
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}
