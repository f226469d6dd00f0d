//! The rows of a long queue: what is read and written of them, and refreshing one without reading the others.

use rusqlite::{Connection, OptionalExtension, params};

use super::tables::{from_json, micros, to_json, without_tickets};
use crate::model::{
    Acquire, Ask, Conflict, HeldBy, LeaseId, LockName, LockOp, LockRecord, Outcome, Queued, Ticket,
    Timestamp, Ttl,
};
use crate::store::ticket_rows::{LISTED, RowChange, TicketRow, TicketRows};

/// The fourth version of the schema.
pub(super) const TABLE: &str = "
    -- A long queue: one row per ticket, in the order of `rank` and `seq`, so that refreshing one does not write the
    -- others. The lock's `record` says that its tickets are here.
    CREATE TABLE tickets (lock INTEGER NOT NULL, lease_id BLOB NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL,
                          expires_at INTEGER NOT NULL, patience INTEGER NOT NULL, refreshes INTEGER NOT NULL,
                          ticket TEXT NOT NULL, PRIMARY KEY (lock, lease_id)) WITHOUT ROWID;
    CREATE INDEX tickets_in_order ON tickets (lock, rank, seq);
";

/// Reads all tickets into a record that came without them.
pub(super) fn load(conn: &Connection, lock: i64, record: &mut LockRecord) -> rusqlite::Result<TicketRows> {
    let sql = "SELECT lease_id, rank, seq, expires_at, patience, refreshes, ticket FROM tickets \
               WHERE lock = ? ORDER BY rank, seq";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([lock])?;
    let mut found = TicketRows::default();
    while let Some(row) = rows.next()? {
        let number = |at: usize| row.get::<_, i64>(at).map(|number| u64::try_from(number).unwrap_or(0));
        let ticket: Ticket = from_json(row.get_ref(6)?.as_str()?, 6)?;
        let known = TicketRow {
            lease_id: ticket.ask.lease_id,
            rank: row.get(1)?,
            seq: row.get(2)?,
            expires_at: Timestamp::from_micros(number(3)?),
            patience: Ttl::try_from(number(4)?).unwrap_or(ticket.patience),
            refreshes: number(5)?,
        };
        record.waiters.push(Ticket { expires_at: known.expires_at, patience: known.patience, ..ticket });
        record.version += known.refreshes;
        found.0.push(known);
    }
    Ok(found)
}

/// Writes what has changed.
pub(super) fn save(
    conn: &Connection,
    lock: i64,
    record: &LockRecord,
    change: &RowChange,
) -> rusqlite::Result<()> {
    if change.is_new {
        remove_all(conn, lock)?;
    }
    let mut remove = conn.prepare_cached("DELETE FROM tickets WHERE lock = ? AND lease_id = ?")?;
    for id in &change.remove {
        remove.execute(params![lock, key(id)])?;
    }
    let sql = "INSERT OR REPLACE INTO tickets (lock, lease_id, rank, seq, expires_at, patience, refreshes, ticket) \
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let mut put = conn.prepare_cached(sql)?;
    for (place, row) in &change.put {
        let (ends, ticket) = (micros(row.expires_at), to_json(&record.waiters[*place])?);
        let (patience, refreshes) = (number(row.patience.as_micros()), number(row.refreshes));
        put.execute(params![lock, key(&row.lease_id), row.rank, row.seq, ends, patience, refreshes, ticket])?;
    }
    Ok(())
}

/// Removes all rows of a lock.
pub(super) fn remove_all(conn: &Connection, lock: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM tickets WHERE lock = ?")?.execute([lock]).map(drop)
}

/// Refreshes the ticket of a waiter that asks again, if nothing can have ended and nobody in the way is dead: then nothing
/// else would change by the rules. None, and nothing has happened, if they have to decide.
pub(super) fn refresh(
    conn: &Connection,
    name: &LockName,
    op: &LockOp,
    now: Timestamp,
    is_dead: impl Fn(&Ask) -> bool,
) -> rusqlite::Result<Option<Outcome>> {
    let LockOp::Acquire(Acquire { ask, queue: Some(patience), steal_after: None }) = op else {
        return Ok(None);
    };
    // Most locks have no long queue: their records need not be parsed for this.
    let sql = format!("SELECT 1 FROM locks WHERE name = ? AND substr(record, 1, {}) = ?", LISTED.len());
    if !conn.prepare_cached(&sql)?.exists(params![name.as_str(), LISTED])? {
        return Ok(None);
    }
    let Some(lock) = without_tickets(conn, name)? else {
        return Ok(None);
    };
    let holders = &lock.record.holders;
    let first = "SELECT ticket FROM tickets WHERE lock = ? ORDER BY rank, seq LIMIT 1";
    let first: Option<Ticket> = conn
        .prepare_cached(first)?
        .query_row([lock.id], |row| from_json(row.get_ref(0)?.as_str()?, 0))
        .optional()?;
    let is_settled = lock.wake_at.is_some_and(|wake_at| now < wake_at)
        && !holders.iter().any(|lease| lease.ask.lease_id == ask.lease_id || is_dead(&lease.ask))
        && first.is_some_and(|first| !is_dead(&first.ask));
    if !is_settled {
        return Ok(None);
    }
    // The end only moves on, so that `wake_at` stays before it.
    let sql = "UPDATE tickets SET expires_at = ?1, patience = ?2, refreshes = refreshes + 1 \
               WHERE lock = ?3 AND lease_id = ?4 AND expires_at <= ?1 RETURNING rank, seq";
    let values =
        params![micros(now.plus(*patience)), number(patience.as_micros()), lock.id, key(&ask.lease_id)];
    let place: Option<(i64, i64)> =
        conn.prepare_cached(sql)?.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((rank, seq)) = place else {
        return Ok(None);
    };
    let ahead = "SELECT count(*) FROM tickets WHERE lock = ? AND (rank, seq) < (?, ?)";
    let ahead = conn.prepare_cached(ahead)?.query_row(params![lock.id, rank, seq], |row| row.get(0))?;
    let holders = holders.iter().map(HeldBy::from).collect();
    let conflict = Conflict { holders, waiters: lock.listed, full: false };
    Ok(Some(Outcome::Queued(Queued { ahead, conflict })))
}

fn key(id: &LeaseId) -> [u8; 16] {
    *id.as_uuid().as_bytes()
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
