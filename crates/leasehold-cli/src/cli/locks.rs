//! `leasehold locks …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use leasehold::model::{LeaseId, LockName, Reason, Token, Ttl};

use super::lock_options::LockOptions;
use super::values::{self, LockFilter, WaitFor};

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    List(ListArgs),
    Status(StatusArgs),
    /// Explain who holds a lock, who waits for it, and what would free it
    Why {
        /// Name of the lock
        name: LockName,
    },
    Acquire(Box<AcquireArgs>),
    Renew(RenewArgs),
    Release(ReleaseArgs),
    Ask(AskStopArgs),
    Wait(WaitArgs),
}

/// List the locks that have holders or waiters
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only locks with this status: status=active|releasing|released|held|free|waited|stale
    #[arg(long, value_name = "status=STATUS", conflicts_with_all = ["stale", "all"])]
    pub(crate) filter: Option<LockFilter>,
    /// Only locks whose name starts with this
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// Only locks whose lease has expired or whose process has exited: same as --filter status=stale
    #[arg(long, conflicts_with = "all")]
    pub(crate) stale: bool,
    /// Also free locks: every lock that was ever held
    #[arg(long)]
    pub(crate) all: bool,
    /// Maximum number of locks
    #[arg(long, value_name = "N", value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: Option<u32>,
}

/// Show the holders and the queue of a lock
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// Exit with 75 if the lock is held, with 0 if it is free
    #[arg(long)]
    pub(crate) exit_code: bool,
}

/// Acquire a lock and leave it held, without a process
///
/// Prints the lease id and the token, which are needed to renew and release the lease. The lease expires after its ttl.
/// To run a command under the lock use leasehold run instead: it renews the lease and releases it in every case.
#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) options: LockOptions,
    /// Id for the lease (a UUID): a repeated request with the same id returns the same lease and token
    #[arg(long, value_name = "UUID", conflicts_with = "with")]
    pub(crate) lease_id: Option<LeaseId>,
    /// If the holder named by --holder already has the lock, return its lease instead of a conflict. All processes with
    /// this holder name then share one lease, and each of them can release it: use --lease-id if two may run concurrently
    #[arg(long, requires = "holder", conflicts_with_all = ["with", "lease_id"])]
    pub(crate) reentrant: bool,
}

/// Renew a lease for its ttl, counted from now
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// Id of the lease, as printed by acquire
    #[arg(long, value_name = "ID")]
    pub(crate) lease_id: LeaseId,
    /// Token of the lease, as printed by acquire
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    pub(crate) token: Token,
    /// New duration of the lease [default: unchanged]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
}

/// Release a lease, or with --force take the lock from its holder
///
/// A holder whose lock is taken by force may still be working; its token is stale from then on. Without --token, the
/// current holder is selected; if the holder changes before the lock is taken, nothing happens.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// Id of the lease, as printed by acquire
    #[arg(long, value_name = "ID", required_unless_present = "force", conflicts_with = "force")]
    pub(crate) lease_id: Option<LeaseId>,
    /// Token of the lease, as printed by acquire; with --force the token of the holder
    #[arg(long, value_name = "TOKEN", required_unless_present = "force", allow_hyphen_values = true)]
    pub(crate) token: Option<Token>,
    /// Take the lock from its holder immediately
    #[arg(long, requires = "reason")]
    pub(crate) force: bool,
    /// Reason, recorded in the history
    #[arg(long, value_name = "TEXT", requires = "force")]
    pub(crate) reason: Option<Reason>,
    /// Do not ask for confirmation
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
}

/// Ask the holders to release the lock; each is notified at once, or at its next renewal at the latest
#[derive(Debug, Args)]
pub(crate) struct AskStopArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// Reason, shown to the holders
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Wait until a lock is free, or held, without acquiring it
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Name of the lock
    pub(crate) name: LockName,
    /// State to wait for
    #[arg(long = "for", value_name = "STATE")]
    pub(crate) target: WaitFor,
    /// Exit with code 75 after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}
