//! Rows of a long queue: the slow path reads and writes them under the lock's row lock; a refresh
//! updates one row without that lock.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use serde::Deserialize;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::batching::{BatchingConnection, Job};
use super::codec::TICKET_ROWS;
use super::fast_path;
use super::sql::{Sql, Template};
use crate::model::{
    Acquire, Conflict, HeldBy, LeaseId, LockName, LockOp, LockRecord, Outcome, Queued, Ticket, Timestamp,
    Token, Ttl,
};
use crate::store::postgres::columns::{int8, micros, number, parse_json, time, to_json, ttl, ttl_micros};
use crate::store::postgres::connection::{Connector, Param, STATEMENT_TIMEOUT, Session, with_timeout};
use crate::store::postgres::error::PgError;
use crate::store::ticket_rows::{Layout, Listed, TicketRow, TicketRows};

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
                Err(error) => self.retry_or_fail(session, vec![job], error),
            }
        }
        remaining
    }
}

/// Reads all tickets into a record that was loaded without them.
pub(crate) async fn load(session: &Session, record: &mut LockRecord) -> Result<TicketRows, PgError> {
    let rows = session.query(Sql::SelectTickets, &[&record.name.as_str()]).await?;
    let mut found = TicketRows::default();
    for row in &rows {
        let ticket_ttl = ttl(row, 3)?;
        let stored = Stored { expires_at: time(row, 2)?, ticket_ttl, refreshes: number(row, 4)? };
        let ticket = add(record, row.try_get(5)?, &stored)?;
        found.0.push(TicketRow {
            lease_id: LeaseId::from_uuid(row.try_get(0)?),
            place: row.try_get(1)?,
            since: ticket.since,
            expires_at: ticket.expires_at,
            ticket_ttl,
            refreshes: stored.refreshes,
        });
    }
    Ok(found)
}

/// Adds the tickets that [`tickets_of_lock`] selects.
pub(crate) fn add_from_json(record: &mut LockRecord, rows: &str) -> Result<(), PgError> {
    #[derive(Deserialize)]
    struct JsonRow(String, Timestamp, Ttl, u64);
    let rows: Vec<JsonRow> = parse_json(rows)?;
    for JsonRow(text, expires_at, ticket_ttl, refreshes) in rows {
        add(record, &text, &Stored { expires_at, ticket_ttl, refreshes })?;
    }
    Ok(())
}

/// Columns beside a ticket's text; they are newer than the same values in the text.
struct Stored {
    expires_at: Timestamp,
    ticket_ttl: Ttl,
    refreshes: u64,
}

fn add<'a>(record: &'a mut LockRecord, text: &str, stored: &Stored) -> Result<&'a Ticket, PgError> {
    let ticket: Ticket = parse_json(text)?;
    let ticket = Ticket { expires_at: stored.expires_at, ticket_ttl: stored.ticket_ttl, ..ticket };
    record.version += stored.refreshes;
    record.waiters.push(ticket);
    Ok(&record.waiters[record.waiters.len() - 1])
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
            session.query(Sql::DeleteTickets, &[&name, &None::<Vec<Uuid>>]).await?;
            return Ok(());
        }
        Layout::Inline => return Ok(()),
        Layout::Rows(change) => change,
    };
    if change.is_new || !change.remove.is_empty() {
        let removed: Vec<Uuid> = change.remove.iter().map(|id| *id.as_uuid()).collect();
        session.query(Sql::DeleteTickets, &[&name, &(!change.is_new).then_some(removed)]).await?;
    }
    if change.put.is_empty() {
        return Ok(());
    }
    let mut columns = Columns::default();
    for (at, row) in &change.put {
        columns.lease_id.push(*row.lease_id.as_uuid());
        columns.position.push(row.place);
        columns.expires_at.push(micros(row.expires_at));
        columns.ticket_ttl.push(ttl_micros(row.ticket_ttl));
        columns.refreshes.push(int8(row.refreshes));
        columns.ticket.push(to_json(&record.waiters[*at])?);
    }
    let params: [Param<'_>; 7] = [
        &name,
        &columns.lease_id,
        &columns.position,
        &columns.expires_at,
        &columns.ticket_ttl,
        &columns.refreshes,
        &columns.ticket,
    ];
    session.query(Sql::UpsertTickets, &params).await?;
    Ok(())
}

#[derive(Default)]
struct Columns {
    lease_id: Vec<Uuid>,
    position: Vec<i64>,
    expires_at: Vec<i64>,
    ticket_ttl: Vec<i64>,
    refreshes: Vec<i64>,
    ticket: Vec<String>,
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
    let params: [Param<'_>; 4] = [&key, request.lease_id.as_uuid(), &ticket_ttl, &now];
    let rows = session.query(Sql::RefreshTicket, &params).await?;
    rows.first().map(read_refreshed).transpose()
}

fn read_refreshed(row: &Row) -> Result<(Outcome, Token), PgError> {
    let lock: Listed = parse_json(row.try_get(1)?)?;
    let holders = lock.record.holders.iter().map(HeldBy::from).collect();
    let conflict = Conflict { holders, waiters: lock.tickets, full: false, now: None };
    let ahead = lock.ahead(row.try_get(0)?);
    Ok((Outcome::Queued(Queued { ahead, conflict }), lock.record.token))
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

pub(crate) fn select_sql() -> Template {
    let sql = "SELECT t.lease_id, t.position, t.expires_at, t.ticket_ttl, t.refreshes, t.ticket
        FROM $s.tickets t WHERE t.lock = $1 ORDER BY t.position";
    (sql.to_owned(), vec![Type::TEXT])
}

/// Deletes the tickets in `$2`; without it, all of the lock.
pub(crate) fn delete_sql() -> Template {
    let sql = "DELETE FROM $s.tickets t WHERE t.lock = $1 AND ($2::uuid[] IS NULL OR t.lease_id = ANY ($2))";
    (sql.to_owned(), vec![Type::TEXT, Type::UUID_ARRAY])
}

pub(crate) fn upsert_sql() -> Template {
    let sql = "INSERT INTO $s.tickets AS t (lock, lease_id, position, expires_at, ticket_ttl, refreshes, ticket)
        SELECT $1, u.* FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) u
        ON CONFLICT (lock, lease_id) DO UPDATE SET position = excluded.position,
            expires_at = excluded.expires_at, ticket_ttl = excluded.ticket_ttl, refreshes = excluded.refreshes,
            ticket = excluded.ticket";
    let numbers = std::iter::repeat_n(Type::INT8_ARRAY, 4);
    let types = [Type::TEXT, Type::UUID_ARRAY].into_iter().chain(numbers).chain([Type::TEXT_ARRAY]);
    (sql.to_owned(), types.collect())
}

/// Updates the ticket's row and nothing else. It does not lock the lock's row: as long as nothing
/// can have expired (`wake_at`), only its waiter has a reason to change a ticket, and the row of a
/// ticket that is granted or removed meanwhile no longer exists when this statement can write it.
/// The expiry time only increases, so that `wake_at` stays before it. A refresh that a crash of the
/// server loses is made again, so the commit need not wait for the disk.
pub(crate) fn refresh_sql() -> Template {
    let sql = format!(
        "WITH done AS (
            UPDATE $s.tickets t SET expires_at = n.now + $3, ticket_ttl = $3, refreshes = t.refreshes + 1
            FROM $s.locks l, (SELECT $NOW AS now) n
            WHERE t.lock = $1 AND t.lease_id = $2 AND l.name = $1 AND l.layout = {TICKET_ROWS}
              AND n.now < l.wake_at AND t.expires_at <= n.now + $3
            RETURNING t.position, l.record)
        SELECT d.position, d.record, set_config('synchronous_commit', 'off', true) FROM done d"
    );
    (sql, vec![Type::TEXT, Type::UUID, Type::INT8])
}
