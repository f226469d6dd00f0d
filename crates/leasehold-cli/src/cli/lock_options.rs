//! Options of a lock request, shared by `run` and `locks acquire`.

use clap::Args;
use leasehold::model::{Holder, LockName, Mode, Priority, Reason, Slots, Ttl};
use leasehold::store::Capabilities;

use super::values;
use crate::config::lease_ttl;
use crate::exit;
use crate::output::Failure;
use crate::run::WaitTimeout;

#[derive(Debug, Args)]
pub(crate) struct LockOptions {
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// Duration of the lease; a crash blocks other holders for at most this long [default: 30s]
    /// [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    ttl: Option<Ttl>,
    /// Maximum time to wait in the queue: 0 (do not wait), a duration such as 10m, or forever
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = values::wait_timeout)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) wait: WaitTimeout,
    /// Acquire the lock in shared mode: compatible with other shared holders, not with an exclusive one
    #[arg(long, conflicts_with = "slots")]
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
    #[arg(long, value_name = "LOCK")]
    pub(crate) with: Vec<LockName>,
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
