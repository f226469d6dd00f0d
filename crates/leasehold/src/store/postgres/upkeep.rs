//! The sweep, and bounding the history.

use super::reads::Desk;
use super::rows::name;
use super::sql::Sql;
use crate::error::Result;
use crate::model::{LockName, Ttl};

/// No event is kept for longer than this.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);

impl Desk {
    /// The locks that have something to clear away, up to `limit`; on the way, the rows whose `wake_at` came too early get
    /// the right one.
    pub(super) async fn find_ended(&self, limit: u32, now: Option<i64>) -> Result<Vec<LockName>> {
        let limit = i64::from(limit);
        self.ask(Sql::Trim, &[&limit, &now]).await?;
        let rows = self.ask(Sql::Due, &[&limit, &now]).await?;
        rows.iter().map(|row| self.readable(name(row, 0))).collect()
    }

    /// Bounds the history.
    pub(super) async fn prune(&self, keep: u32, now: Option<i64>) -> Result<()> {
        let age = i64::try_from(MAX_AGE.as_micros()).unwrap_or(i64::MAX);
        self.ask(Sql::Prune, &[&i64::from(keep), &age, &now]).await.map(drop)
    }
}
