//! How a lock is asked for: the options that `run` and `locks acquire` share.

use clap::Args;
use leasehold::model::{Holder, LockName, Mode, Priority, Reason, Slots, Ttl};

use leasehold::store::Capabilities;

use super::values;
use crate::config::lease_ttl;
use crate::exit;
use crate::output::Failure;
use crate::run::Patience;

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    #[expect(clippy::doc_markdown, reason = "this is the help text")]
    /// How long the lease lasts unless it is renewed; a crash keeps others out this long at most [default: 30s]
    /// [env: LEASEHOLD_TTL]
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    ttl: Option<Ttl>,
    /// How long to wait in the fair queue: 0 for not at all, 10m, or forever
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = values::patience)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) wait: Patience,
    /// Share the lock with others that share it; an exclusive holder keeps all of them out
    #[arg(long, conflicts_with = "slots")]
    shared: bool,
    /// Let up to N hold the lock at once
    #[arg(long, value_name = "N", value_parser = values::slots)]
    slots: Option<Slots>,
    /// Weight in the queue, -1000 to 1000: each step counts as having come 30 s earlier
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<Priority>,
    /// Also take a lease that has not been renewed for so long, although its ttl still runs
    #[arg(long, value_name = "DURATION", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) steal_stale: Option<Ttl>,
    /// Exit with this code instead of 75 when the lock cannot be had; with 0, say nothing either
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::NOT_ACQUIRED, hide_default_value = true)]
    #[arg(value_parser = values::exit_code, allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: i32,
    /// Why, for people who look at the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<Reason>,
    /// Who holds it [default: user@host:pid]
    #[arg(long, value_name = "ID")]
    pub(crate) holder: Option<Holder>,
    /// A fact for people who look at the lock; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::fact)]
    pub(crate) meta: Vec<(String, String)>,
    /// Another lock to take, all or none; may be given again
    #[arg(long, value_name = "LOCK")]
    pub(crate) with: Vec<LockName>,
}

impl AskArgs {
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
