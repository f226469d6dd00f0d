//! The sweep, bounding the history, and forgetting idle locks.

use tokio_postgres::types::Type;

use super::reads::Desk;
use super::rows::{name, token};
use super::session::Session;
use super::sql::{FLOOR, Sql};
use super::trouble::Fail;
use crate::error::Result;
use crate::model::{LockName, Token, Ttl};

/// No event is kept for longer than this.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);
/// Locks that one pass of forgetting examines.
const LOOKED_AT: i64 = 2_000;
/// Shortest interval between two rises of the floor, by any process…
const FLOOR_RISES: Ttl = Ttl::from_secs(60);
/// …and locks below it go no sooner than this after that: a statement that began before it rose is over by then.
const FLOOR_SETTLES: Ttl = Ttl::from_secs(15);

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

    /// Forgets idle locks among the next ones by name that are below the floor, then raises the floor for the next pass.
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

/// The floor as it is.
pub(super) async fn floor_of(session: &Session) -> Result<Token, Fail> {
    let rows = session.query(Sql::Floor, &[]).await?;
    rows.first().map_or(Ok(Token::default()), |row| token(row, 0))
}

// --- the statements --------------------------------------------------------------------------------------------------

pub(super) fn floor() -> (String, Vec<Type>) {
    (format!("SELECT {FLOOR}"), Vec::new())
}

/// Raises the floor above the tokens of all locks that were not granted for `$1` µs. It does not fall.
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

/// Removes idle locks among the `$2` that follow `$1` by name, `$3` at most: free ones, below the floor, and not granted for
/// `$4` µs.
///
/// A statement that makes a lock reads the floor as of when it began. If it finds the lock, waits for this one to remove it,
/// and then makes it again, the floor that it has read must be the one below which this one removes: so the floor has to
/// have risen before that statement began, which is certain after as long as a statement can last. Rows that are in use
/// are passed over: nothing here waits.
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
