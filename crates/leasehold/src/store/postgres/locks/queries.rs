//! Queries of locks. They have a connection of their own and wait for no lock.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::codec::{FREE, HELD, LOCK_COLUMNS, LockRow, QUEUE, TICKET_ROWS, lease_at, stored_record, token};
use super::inline_connection::InlineConnection;
use super::notify::NOTIFY;
use super::tickets;
use crate::error::Result;
use crate::model::{LeaseId, LockName, LockRecord, Timestamp};
use crate::store::BootInstant;
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{Param, maybe_time, only_time, time};
use crate::store::postgres::connection::{
    ConnectionOwner, Connector, OPERATION_TIMEOUT, RELEASE_AFTER, Session, with_timeout,
};
use crate::store::postgres::error::{PgError, Retry};
use crate::store::postgres::sql::{BIG, BOOL, NOW, SMALL, Sql, TEXT};
use crate::store::{Cursor, ListLocks, LockState, Page, Peek, Recipient};

#[derive(Debug)]
pub(crate) struct QueryConnection {
    pub(super) connector: Arc<Connector>,
    inline: Arc<InlineConnection>,
    /// Locked while the connection is opened.
    session: Arc<Mutex<Option<Arc<Session>>>>,
    /// Name of the last lock that was examined for purging.
    pub(crate) purge_after: Mutex<String>,
}

impl QueryConnection {
    pub(crate) fn new(connector: Arc<Connector>, inline: Arc<InlineConnection>) -> Self {
        Self { connector, inline, session: Arc::default(), purge_after: Mutex::default() }
    }

    pub(crate) async fn query(&self, sql: &'static Sql, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let rows = with_timeout(OPERATION_TIMEOUT, self.query_with_retry(sql, params)).await;
        self.connector.map_error(rows)
    }

    /// Executes one query, and retries once if the connection turns out to be closed.
    async fn query_with_retry(&self, sql: &'static Sql, params: &[Param<'_>]) -> Result<Vec<Row>, PgError> {
        match self.query_once(sql, params).await {
            Err(error) if error.retry() != Retry::Never => self.query_once(sql, params).await,
            rows => rows,
        }
    }

    /// Executes a short query on the connection with the lowest latency that has no open transaction.
    async fn query_low_latency(&self, sql: &'static Sql, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let rows = with_timeout(OPERATION_TIMEOUT, async {
            if let Some(session) = self.inline.idle_session().or_else(|| self.connector.listening()) {
                let rows = async { Ok(session.try_query_outside(sql, params).await?) };
                // An error here is ignored: the regular path below reports it.
                if let Ok(Some(rows)) = with_timeout(OPERATION_TIMEOUT / 5, rows).await {
                    return Ok(rows);
                }
            }
            self.query_with_retry(sql, params).await
        });
        self.connector.map_error(rows.await)
    }

    async fn query_once(&self, sql: &'static Sql, params: &[Param<'_>]) -> Result<Vec<Row>, PgError> {
        let session = self.session().await?;
        let answer = session.query(sql, params).await.map_err(PgError::from);
        if let Err(error) = &answer {
            self.connector.observe_error(error);
            if error.retry() != Retry::Never {
                // The next query opens another one.
                session.discard();
            }
        }
        answer
    }

    /// Returns the connection. If one must be opened, this happens on the store's thread: a caller that is not
    /// polled would keep the lock.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, PgError> {
        if let Ok(mut open) = self.session.try_lock() {
            if open.as_ref().is_none_or(|session| session.is_closed()) {
                *open = self.connector.take_idle();
            }
            if let Some(session) = &*open {
                return Ok(session.clone());
            }
        }
        let (open, connector) = (self.session.clone(), self.connector.clone());
        let opening = self.connector.runtime().spawn(async move {
            let mut open = open.lock().await;
            match &*open {
                Some(session) if !session.is_closed() => Ok::<_, PgError>(session.clone()),
                _ => {
                    let session = connector.open().await?;
                    *open = Some(session.clone());
                    Ok(session)
                }
            }
        });
        AbortOnDropHandle::new(opening).await.unwrap_or(Err(PgError::Timeout))
    }

    pub(crate) async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let rows = self.query_low_latency(&GET, &[&name.as_str()]).await?;
        let record = rows.first().map(|row| LockRow::read_whole(row, LOCK_COLUMNS));
        self.connector.map_error(record.transpose())
    }

    /// Sends notices to other processes: one payload each, without the name of a lock.
    pub(crate) async fn notify(&self, to: &[Recipient]) -> Result<()> {
        let (channel, payloads) =
            (self.connector.channel(), to.iter().map(|to| to.as_uuid().to_string()).collect::<Vec<_>>());
        self.query_low_latency(&NOTIFY, &[&channel, &payloads]).await.map(drop)
    }

    pub(crate) async fn peek(&self, name: &LockName, waiter: &LeaseId) -> Result<Peek> {
        let rows = self.query_low_latency(&PEEK, &[&name.as_str(), &self.connector.now()]).await?;
        match rows.first() {
            Some(row) => self.connector.map_error(read_peek(row, waiter)),
            None => Ok(Peek::of(None, waiter, self.now().await?)),
        }
    }

    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let rows = self.query_low_latency(&NOW, &[&self.connector.now()]).await?;
        self.connector.map_error(only_time(&rows))
    }

    pub(crate) async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let limit = page_size(query.limit);
        let prefix = query.prefix.clone().unwrap_or_default();
        // Without a prefix, a text after all names.
        let end = prefix_end(&prefix).unwrap_or_else(|| "\u{10ffff}".repeat(64));
        let lowest = match query.state {
            None | Some(LockState::Free) => FREE,
            Some(LockState::Held | LockState::InUse | LockState::Stale) => HELD,
            Some(LockState::Waited) => QUEUE,
        };
        let statement = if lowest == FREE { &LIST } else { &LIST_IN_USE };
        let must_have_ended = matches!(query.state, Some(LockState::Free | LockState::Stale));
        let mut after = query.after.clone().map(|after| after.0).unwrap_or_default();
        let mut items = Vec::new();
        loop {
            let now = self.connector.now();
            let limit_param = i64::from(limit);
            let params: [Param<'_>; 7] =
                [&after, &prefix, &end, &lowest, &limit_param, &must_have_ended, &now];
            let rows = self.query(statement, &params).await?;
            let last = rows.len() < limit as usize;
            for row in &rows {
                let record = self.connector.map_error(LockRow::read_whole(row, LOCK_COLUMNS + 1))?;
                let now = self.connector.map_error(time(row, LOCK_COLUMNS))?;
                record.name.as_str().clone_into(&mut after);
                if query.state.is_none_or(|state| state.matches(&record, now)) {
                    items.push(record);
                }
                if items.len() == limit as usize {
                    return Ok(Page { items, next: Some(Cursor(after)) });
                }
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }
}

impl ConnectionOwner for QueryConnection {
    /// Returns the connection to the pool if it has been unused for [`RELEASE_AFTER`].
    fn release_idle(&self, now: BootInstant) -> usize {
        let Ok(mut open) = self.session.try_lock() else { return 1 };
        let unused = |session: &Arc<Session>| session.idle_for(now) >= RELEASE_AFTER;
        // A long-running query holds a clone of the session.
        if open.as_ref().is_some_and(|session| {
            unused(session)
                && Arc::strong_count(session) <= 1 + 2 * usize::from(self.connector.is_listening(session))
        }) {
            open.take().into_iter().for_each(|session| self.connector.return_idle(session));
        }
        usize::from(open.is_some())
    }
}

/// Reads a row of [`PEEK`]: the lease's id and token, `layout`, the lease, `wake_at`, the optional
/// record, the time.
pub(crate) fn read_peek(row: &Row, waiter: &LeaseId) -> Result<Peek, PgError> {
    let now = time(row, 14)?;
    let wake_at = maybe_time(row, 12)?;
    let layout: Option<i16> = row.try_get(2)?;
    let (lease, has_queue) = match layout {
        None | Some(FREE) => (None, false),
        Some(HELD | QUEUE) => {
            let is_holder = row.try_get::<_, Option<Uuid>>(0)?.is_some_and(|id| id == *waiter.as_uuid());
            let lease = is_holder.then(|| lease_at(row, 3, *waiter, token(row, 1)?)).transpose()?;
            (lease, layout == Some(QUEUE))
        }
        Some(_) => {
            let record = stored_record(layout, row.try_get(13)?)?;
            (record.lease(waiter).cloned(), layout == Some(TICKET_ROWS) || !record.waiters.is_empty())
        }
    };
    Ok(Peek { lease, wake_at: wake_at.filter(|_| has_queue), holder_is_dead: false, now })
}

/// Returns the least text after all texts with this prefix, or `None` if there is no upper bound.
pub(crate) fn prefix_end(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

// --- statements -----------------------------------------------------------------------------------

pub(crate) static GET: Sql = Sql::built(&[TEXT], || {
    format!("SELECT $LOCK, {} FROM $s.locks l WHERE l.name = $1", tickets::tickets_of_lock())
});

/// Selects what a waiter needs: the lease in the columns or the record, and no ticket of a queue
/// beside them.
pub(crate) static PEEK: Sql = Sql::new(
    &[TEXT],
    "SELECT l.lease_id, l.token, l.layout, $LEASE, l.wake_at, l.record, $NOW
    FROM $s.locks l WHERE l.name = $1",
);

/// Lists locks by name: after `$1`, from the prefix `$2` on and before `$3`, with a layout from `$4` on: from
/// [`HELD`] on, they may have a holder; from [`QUEUE`] on, they may have waiters. With `$6`, omits most locks
/// whose lease has not ended: see [`may_have_ended`].
pub(crate) static LIST: Sql = Sql::built(&[TEXT, TEXT, TEXT, SMALL, BIG, BOOL], || {
    format!(
        "SELECT $LOCK, (SELECT $NOW), {tickets} FROM $s.locks l
        WHERE l.name > $1 AND l.name >= $2 AND l.name < $3 AND coalesce(l.layout, {FREE}) >= $4
            AND (NOT $6 OR {ended})
        ORDER BY l.name LIMIT $5",
        tickets = tickets::tickets_of_lock(),
        ended = may_have_ended()
    )
});

/// Returns the condition that the columns contain no lease that has not ended, unless its process may have
/// died.
fn may_have_ended() -> String {
    format!(
        "(coalesce(l.layout, {FREE}) NOT IN ({HELD}, {QUEUE}) OR l.expires_at <= (SELECT $NOW)
            OR strpos(l.extra, '\"process\":') > 0)"
    )
}

/// Number of locks in use up to which a list of them reads them all.
const MAX_IN_USE: i64 = 5_000;

/// Like [`LIST`], for layouts from [`HELD`] on: each of these rows has a `wake_at`, and idle locks have none. If
/// there are few, all of them are read from its index, however many idle locks there are. Otherwise the
/// planner chooses between that index and the names.
pub(crate) static LIST_IN_USE: Sql = Sql::built(&[TEXT, TEXT, TEXT, SMALL, BIG, BOOL], || {
    format!(
        "WITH busy AS MATERIALIZED (
            SELECT l.name, l.layout, {ended} AS may_have_ended
            FROM $s.locks l WHERE l.wake_at IS NOT NULL ORDER BY l.wake_at LIMIT {limit}),
        named AS MATERIALIZED (
            (SELECT b.name FROM busy b
            WHERE (SELECT count(*) FROM busy) <= {MAX_IN_USE} AND b.name > $1 AND b.name >= $2 AND b.name < $3
                AND b.layout >= $4 AND (NOT $6 OR b.may_have_ended)
            ORDER BY b.name LIMIT $5)
            UNION ALL
            (SELECT l.name FROM $s.locks l
            WHERE (SELECT count(*) FROM busy) > {MAX_IN_USE} AND l.wake_at IS NOT NULL
                AND l.name > $1 AND l.name >= $2 AND l.name < $3 AND l.layout >= $4 AND (NOT $6 OR {ended})
            ORDER BY l.name LIMIT $5))
        SELECT $LOCK, (SELECT $NOW), {tickets} FROM named n
        CROSS JOIN LATERAL (SELECT k.* FROM $s.locks k WHERE k.name = n.name LIMIT 1) l
        ORDER BY l.name",
        limit = MAX_IN_USE + 1,
        tickets = tickets::tickets_of_lock(),
        ended = may_have_ended()
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_text() {
        assert_eq!(prefix_end("ab").as_deref(), Some("ac"));
        assert_eq!(prefix_end("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(prefix_end("a\u{d7ff}").as_deref(), Some("a\u{e000}"));
        assert_eq!(prefix_end(""), None);
    }
}
