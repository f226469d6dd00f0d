//! `leasehold locks …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use leasehold::model::{LeaseId, LockName, Reason, Token, Ttl};

use super::ask::AskArgs;
use super::values::{self, Filter, Target};

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    List(ListArgs),
    Status(StatusArgs),
    /// Explain who holds a lock, who waits, and what would free it
    Why {
        /// The lock
        name: LockName,
    },
    Acquire(Box<AcquireArgs>),
    Renew(RenewArgs),
    Release(ReleaseArgs),
    Ask(AskStopArgs),
    Wait(WaitArgs),
}

/// List the locks that are held or waited for
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those: status=active|releasing|released|held|free|waited|stale
    #[arg(long, value_name = "status=STATUS", conflicts_with_all = ["stale", "all"])]
    pub(crate) filter: Option<Filter>,
    /// Only names that begin with this
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Only those whose holder's time is over or whose process is gone: the same as --filter status=stale
    #[arg(long, conflicts_with = "all")]
    pub(crate) stale: bool,
    /// Also those that are free: every lock that was ever held
    #[arg(long)]
    pub(crate) all: bool,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: Option<u32>,
}

/// Show one lock: its holders and its queue
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The lock
    pub(crate) name: LockName,
    /// Exit with 75 if it is held, with 0 if it is free
    #[arg(long)]
    pub(crate) exit_code: bool,
}

/// Take a lock and leave it held, without a process
///
/// Prints the lease id and the token, with which the lease is renewed and released. It ends by itself when its ttl is
/// over. Where a command can be given, leasehold run is the better choice: it renews, and releases whatever happens.
#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// The lock
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Name the lease with a UUID of your own: asking again with the same one returns the same lease and token
    #[arg(long, value_name = "UUID", conflicts_with = "with")]
    pub(crate) lease_id: Option<LeaseId>,
    /// If the holder that --holder names has the lock already, return its lease instead of a conflict. Every process that
    /// uses this name then shares one lease, and each of them can release it: use --lease-id if two could run at once
    #[arg(long, requires = "holder", conflicts_with_all = ["with", "lease_id"])]
    pub(crate) reentrant: bool,
}

/// Renew a lease, from now on for its ttl
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The lock
    pub(crate) name: LockName,
    /// The lease, as printed by acquire
    #[arg(long, value_name = "ID")]
    pub(crate) lease_id: LeaseId,
    /// Its token, as printed by acquire
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(crate) token: Token,
    /// From now on let it last so long [default: as before]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
}

/// Give a lease back, or with --force take it from its holder
///
/// A holder whose lock is taken by force may still be at work; its token is old from then on. Without --token, the
/// holder that is seen now is meant; if the lock moves on before it is taken, nothing happens.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The lock
    pub(crate) name: LockName,
    /// The lease, as printed by acquire
    #[arg(long, value_name = "ID", required_unless_present = "force", conflicts_with = "force")]
    pub(crate) lease_id: Option<LeaseId>,
    /// Its token, as printed by acquire; with --force, the token that was seen
    #[arg(long, value_name = "TOKEN", required_unless_present = "force", allow_hyphen_values = true)]
    pub(crate) token: Option<Token>,
    /// Take it from its holder, now
    #[arg(long, requires = "reason")]
    pub(crate) force: bool,
    /// Why it is taken: kept in the history
    #[arg(long, value_name = "TEXT", requires = "force")]
    pub(crate) reason: Option<Reason>,
    /// Do not ask
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
}

/// Ask the holders to stop when they can; they are notified at once, or at their next renewal at the latest
#[derive(Debug, Args)]
pub(crate) struct AskStopArgs {
    /// The lock
    pub(crate) name: LockName,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Wait until a lock is free, or held, without taking it
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The lock
    pub(crate) name: LockName,
    /// What to wait for
    #[arg(long = "for", value_name = "STATE")]
    pub(crate) target: Target,
    /// Give up after so long, with exit code 75 [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}
