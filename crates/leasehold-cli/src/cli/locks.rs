//! `leasehold run`, `locks …`, and the options of a lock request that they share.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use leasehold::model::{Holder, LeaseId, LockName, Mode, Priority, Reason, Slots, Token, Ttl};
use leasehold::store::Capabilities;

use super::values::{self, ListView, LockFilter, WaitFor};
use crate::complete;
use crate::config::lease_ttl;
use crate::exit;
use crate::output::Failure;
use crate::run::{Contain, WaitTimeout};

const DEADLOCKS_EXIT: &str = "Exit code: 0 if there is no deadlock, 80 if there is one.";

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    #[command(visible_alias = "ls")]
    List(ListArgs),
    #[command(visible_alias = "show")]
    Status(StatusArgs),
    /// Explain who holds a lock, who waits for it, and what would free it
    Why {
        /// Name of the lock
        #[arg(add = ArgValueCompleter::new(complete::locks))]
        name: LockName,
    },
    /// Find deadlocks: holders that wait for each other
    #[command(after_help = DEADLOCKS_EXIT)]
    Deadlocks,
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
    #[command(flatten)]
    pub(crate) view: ListView,
}

/// Show the holders and the queue of a lock
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Name of the lock
    #[arg(add = ArgValueCompleter::new(complete::locks))]
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
    #[arg(add = ArgValueCompleter::new(complete::locks))]
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
    #[arg(add = ArgValueCompleter::new(complete::locks))]
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
    #[arg(add = ArgValueCompleter::new(complete::locks))]
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
    #[arg(add = ArgValueCompleter::new(complete::locks))]
    pub(crate) name: LockName,
    /// Reason, shown to the holders
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
}

/// Wait until a lock is free, or held, without acquiring it
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Name of the lock
    #[arg(add = ArgValueCompleter::new(complete::locks))]
    pub(crate) name: LockName,
    /// State to wait for
    #[arg(long = "for", value_name = "STATE")]
    pub(crate) target: WaitFor,
    /// Exit with code 75 after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct LockOptions {
    /// Duration of the lease; a crash blocks other holders for at most this long [default: 30s]
    /// [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    ttl: Option<Ttl>,
    /// Maximum time to wait in the queue: 0 (do not wait), seconds, a duration such as 10m, or forever
    #[arg(short, long, value_name = "DURATION", default_value = "0", value_parser = values::wait_timeout)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) wait: WaitTimeout,
    /// Do not wait: fail at once if the lock is held; this is the default
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Acquire the lock in shared mode: compatible with other shared holders, not with an exclusive one
    #[arg(short, long, conflicts_with = "slots")]
    shared: bool,
    /// Allow up to N concurrent holders
    #[arg(long, value_name = "N", value_parser = values::slots)]
    slots: Option<Slots>,
    /// Priority in the queue, -1000 to 1000: each step counts like 30 s of waiting
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<Priority>,
    /// Also take over a lease that has not been renewed for this long, even if it has not expired
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) steal_stale: Option<Ttl>,
    /// Exit code if the lock is not acquired, instead of 75; with 0 no message is printed
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::NOT_ACQUIRED, hide_default_value = true)]
    #[arg(value_parser = values::exit_code, allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: i32,
    /// Reason, shown with the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
    /// Name of the holder [default: user@host:pid]
    #[arg(long, value_name = "ID")]
    pub(crate) holder: Option<Holder>,
    /// Metadata, shown with the lock; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::key_value)]
    pub(crate) meta: Vec<(String, String)>,
    /// Another lock to acquire, all or none; repeatable
    #[arg(long, value_name = "LOCK", add = ArgValueCompleter::new(complete::locks))]
    pub(crate) with: Vec<LockName>,
    /// Do not wait if the wait would never end because holders wait for each other: exit with code 80
    #[arg(long)]
    pub(crate) check_deadlock: bool,
}

impl LockOptions {
    pub(crate) fn ttl(&self) -> Result<Ttl, Failure> {
        Ok(lease_ttl(self.ttl)?.unwrap_or(Capabilities::TTL))
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.shared { Mode::Shared } else { Mode::Exclusive }
    }

    pub(crate) fn slots(&self) -> Slots {
        self.slots.unwrap_or_default()
    }

    pub(crate) fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }
}

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
    #[arg(add = ArgValueCompleter::new(complete::locks))]
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
    /// Containment of the processes of the command [default: auto] [env: LEASEHOLD_CONTAIN]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) contain: Option<Contain>,
    /// Minimum time to hold the lock, counted from the start, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Ttl>,
    /// Command and its arguments; -- before it is optional
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
