//! `leasehold sweep`, `fence`, `store` and `completions`.

use clap::{Args, Subcommand};
use leasehold::model::{LockName, Token, Ttl};

use super::values;

/// Remove expired leases and tickets, and grant their locks to waiters
///
/// Not required for correctness: every acquire does this for its lock first. A sweep cleans up lists and history.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Maximum number of locks
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
    /// Also delete idle locks: without holders and waiters, and not granted for this long
    ///
    /// Tokens still increase when such a lock is used again. Servers and sweepers do this after a day. On PostgreSQL a lock is
    /// deleted by the second of two calls that are a minute apart.
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) forget_after: Option<Ttl>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    Check(FenceArgs),
}

/// Check whether the lease with this token is valid: exit code 0 if it is, 1 if not
#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// Token to check
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(crate) token: Token,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Prepare the store: create tables and files that do not exist yet
    ///
    /// Only DynamoDB requires it: a table costs money, so only this command creates it. Other stores create what they need
    /// when they are first opened. A store that is ready is not changed.
    Init,
}

/// Print completions for a shell
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    pub(crate) shell: clap_complete::Shell,
}
