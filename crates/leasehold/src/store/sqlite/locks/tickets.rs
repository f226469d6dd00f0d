//! Rows of a long queue, a lock without them, and the refresh of one ticket without reading the others.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::model::{
    Acquire, LeaseId, LockName, LockOp, LockRecord, LockRequest, Outcome, Ticket, Timestamp, Ttl,
};
use crate::store::sqlite::schema::{json, micros, timestamp, to_integer, to_json};
use crate::store::ticket_rows::{LISTED, Listed, RowChange, StoredTicket, TicketRows, is_listed};

/// Reads a lock without its tickets.
const SELECT_LOCK: &str = "SELECT id, record, wake_at FROM leasehold_locks WHERE name = ?";
/// Tests whether a lock's tickets are rows: then the record begins with the second parameter.
const IS_LISTED: &str =
    "SELECT 1 FROM leasehold_locks WHERE name = ?1 AND substr(record, 1, length(?2)) = ?2";
const SELECT_ONE: &str = "SELECT ticket FROM leasehold_tickets WHERE lock = ? AND lease_id = ?";
const REFRESH: &str = "UPDATE leasehold_tickets \
                       SET expires_at = ?1, ticket_ttl = ?2, refreshes = refreshes + 1 \
                       WHERE lock = ?3 AND lease_id = ?4 AND expires_at <= ?1 RETURNING position";

/// Row of a lock without the tickets of a long queue.
pub(super) struct StoredLock {
    pub(super) id: i64,
    pub(super) body: Body,
    pub(super) wake_at: Option<Timestamp>,
}

pub(super) enum Body {
    Whole(LockRecord),
    /// The record without its tickets, which are rows.
    Listed(Listed),
}

pub(super) fn load_without_tickets(
    conn: &Connection,
    name: &LockName,
) -> rusqlite::Result<Option<StoredLock>> {
    let read = |row: &Row<'_>| {
        let is_listed = is_listed(row.get_ref(1)?.as_str()?);
        let body = if is_listed { Body::Listed(json(row, 1)?) } else { Body::Whole(json(row, 1)?) };
        let wake_at: Option<i64> = row.get(2)?;
        Ok(StoredLock { id: row.get(0)?, body, wake_at: wake_at.map(timestamp) })
    };
    conn.prepare_cached(SELECT_LOCK)?.query_row([name.as_str()], read).optional()
}

/// Loads all tickets into a record that was read without them.
pub(super) fn load(conn: &Connection, lock: i64, record: &mut LockRecord) -> rusqlite::Result<TicketRows> {
    let sql = "SELECT position, expires_at, ticket_ttl, refreshes, ticket FROM leasehold_tickets \
               WHERE lock = ? ORDER BY position";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([lock])?;
    let mut found = TicketRows::default();
    while let Some(row) = rows.next()? {
        let number = |at: usize| row.get::<_, i64>(at).map(|number| u64::try_from(number).unwrap_or(0));
        let ticket: Ticket = json(row, 4)?;
        let stored = StoredTicket {
            expires_at: Timestamp::from_micros(number(1)?),
            ticket_ttl: Ttl::try_from(number(2)?).unwrap_or(ticket.ticket_ttl),
            refreshes: number(3)?,
            ticket,
        };
        found.0.push(stored.add_to(record, row.get(0)?));
    }
    Ok(found)
}

pub(super) fn save(
    conn: &Connection,
    lock: i64,
    record: &LockRecord,
    change: &RowChange,
) -> rusqlite::Result<()> {
    if change.is_new {
        remove_all(conn, lock)?;
    }
    let mut remove = conn.prepare_cached("DELETE FROM leasehold_tickets WHERE lock = ? AND lease_id = ?")?;
    for id in &change.remove {
        remove.execute(params![lock, id_bytes(id)])?;
    }
    let sql = "INSERT OR REPLACE INTO leasehold_tickets \
               (lock, lease_id, position, expires_at, ticket_ttl, refreshes, ticket) \
               VALUES (?, ?, ?, ?, ?, ?, ?)";
    let mut put = conn.prepare_cached(sql)?;
    for (at, row) in &change.put {
        let (ends, ticket) = (micros(row.expires_at), to_json(&record.waiters[*at])?);
        let (ticket_ttl, refreshes) = (to_integer(row.ticket_ttl.as_micros()), to_integer(row.refreshes));
        put.execute(params![lock, id_bytes(&row.lease_id), row.place, ends, ticket_ttl, refreshes, ticket])?;
    }
    Ok(())
}

pub(super) fn remove_all(conn: &Connection, lock: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM leasehold_tickets WHERE lock = ?")?.execute([lock]).map(drop)
}

/// Refreshes the ticket of a waiter that repeats its request, if nothing can have ended and neither
/// a holder nor the first waiter is dead: then the rules in leasehold-model would change nothing
/// else. Returns `None`, without any change, if the slow path must decide.
pub(super) fn refresh(
    conn: &Connection,
    name: &LockName,
    op: &LockOp,
    now: Timestamp,
    is_dead: impl Fn(&LockRequest) -> bool,
) -> rusqlite::Result<Option<Outcome>> {
    let LockOp::Acquire(Acquire { request, queue: Some(ticket_ttl), steal_after: None }) = op else {
        return Ok(None);
    };
    // Most locks have no long queue, so their records need not be parsed for this.
    if !conn.prepare_cached(IS_LISTED)?.exists(params![name.as_str(), LISTED])? {
        return Ok(None);
    }
    let Some(StoredLock { id, wake_at, body: Body::Listed(lock) }) = load_without_tickets(conn, name)? else {
        return Ok(None);
    };
    let holders = &lock.record.holders;
    let first: Option<Ticket> = conn
        .prepare_cached(SELECT_ONE)?
        .query_row(params![id, id_bytes(&lock.next)], |row| json(row, 0))
        .optional()?;
    let is_settled = wake_at.is_some_and(|wake_at| now < wake_at)
        && !holders.iter().any(|lease| lease.request.lease_id == request.lease_id || is_dead(&lease.request))
        && first.is_some_and(|first| !is_dead(&first.request));
    if !is_settled {
        return Ok(None);
    }
    // The end only moves later, so `wake_at` stays before it.
    let (expires_at, ticket_ttl) = (micros(now.plus(*ticket_ttl)), to_integer(ticket_ttl.as_micros()));
    let values = params![expires_at, ticket_ttl, id, id_bytes(&request.lease_id)];
    let place: Option<i64> = conn.prepare_cached(REFRESH)?.query_row(values, |row| row.get(0)).optional()?;
    Ok(place.map(|place| lock.queued(place)))
}

fn id_bytes(id: &LeaseId) -> [u8; 16] {
    *id.as_uuid().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rusqlite::StatementStatus;
    use uuid::Uuid;

    use super::super::queries;
    use super::super::row::LockRow;
    use super::*;
    use crate::model::{Holder, Metadata, Mode, Priority, Slots, TokenFloor};
    use crate::store::sqlite::schema::TABLES;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn acquire(number: u128) -> LockOp {
        let request = LockRequest {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(1_000_000 + number)),
            holder: Holder::new("ada@host").unwrap(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(600),
            metadata: Metadata::default(),
            process: None,
        };
        LockOp::Acquire(Acquire {
            request: Arc::new(request),
            queue: Some(Ttl::from_secs(600)),
            steal_after: None,
        })
    }

    /// Creates a lock with the given number of waiters.
    fn fill(conn: &Connection, name: &LockName, waiters: u128) {
        let mut row = LockRow::new(name.clone(), TokenFloor::default());
        row.record.apply(&acquire(0), NOW);
        queries::save(conn, &mut row, NOW).unwrap();
        // Loaded again because the saved row has an id.
        let mut row = queries::load(conn, name).unwrap().unwrap();
        for number in 1..=waiters {
            row.record.apply(&acquire(number), NOW);
        }
        queries::save(conn, &mut row, NOW).unwrap();
        assert_eq!(queries::load(conn, name).unwrap().unwrap().record, row.record);
    }

    /// Returns the steps of SQLite's virtual machine for the given cached statements of this
    /// connection.
    fn steps(conn: &Connection, sqls: &[&str]) -> i32 {
        let of = |sql| conn.prepare_cached(sql).unwrap().reset_status(StatementStatus::VmStep);
        sqls.iter().map(|sql| of(sql)).sum()
    }

    #[test]
    fn the_cost_of_reading_and_refreshing_does_not_depend_on_the_queue() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        let sqls = [SELECT_LOCK, IS_LISTED, SELECT_ONE, REFRESH];
        let mut costs = Vec::new();
        for waiters in [150, 900] {
            let name = LockName::new(format!("lock-{waiters}")).unwrap();
            fill(&conn, &name, waiters);
            let stored: i64 = conn
                .query_row(
                    "SELECT length(record) FROM leasehold_locks WHERE name = ?",
                    [name.as_str()],
                    |row| row.get(0),
                )
                .unwrap();
            steps(&conn, &sqls);
            load_without_tickets(&conn, &name).unwrap().unwrap();
            let read = steps(&conn, &sqls);
            let changes = conn.total_changes();
            let outcome = refresh(&conn, &name, &acquire(waiters), NOW, |_| false).unwrap();
            let Some(Outcome::Queued(queued)) = outcome else { panic!("{outcome:?}") };
            assert_eq!(
                (u128::from(queued.ahead), u128::from(queued.conflict.waiters)),
                (waiters - 1, waiters)
            );
            assert_eq!(conn.total_changes() - changes, 1, "one row is written");
            costs.push((stored, read, steps(&conn, &sqls)));
            let version = u64::try_from(waiters).unwrap() + 2;
            assert_eq!(queries::load(&conn, &name).unwrap().unwrap().record.version, version);
            // Requests that may change more take the slow path.
            assert!(
                refresh(&conn, &name, &acquire(1), NOW.plus(Ttl::from_secs(600)), |_| false)
                    .unwrap()
                    .is_none()
            );
            assert!(refresh(&conn, &name, &acquire(1), NOW, |_| true).unwrap().is_none());
            assert!(refresh(&conn, &name, &acquire(waiters + 1), NOW, |_| false).unwrap().is_none());
        }
        assert_eq!(costs[0], costs[1]);
    }
}
