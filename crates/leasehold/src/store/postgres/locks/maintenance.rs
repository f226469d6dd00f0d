//! Sweep and purging of idle locks. A purged lock loses its token, so the tokens of locks without a
//! row start above the minimum token, which rises with time.

use super::codec::{FREE, HELD, token};
use super::fast_path::MIN_TOKEN;
use super::queries::QueryConnection;
use crate::error::Result;
use crate::model::{LockName, Token, Ttl};
use crate::store::postgres::columns::{first_row, lock_name, ttl_micros};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, Sql, TEXT};

/// Number of locks that one pass of purging examines.
const PURGE_PAGE: i64 = 2_000;
/// Minimum interval between two increases of the minimum token, by any process.
const MIN_TOKEN_INTERVAL: Ttl = Ttl::from_secs(60);
/// Minimum time between an increase of the minimum token and purging locks below it: a statement that began
/// before the increase has ended by then.
const MIN_TOKEN_GRACE: Ttl = Ttl::from_secs(15);

impl QueryConnection {
    /// Returns at most `limit` locks with expired state; before that, corrects rows whose `wake_at`
    /// was too early.
    pub(crate) async fn find_expired(&self, limit: u32, now: Option<i64>) -> Result<Vec<LockName>> {
        let limit = i64::from(limit);
        self.query(&FIX_WAKE_AT, &[&limit, &now]).await?;
        let rows = self.query(&EXPIRED, &[&limit, &now]).await?;
        self.connector.map_error(rows.iter().map(|row| lock_name(row, 0)).collect())
    }

    /// Purges idle locks below the minimum token among the next ones by name, then raises the minimum
    /// token for the next pass.
    pub(crate) async fn purge_idle(&self, idle: Ttl, limit: u32, now: Option<i64>) -> Result<u32> {
        let idle = ttl_micros(idle);
        let mut after = self.purge_after.lock().await;
        let limit = i64::from(limit);
        let rows = self.query(&PURGE_IDLE, &[&*after, &PURGE_PAGE, &limit, &idle, &now]).await?;
        let read = || -> Result<(i64, i64, Option<String>), PgError> {
            let row = first_row(&rows)?;
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let (purged, examined, last) = self.connector.map_error(read())?;
        *after = last.filter(|_| examined == PURGE_PAGE).unwrap_or_default();
        self.query(&RAISE_MIN_TOKEN, &[&idle, &now]).await?;
        Ok(u32::try_from(purged).unwrap_or(u32::MAX))
    }
}

pub(crate) async fn min_token(session: &Session) -> Result<Token, PgError> {
    let rows = session.query(&SELECT_MIN_TOKEN, &[]).await?;
    rows.first().map_or(Ok(Token::default()), |row| token(row, 0))
}

// --- statements -----------------------------------------------------------------------------------

/// Selects locks with expired state, and due ones whose record must be read to find out.
pub(crate) static EXPIRED: Sql = Sql::built(&[BIG], || {
    format!(
        "SELECT l.name FROM $s.locks l
        WHERE l.wake_at <= (SELECT $NOW)
          AND (l.layout IS NULL OR l.layout NOT IN ({FREE}, {HELD})
               OR l.layout = {HELD} AND l.expires_at <= (SELECT $NOW))
        ORDER BY l.wake_at LIMIT $1"
    )
});

/// Corrects `wake_at` in rows where it was too early.
pub(crate) static FIX_WAKE_AT: Sql = Sql::built(&[BIG], || {
    format!(
        "UPDATE $s.locks SET wake_at = CASE WHEN layout = {HELD} THEN expires_at END WHERE name IN (
            SELECT l.name FROM $s.locks l
            WHERE l.wake_at <= (SELECT $NOW)
              AND (l.layout = {FREE} OR l.layout = {HELD} AND l.expires_at > (SELECT $NOW))
            ORDER BY l.wake_at LIMIT $1 FOR UPDATE SKIP LOCKED)"
    )
});

/// Raises the minimum token above the tokens of all locks that were not granted for `$1` µs. It never
/// decreases.
pub(crate) static RAISE_MIN_TOKEN: Sql = Sql::built(&[BIG], || {
    format!(
        "UPDATE $s.meta m SET value = CASE m.key WHEN 'min_token' THEN greatest(m.value::bigint, n.now - $1)::text
                                  ELSE greatest(m.value::bigint, n.now)::text END
        FROM (SELECT $NOW AS now) n
        WHERE m.key IN ('min_token', 'min_token_raised_at') AND n.now - $1 > {MIN_TOKEN}
          AND (SELECT at.value::bigint FROM $s.meta at WHERE at.key = 'min_token_raised_at') + {interval} <= n.now",
        interval = MIN_TOKEN_INTERVAL.as_micros(),
    )
});

/// Deletes at most `$3` idle locks among the `$2` that follow `$1` by name: free ones, below the
/// minimum token, and not granted for `$4` µs.
///
/// A statement that creates a lock reads the minimum token from its snapshot. If it finds the lock,
/// waits for this statement to delete it, and then creates it again, the minimum token that it has
/// read must be at least the one below which this statement deletes. So the minimum token must have
/// risen before that statement began, which is certain after the maximum duration of a statement. Rows that are in
/// use are skipped: this statement waits for no row.
pub(crate) static PURGE_IDLE: Sql = Sql::built(&[TEXT, BIG, BIG, BIG], || {
    format!(
        "WITH page AS MATERIALIZED (SELECT k.name FROM $s.locks k WHERE k.name > $1 ORDER BY k.name LIMIT $2),
        idle AS MATERIALIZED (
            SELECT k.name FROM $s.locks k, (SELECT $NOW AS now) n
            WHERE k.name IN (SELECT p.name FROM page p) AND (k.layout = {FREE} OR k.version = 0) AND k.token <= {MIN_TOKEN}
              AND k.token <= n.now - $4
              AND (SELECT at.value::bigint FROM $s.meta at WHERE at.key = 'min_token_raised_at') + {grace} <= n.now
            ORDER BY k.name LIMIT $3 FOR UPDATE OF k SKIP LOCKED),
        deleted AS (DELETE FROM $s.locks l USING idle i WHERE l.name = i.name RETURNING l.name)
        SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM page), (SELECT max(p.name) FROM page p)",
        grace = MIN_TOKEN_GRACE.as_micros(),
    )
});

pub(crate) static SELECT_MIN_TOKEN: Sql = Sql::built(&[], || format!("SELECT {MIN_TOKEN}"));
