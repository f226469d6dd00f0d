//! `leasehold history` and `leasehold watch`.

use clap::Args;
use leasehold::model::LockName;

use super::values;

/// Show what happened to a lock, or to all, newest last
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The lock; all if not given
    pub(crate) name: Option<LockName>,
    /// The newest so many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) limit: u32,
}

/// Follow what happens from now on, one line per event
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The lock; all if not given
    pub(crate) name: Option<LockName>,
    /// Only locks whose name begins with this
    #[arg(long, value_name = "TEXT", conflicts_with = "name")]
    pub(crate) prefix: Option<String>,
}
