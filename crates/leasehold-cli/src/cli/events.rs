//! `leasehold history` and `leasehold watch`.

use clap::Args;
use leasehold::model::LockName;

use super::values;

/// Show past events of a lock, or of all locks, newest last
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Name of the lock [default: all]
    pub(crate) name: Option<LockName>,
    /// Maximum number of events; the newest ones are shown
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Print new events as they happen, one line per event
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Name of the lock [default: all]
    pub(crate) name: Option<LockName>,
    /// Only locks whose name starts with this
    #[arg(long, value_name = "TEXT", conflicts_with = "name")]
    pub(crate) prefix: Option<String>,
}
