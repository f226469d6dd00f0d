//! Sweep, pruning of the history, and purging of idle locks.

use tokio_postgres::types::Type;

use super::reads::Desk;
use super::rows::{name, token};
use super::session::Session;
use super::sql::{FLOOR, Sql};
use super::trouble::Fail;
use crate::error::Result;
use crate::model::{LockName, Token, Ttl};

/// Maximum age of an event.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);
/// Number of locks that one pass of purging examines.
const LOOKED_AT: i64 = 2_000;
/// Minimum interval between two increases of the floor, by any process.
const FLOOR_RISES: Ttl = Ttl::from_secs(60);
/// Minimum time between an increase of the floor and purging locks below it: a statement that began
/// before the increase has ended by then.
const FLOOR_SETTLES: Ttl = Ttl::from_secs(15);

impl Desk {
    /// Returns at most `limit` locks with expired state; before that, corrects rows whose `wake_at`
    /// was too early.
    pub(super) async fn find_ended(&self, limit: u32, now: Option<i64>) -> Result<Vec<LockName>> {
        let limit = i64::from(limit);
        self.ask(Sql::Trim, &[&limit, &now]).await?;
        let rows = self.ask(Sql::Due, &[&limit, &now]).await?;
        rows.iter().map(|row| self.readable(name(row, 0))).collect()
    }

    /// Prunes the history.
    pub(super) async fn prune(&self, keep: u32, now: Option<i64>) -> Result<()> {
        let age = i64::try_from(MAX_AGE.as_micros()).unwrap_or(i64::MAX);
        self.ask(Sql::Prune, &[&i64::from(keep), &age, &now]).await.map(drop)
    }

    /// Purges idle locks below the floor among the next ones by name, then raises the floor for the
    /// next pass.
    pub(super) async fn forget(&self, idle: Ttl, limit: u32, now: Option<i64>) -> Result<u32> {
        let idle = i64::try_from(idle.as_micros()).unwrap_or(i64::MAX);
        let mut after = self.forget_after.lock().await;
        let limit = i64::from(limit);
        let rows = self.ask(Sql::Forget, &[&*after, &LOOKED_AT, &limit, &idle, &now]).await?;
        let (mut forgotten, mut last) = (0, None);
        if let Some(row) = rows.first() {
            let read = || -> Result<(i64, i64, Option<String>), Fail> {
                Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
            };
            let (gone, looked_at, name) = self.readable(read())?;
            (forgotten, last) = (gone, name.filter(|_| looked_at == LOOKED_AT));
        }
        *after = last.unwrap_or_default();
        self.ask(Sql::RaiseFloor, &[&idle, &now]).await?;
        Ok(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

/// Returns the current floor.
pub(super) async fn floor_of(session: &Session) -> Result<Token, Fail> {
    let rows = session.query(Sql::Floor, &[]).await?;
    rows.first().map_or(Ok(Token::default()), |row| token(row, 0))
}

// --- statements -----------------------------------------------------------------------------------

pub(super) fn floor() -> (String, Vec<Type>) {
    (format!("SELECT {FLOOR}"), Vec::new())
}

/// Raises the floor above the tokens of all locks that were not granted for `$1` µs. The floor
/// never decreases.
pub(super) fn raise_floor() -> (String, Vec<Type>) {
    let sql = format!(
        "UPDATE $s.meta m SET value = CASE m.key WHEN 'token_floor' THEN greatest(m.value::bigint, n.now - $1)::text
                                  ELSE greatest(m.value::bigint, n.now)::text END
        FROM (SELECT $NOW AS now) n
        WHERE m.key IN ('token_floor', 'token_floor_at') AND n.now - $1 > {FLOOR}
          AND (SELECT at.value::bigint FROM $s.meta at WHERE at.key = 'token_floor_at') + {rises} <= n.now",
        rises = FLOOR_RISES.as_micros(),
    );
    (sql, vec![Type::INT8])
}

/// Deletes at most `$3` idle locks among the `$2` that follow `$1` by name: free ones, below the
/// floor, and not granted for `$4` µs.
///
/// A statement that creates a lock reads the floor from its snapshot. If it finds the lock, waits
/// for this statement to delete it, and then creates it again, the floor that it has read must be
/// at least the one below which this statement deletes. So the floor must have risen before that
/// statement began, which is certain after the maximum duration of a statement. Rows that are in
/// use are skipped: this statement waits for no row.
pub(super) fn forget() -> (String, Vec<Type>) {
    let sql = format!(
        "WITH page AS MATERIALIZED (SELECT k.name FROM $s.locks k WHERE k.name > $1 ORDER BY k.name LIMIT $2),
        idle AS MATERIALIZED (
            SELECT k.name FROM $s.locks k, (SELECT $NOW AS now) n
            WHERE k.name IN (SELECT p.name FROM page p) AND (k.held = false OR k.version = 0) AND k.token <= {FLOOR}
              AND k.token <= n.now - $4
              AND (SELECT at.value::bigint FROM $s.meta at WHERE at.key = 'token_floor_at') + {settles} <= n.now
            ORDER BY k.name LIMIT $3 FOR UPDATE OF k SKIP LOCKED),
        gone AS (DELETE FROM $s.locks l USING idle i WHERE l.name = i.name RETURNING l.name)
        SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM page), (SELECT max(p.name) FROM page p)",
        settles = FLOOR_SETTLES.as_micros(),
    );
    (sql, vec![Type::TEXT, Type::INT8, Type::INT8, Type::INT8])
}
