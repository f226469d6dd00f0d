//! The SQL: records and events in and out. Every statement is a constant; names and texts are parameters.

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, ToSql, params};

use crate::model::{Event, LockName, LockRecord, Timestamp};

/// A lock's row.
pub(super) struct LockRow {
    id: Option<i64>,
    pub(super) record: LockRecord,
    wake_at: Option<i64>,
    pub(super) last_event: Option<i64>,
}

const COLUMNS: &str = "SELECT id, record, wake_at, last_event FROM locks";

impl LockRow {
    pub(super) fn new(name: LockName) -> Self {
        Self { id: None, record: LockRecord::new(name), wake_at: None, last_event: None }
    }

    /// Whether it is in the database, and known by its number.
    pub(super) fn is_stored(&self) -> bool {
        self.id.is_some()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let record = from_json(row.get_ref(1)?.as_str()?, 1)?;
        Ok(Self { id: row.get(0)?, record, wake_at: row.get(2)?, last_event: row.get(3)? })
    }
}

pub(super) fn load(conn: &Connection, name: &LockName) -> rusqlite::Result<Option<LockRow>> {
    let mut select =
        conn.prepare_cached("SELECT id, record, wake_at, last_event FROM locks WHERE name = ?")?;
    select.query_row([name.as_str()], LockRow::read).optional()
}

/// Saves a row. `wake_at` moves only when it would be too late: moving it costs a second page.
pub(super) fn save(conn: &Connection, row: &mut LockRow) -> rusqlite::Result<()> {
    let early_enough = match (row.record.next_end(), row.wake_at) {
        (Some(end), Some(wake_at)) => wake_at <= micros(end),
        (Some(_), None) => false,
        (None, _) => true,
    };
    match row.id {
        Some(id) if early_enough => conn
            .prepare_cached("UPDATE locks SET record = ?, last_event = ? WHERE id = ?")?
            .execute(params![to_json(&row.record)?, row.last_event, id])
            .map(drop),
        _ => save_exact(conn, row),
    }
}

/// Saves a row with the `wake_at` that it should have.
pub(super) fn save_exact(conn: &Connection, row: &mut LockRow) -> rusqlite::Result<()> {
    let wake_at = row.record.next_end().map(micros);
    let sql = "INSERT INTO locks (name, record, wake_at, last_event) VALUES (?, ?, ?, ?) ON CONFLICT (name) \
               DO UPDATE SET record = excluded.record, wake_at = excluded.wake_at, last_event = excluded.last_event";
    conn.prepare_cached(sql)?.execute(params![
        row.record.name.as_str(),
        to_json(&row.record)?,
        wake_at,
        row.last_event
    ])?;
    row.wake_at = wake_at;
    Ok(())
}

/// Writes one event and gives its number.
pub(super) fn append(conn: &Connection, event: &Event, previous: Option<i64>) -> rusqlite::Result<i64> {
    conn.prepare_cached("INSERT INTO events (previous, event) VALUES (?, ?)")?
        .insert(params![previous, to_json(event)?])
}

/// Drops the oldest events: those beyond `keep`, and those before `before`. The newest stays, so that numbers are not
/// used again. A bounded piece of work at a time, and next to none if there is nothing to drop: events are in the order
/// of their time, so if the oldest is young, all are.
pub(super) fn prune(conn: &Connection, keep: u32, before: Timestamp) -> rusqlite::Result<()> {
    // Two subqueries: min and max in one SELECT would read the whole table.
    let ends = "SELECT (SELECT min(seq) FROM events), (SELECT max(seq) FROM events)";
    let ends = conn.prepare_cached(ends)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(first), Some(last)): (Option<i64>, Option<i64>) = ends else {
        return Ok(());
    };
    let mut until = (last - i64::from(keep)).min(last - 1);
    let at = "SELECT json_extract(event, '$.at') FROM events WHERE seq = ?";
    let oldest: i64 = conn.prepare_cached(at)?.query_row([first], |row| row.get(0))?;
    if oldest < micros(before) {
        let old = "SELECT max(seq) FROM (SELECT seq, event FROM events ORDER BY seq LIMIT 4096) \
                   WHERE json_extract(event, '$.at') < ?";
        let old: Option<i64> = conn.prepare_cached(old)?.query_row([micros(before)], |row| row.get(0))?;
        until = until.max(old.unwrap_or(0).min(last - 1));
    }
    if until < first {
        return Ok(());
    }
    conn.prepare_cached("DELETE FROM events WHERE seq <= ?")?.execute([until.min(first + 4095)]).map(drop)
}

/// Rows that have, or had a while ago, a holder or a waiter.
pub(super) fn with_something_live(conn: &Connection) -> rusqlite::Result<Vec<LockRow>> {
    rows(&mut conn.prepare_cached(&format!("{COLUMNS} WHERE wake_at IS NOT NULL"))?, [])
}

/// Rows that may have something to clear away by `now`.
pub(super) fn due(conn: &Connection, now: Timestamp, limit: u32) -> rusqlite::Result<Vec<LockRow>> {
    let sql = "SELECT id, record, wake_at, last_event FROM locks WHERE wake_at <= ? ORDER BY wake_at LIMIT ?";
    rows(&mut conn.prepare_cached(sql)?, params![micros(now), limit])
}

/// Records by name, from `after` on; with `busy`, only those that somebody may hold.
pub(super) fn list(
    conn: &Connection,
    prefix: &str,
    after: &str,
    busy: bool,
    limit: u32,
) -> rusqlite::Result<Vec<LockRecord>> {
    let only = if busy { "AND wake_at IS NOT NULL" } else { "" };
    let sql = format!(
        "{COLUMNS} WHERE name >= ?1 AND name > ?2 AND substr(name, 1, length(?1)) = ?1 {only} ORDER BY name LIMIT ?3"
    );
    let found = rows(&mut conn.prepare_cached(&sql)?, params![prefix, after, limit])?;
    Ok(found.into_iter().map(|row| row.record).collect())
}

/// Events after a number, oldest first.
pub(super) fn events_after(conn: &Connection, after: i64, limit: u32) -> rusqlite::Result<Vec<(i64, Event)>> {
    events(conn, "SELECT seq, event FROM events WHERE seq > ? ORDER BY seq LIMIT ?", params![after, limit])
}

/// Events before a number, newest first.
pub(super) fn events_before(
    conn: &Connection,
    before: i64,
    limit: u32,
) -> rusqlite::Result<Vec<(i64, Event)>> {
    events(
        conn,
        "SELECT seq, event FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?",
        params![before, limit],
    )
}

/// One lock's events before a number, newest first: along the chain.
pub(super) fn chain_before(
    conn: &Connection,
    lock: &LockName,
    before: i64,
    limit: u32,
) -> rusqlite::Result<Vec<(i64, Event)>> {
    let sql = "WITH RECURSIVE chain (seq, previous, event) AS (
            SELECT e.seq, e.previous, e.event FROM events e
              WHERE e.seq = (SELECT last_event FROM locks WHERE name = ?1)
            UNION ALL
            SELECT e.seq, e.previous, e.event FROM events e JOIN chain c ON e.seq = c.previous)
        SELECT seq, event FROM chain WHERE seq < ?2 LIMIT ?3";
    events(conn, sql, params![lock.as_str(), before, limit])
}

fn events(conn: &Connection, sql: &str, params: &[&dyn ToSql]) -> rusqlite::Result<Vec<(i64, Event)>> {
    let mut select = conn.prepare_cached(sql)?;
    let found =
        select.query_map(params, |row| Ok((row.get(0)?, from_json(row.get_ref(1)?.as_str()?, 1)?)))?;
    found.collect()
}

fn rows(select: &mut CachedStatement<'_>, params: impl rusqlite::Params) -> rusqlite::Result<Vec<LockRow>> {
    select.query_map(params, LockRow::read)?.collect()
}

fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn to_json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn from_json<T: for<'de> serde::Deserialize<'de>>(text: &str, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

fn unreadable(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}
