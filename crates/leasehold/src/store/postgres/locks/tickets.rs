//! Rows of a long queue: the slow path reads and writes them under the lock's row lock; a refresh
//! updates one row without that lock.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_postgres::Row;
use uuid::Uuid;

use super::batching_connection::{BatchingConnection, Job};
use super::codec::TICKET_ROWS;
use super::fast_path;
use crate::model::{Acquire, LeaseId, LockName, LockOp, LockRecord, Outcome, Timestamp, Token};
use crate::store::postgres::columns::{
    OwnedParam, column, int8, json_column, micros, number, params, parse_json, time, ttl, ttl_micros,
};
use crate::store::postgres::connection::{Connector, STATEMENT_TIMEOUT, Session, with_timeout};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, Sql, TEXT, TEXTS, UUID, UUIDS};
use crate::store::ticket_rows::{Layout, Listed, StoredTicket, TicketRows};

impl BatchingConnection {
    /// Refreshes tickets of a long queue, one statement each, and returns the jobs that are not
    /// refreshes. Returns all jobs if two are for the same lease, because those must stay in order.
    pub(crate) async fn refresh_tickets(
        &self,
        session: &Arc<Session>,
        name: &LockName,
        jobs: Vec<Job>,
    ) -> Vec<Job> {
        let leases: HashSet<_> = jobs.iter().map(|job| fast_path::lease_of(&job.op)).collect();
        if leases.len() < jobs.len() {
            return jobs;
        }
        let refreshed = jobs.iter().map(|job| refresh_ticket(session, &self.connector, name, &job.op));
        let refreshed = with_timeout(STATEMENT_TIMEOUT, async { Ok(join_all(refreshed).await) }).await;
        let refreshed = match refreshed {
            Ok(refreshed) => refreshed,
            Err(error) => {
                self.retry_or_fail(session, jobs, error);
                return Vec::new();
            }
        };
        let mut remaining = Vec::new();
        for (job, refreshed) in jobs.into_iter().zip(refreshed) {
            match refreshed {
                Ok(Some((outcome, token))) => job.answer_and_register(self.connector.waiters, outcome, token),
                Ok(None) => remaining.push(job),
                // The ticket is probably being granted.
                Err(error) if error.is_lock_timeout() => remaining.push(job),
                Err(error) => self.retry_or_fail(session, vec![job], error),
            }
        }
        remaining
    }
}

/// Reads all tickets into a record that was loaded without them.
pub(crate) async fn load(session: &Session, record: &mut LockRecord) -> Result<TicketRows, PgError> {
    let rows = session.query(&SELECT, &[&record.name.as_str()]).await?;
    let mut found = TicketRows::default();
    for row in &rows {
        let stored = StoredTicket {
            ticket: parse_json(row.try_get(4)?)?,
            expires_at: time(row, 1)?,
            ticket_ttl: ttl(row, 2)?,
            refreshes: number(row, 3)?,
        };
        found.0.push(stored.add_to(record, row.try_get(0)?));
    }
    Ok(found)
}

/// Locks the rows of these tickets until the end of the transaction, and updates the record and the rows with
/// refreshes that were committed since they were read. Returns the time, read when all are locked; `None` if
/// none of them has a row.
pub(crate) async fn lock_rows(
    session: &Session,
    connector: &Connector,
    record: &mut LockRecord,
    rows: &mut TicketRows,
    tickets: &[LeaseId],
) -> Result<Option<Timestamp>, PgError> {
    let ids: Vec<Uuid> = tickets.iter().map(|id| *id.as_uuid()).collect();
    let found = session.query(&LOCK, &[&record.name.as_str(), &ids, &connector.now()]).await?;
    let mut at = None;
    for locked in &found {
        let id = LeaseId::from_uuid(locked.try_get(0)?);
        let (expires_at, ticket_ttl) = (time(locked, 1)?, ttl(locked, 2)?);
        if let Some(row) = rows.0.iter_mut().find(|row| row.lease_id == id) {
            let refreshes = number(locked, 3)?;
            record.version = record.version.saturating_add(refreshes.saturating_sub(row.refreshes));
            (row.expires_at, row.ticket_ttl, row.refreshes) = (expires_at, ticket_ttl, refreshes);
        }
        if let Some(ticket) = record.waiters.iter_mut().find(|ticket| ticket.request.lease_id == id) {
            (ticket.expires_at, ticket.ticket_ttl) = (expires_at, ticket_ttl);
        }
        at = at.max(Some(time(locked, 4)?));
    }
    Ok(at)
}

/// Writes the changed tickets, in the transaction that saves the record.
pub(crate) async fn save(
    session: &Session,
    record: &LockRecord,
    was_listed: bool,
    layout: &Layout,
) -> Result<(), PgError> {
    let name = record.name.as_str();
    let change = match layout {
        Layout::Inline if was_listed => {
            session.query(&DELETE, &[&name, &None::<Vec<Uuid>>]).await?;
            return Ok(());
        }
        Layout::Inline => return Ok(()),
        Layout::Rows(change) => change,
    };
    if change.is_new || !change.remove.is_empty() {
        let removed: Vec<Uuid> = change.remove.iter().map(|id| *id.as_uuid()).collect();
        session.query(&DELETE, &[&name, &(!change.is_new).then_some(removed)]).await?;
    }
    if change.put.is_empty() {
        return Ok(());
    }
    let values: [OwnedParam<'_>; 7] = [
        Box::new(name),
        column(&change.put, |(_, row)| *row.lease_id.as_uuid()),
        column(&change.put, |(_, row)| row.place),
        column(&change.put, |(_, row)| micros(row.expires_at)),
        column(&change.put, |(_, row)| ttl_micros(row.ticket_ttl)),
        column(&change.put, |(_, row)| int8(row.refreshes)),
        json_column(&change.put, |(at, _)| record.waiters.get(*at))?,
    ];
    session.query(&UPSERT, &params(&values)).await?;
    Ok(())
}

/// Refreshes the ticket of a waiter that requests the lock again. Returns `None`, with nothing
/// changed, if the operation needs the slow path.
pub(crate) async fn refresh_ticket(
    session: &Session,
    connector: &Connector,
    name: &LockName,
    op: &LockOp,
) -> Result<Option<(Outcome, Token)>, PgError> {
    let LockOp::Acquire(Acquire { request, queue: Some(ticket_ttl), steal_after: None }) = op else {
        return Ok(None);
    };
    let (key, ticket_ttl, now) = (name.as_str(), ttl_micros(*ticket_ttl), connector.now());
    let rows = session.query(&REFRESH, &[&key, request.lease_id.as_uuid(), &ticket_ttl, &now]).await?;
    rows.first().map(read_refreshed).transpose()
}

fn read_refreshed(row: &Row) -> Result<(Outcome, Token), PgError> {
    let lock: Listed = parse_json(row.try_get(1)?)?;
    Ok((lock.queued(row.try_get(0)?), lock.record.token))
}

// --- statements -----------------------------------------------------------------------------------

/// Tickets of a lock as JSON, if they are rows; from the same snapshot as the lock's own row.
pub(super) fn tickets_of_lock() -> String {
    format!(
        "CASE WHEN l.layout = {TICKET_ROWS} THEN (
            SELECT json_agg(json_build_array(t.ticket, t.expires_at, t.ticket_ttl, t.refreshes) ORDER BY t.position)::text
            FROM $s.tickets t WHERE t.lock = l.name) END"
    )
}

pub(crate) static SELECT: Sql = Sql::new(
    &[TEXT],
    "SELECT t.position, t.expires_at, t.ticket_ttl, t.refreshes, t.ticket
    FROM $s.tickets t WHERE t.lock = $1 ORDER BY t.position",
);

/// Locks the rows of the tickets in `$2`, always in the same order, and reads the clock after each: the inner
/// SELECT has the row lock before the outer one is evaluated.
pub(crate) static LOCK: Sql = Sql::new(
    &[TEXT, UUIDS],
    "SELECT t.lease_id, t.expires_at, t.ticket_ttl, t.refreshes, $NOW FROM (
        SELECT * FROM $s.tickets k WHERE k.lock = $1 AND k.lease_id = ANY ($2) ORDER BY k.lease_id FOR UPDATE) t",
);

/// Deletes the tickets in `$2`; without it, all of the lock.
pub(crate) static DELETE: Sql = Sql::new(
    &[TEXT, UUIDS],
    "DELETE FROM $s.tickets t WHERE t.lock = $1 AND ($2::uuid[] IS NULL OR t.lease_id = ANY ($2))",
);

pub(crate) static UPSERT: Sql = Sql::new(
    &[TEXT, UUIDS, BIGS, BIGS, BIGS, BIGS, TEXTS],
    "INSERT INTO $s.tickets AS t (lock, lease_id, position, expires_at, ticket_ttl, refreshes, ticket)
        SELECT $1, u.* FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) u
        ON CONFLICT (lock, lease_id) DO UPDATE SET position = excluded.position,
            expires_at = excluded.expires_at, ticket_ttl = excluded.ticket_ttl, refreshes = excluded.refreshes,
            ticket = excluded.ticket",
);

/// Updates the ticket's row and nothing else. It does not lock the lock's row: as long as nothing
/// can have expired (`wake_at`), only its waiter has a reason to change a ticket, and the row of a
/// ticket that is granted or removed meanwhile no longer exists when this statement can write it. A
/// grant locks that row before it reads the clock, so a lease never begins before a request that this
/// statement has answered.
/// The expiry time only increases, so that `wake_at` stays before it. A refresh that a crash of the
/// server loses is made again, so the commit need not wait for the disk.
pub(crate) static REFRESH: Sql = Sql::built(&[TEXT, UUID, BIG], || {
    format!(
        "WITH done AS (
            UPDATE $s.tickets t SET expires_at = n.now + $3, ticket_ttl = $3, refreshes = t.refreshes + 1
            FROM $s.locks l, (SELECT $NOW AS now) n
            WHERE t.lock = $1 AND t.lease_id = $2 AND l.name = $1 AND l.layout = {TICKET_ROWS}
              AND n.now < l.wake_at AND t.expires_at <= n.now + $3
            RETURNING t.position, l.record)
        SELECT d.position, d.record, set_config('synchronous_commit', 'off', true) FROM done d"
    )
});
