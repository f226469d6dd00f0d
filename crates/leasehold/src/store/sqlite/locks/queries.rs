//! SQL for records and events. Every statement is a constant; names and texts are parameters.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::row::{InlineEvents, LockRow, read_record};
use crate::model::{Event, LockName, LockRecord, Timestamp};
use crate::store::LockState;
use crate::store::sqlite::schema::{from_json, json, micros};

/// Average number of moved events between prunings. Pruning is random so that processes that write
/// only one event do their share, too.
pub(super) const PRUNE_EVERY: u32 = 8192;
/// Maximum number of events that one pruning deletes: more than are added until the next one, so
/// that the table does not grow.
const MAX_PRUNED: u32 = 2 * PRUNE_EVERY;

const COLUMNS: &str = "SELECT id, record, wake_at, last_event, inline_events FROM leasehold_locks";

pub(super) fn load(conn: &Connection, name: &LockName) -> rusqlite::Result<Option<LockRow>> {
    Ok(rows(conn, &format!("{COLUMNS} WHERE name = ?"), [name.as_str()])?.pop())
}

/// Saves a row. `wake_at` changes only if it would be too late: changing it costs a second page.
pub(super) fn save(conn: &Connection, row: &mut LockRow, now: Timestamp) -> rusqlite::Result<()> {
    let early_enough = match (row.record.next_end(), row.wake_at) {
        // A `wake_at` in the past would make every waiter send its request again after every poll.
        (Some(end), Some(wake_at)) => wake_at <= micros(end) && micros(now) < wake_at,
        (None, Some(_)) => true,
        (Some(_), None) => false,
        (None, None) => row.inline_events.is_empty(),
    };
    match row.id {
        Some(id) if early_enough => {
            let record = row.store_tickets(conn)?;
            let sql = "UPDATE leasehold_locks SET record = ?, last_event = ?, inline_events = ? WHERE id = ?";
            let values = params![record, row.last_event, row.inline_events.as_str(), id];
            conn.prepare_cached(sql)?.execute(values).map(drop)
        }
        _ => save_exact(conn, row, now),
    }
}

/// Saves a row with its exact `wake_at`.
fn save_exact(conn: &Connection, row: &mut LockRow, now: Timestamp) -> rusqlite::Result<()> {
    // The sweep must also find a row that only has inline events.
    let inline_events = (!row.inline_events.is_empty()).then_some(now);
    let wake_at = row.record.next_end().or(inline_events).map(micros);
    let sql = "INSERT INTO leasehold_locks (name, record, wake_at, last_event, inline_events) \
               VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET record = excluded.record, \
               wake_at = excluded.wake_at, last_event = excluded.last_event, inline_events = excluded.inline_events";
    let record = row.store_tickets(conn)?;
    let name = row.record.name.as_str();
    let values = params![name, record, wake_at, row.last_event, row.inline_events.as_str()];
    conn.prepare_cached(sql)?.execute(values)?;
    row.wake_at = wake_at;
    Ok(())
}

/// Moves the inline events of a row to the events table and saves the row with its exact `wake_at`.
pub(crate) fn save_and_move_events(
    conn: &Connection,
    row: &mut LockRow,
    now: Timestamp,
) -> rusqlite::Result<()> {
    move_inline_events(conn, row)?;
    save_exact(conn, row, now)
}

/// Moves the inline events of a lock to the events table; returns their number. Does not save the
/// row.
pub(super) fn move_inline_events(conn: &Connection, row: &mut LockRow) -> rusqlite::Result<u32> {
    let mut moved = 0;
    let sql =
        "INSERT INTO leasehold_events (seq, previous, event) VALUES (?, ?, ?) ON CONFLICT (seq) DO NOTHING";
    let mut insert = conn.prepare_cached(sql)?;
    for (seq, event) in std::mem::take(&mut row.inline_events).lines() {
        let mut seq = row.last_event.map_or(seq, |last| seq.max(last + 1));
        // Two connections assign the same number only if the clock stands still.
        while insert.execute(params![seq, row.last_event, event])? == 0 {
            seq += 1;
        }
        row.last_event = Some(seq);
        moved += 1;
    }
    Ok(moved)
}

/// Numbers of locks and of their events that were moved to the events table.
pub(crate) struct Moved {
    pub(super) locks: u32,
    pub(super) events: u32,
}

/// Moves the inline events of up to `max_locks` locks to the events table. If there were fewer, that
/// table then has all events in order.
pub(crate) fn move_events_of(conn: &Connection, max_locks: u32, now: Timestamp) -> rusqlite::Result<Moved> {
    let sql = format!("{COLUMNS} WHERE wake_at IS NOT NULL AND inline_events <> ''");
    let mut found = readable_rows(conn, &sql, [], max_locks)?.rows;
    let mut events = 0;
    for row in &mut found {
        events += move_inline_events(conn, row)?;
        save_exact(conn, row, now)?;
    }
    Ok(Moved { locks: u32::try_from(found.len()).unwrap_or(u32::MAX), events })
}

/// Whether the newest events of a lock are in its row.
pub(super) fn has_inline_events(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM leasehold_locks WHERE wake_at IS NOT NULL AND inline_events <> '' LIMIT 1";
    conn.prepare_cached(sql)?.exists([])
}

/// Returns the number of the newest event in the events table.
pub(crate) fn newest_event(conn: &Connection) -> rusqlite::Result<i64> {
    let newest: Option<i64> =
        conn.query_row("SELECT max(seq) FROM leasehold_events", [], |row| row.get(0))?;
    Ok(newest.unwrap_or(0))
}

/// Deletes the oldest events: those beyond `keep` and those before `before`. The newest event
/// stays, so that numbers continue from it. Each call does a bounded amount of work; returns whether
/// there may be more.
pub(super) fn prune(conn: &Connection, keep: u32, before: Timestamp) -> rusqlite::Result<bool> {
    let beyond = "SELECT seq FROM leasehold_events ORDER BY seq DESC LIMIT 1 OFFSET ?";
    let beyond: Option<i64> =
        conn.prepare_cached(beyond)?.query_row([keep.max(1)], |row| row.get(0)).optional()?;
    let Some(until) = beyond.max(newest_expired_event(conn, before)?) else {
        return Ok(false);
    };
    let drop = "DELETE FROM leasehold_events WHERE seq <= (SELECT max(seq) FROM \
                (SELECT seq FROM leasehold_events WHERE seq <= ? ORDER BY seq LIMIT ?))";
    let deleted = conn.prepare_cached(drop)?.execute(params![until, MAX_PRUNED])?;
    Ok(deleted >= MAX_PRUNED as usize)
}

/// Returns the newest event that is older than `before`, among the oldest events and except the
/// newest of all.
fn newest_expired_event(conn: &Connection, before: Timestamp) -> rusqlite::Result<Option<i64>> {
    // Events are ordered by time: if the oldest is recent, all are.
    let oldest = "SELECT json_extract(event, '$.at') FROM leasehold_events ORDER BY seq LIMIT 1";
    let oldest: Option<i64> = conn.prepare_cached(oldest)?.query_row([], |row| row.get(0)).optional()?;
    if oldest.is_none_or(|oldest| oldest >= micros(before)) {
        return Ok(None);
    }
    let sql = "SELECT max(seq) FROM (SELECT seq, event FROM leasehold_events ORDER BY seq LIMIT ?) \
               WHERE json_extract(event, '$.at') < ? AND seq < (SELECT max(seq) FROM leasehold_events)";
    conn.prepare_cached(sql)?.query_row(params![MAX_PRUNED, micros(before)], |row| row.get(0))
}

/// Returns rows that have, or recently had, a holder or a waiter.
pub(crate) fn active_rows(conn: &Connection) -> rusqlite::Result<ReadableRows> {
    readable_rows(conn, &format!("{COLUMNS} WHERE wake_at IS NOT NULL"), [], u32::MAX)
}

/// Returns rows with a lease or a ticket that names the processes of its holder. Others are not parsed: a
/// store may have very many. The tickets of a long queue are rows of their own.
pub(super) fn rows_with_process(conn: &Connection) -> rusqlite::Result<Vec<LockRow>> {
    let sql = format!(
        "{COLUMNS} WHERE wake_at IS NOT NULL \
         AND (instr(record, '\"process\":') > 0 OR substr(record, 1, 10) = '{{\"listed\":')"
    );
    Ok(readable_rows(conn, &sql, [], u32::MAX)?.rows)
}

/// Returns rows that may have an expired lease or ticket at `now`.
pub(super) fn due(conn: &Connection, now: Timestamp, limit: u32) -> rusqlite::Result<Vec<LockRow>> {
    let sql = format!("{COLUMNS} INDEXED BY leasehold_locks_wake_at WHERE wake_at <= ? ORDER BY wake_at");
    Ok(readable_rows(conn, &sql, [micros(now)], limit)?.rows)
}

/// Locks without a pending end and without inline events.
pub(super) struct IdleLocks {
    /// Ids and records of the locks that can be read.
    pub(super) locks: Vec<(i64, LockRecord)>,
    /// Name after which the next ones begin; `None` if there are no more.
    pub(super) next: Option<String>,
}

/// Examines the next `limit` idle locks by name.
pub(super) fn idle(conn: &Connection, after: &str, limit: u32) -> rusqlite::Result<IdleLocks> {
    let sql = "SELECT id, record, name FROM leasehold_locks WHERE name > ? AND wake_at IS NULL \
               ORDER BY name LIMIT ?";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query(params![after, limit])?;
    let (mut locks, mut examined, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next()? {
        examined += 1;
        last = Some(row.get(2)?);
        if let Some((record, _)) = skip_unreadable(row.get(0)?, read_record(row, 1))? {
            locks.push((row.get(0)?, record));
        }
    }
    Ok(IdleLocks { locks, next: last.filter(|_| examined == limit) })
}

/// Deletes a lock. Its events stay.
pub(super) fn remove(conn: &Connection, id: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM leasehold_locks WHERE id = ?")?.execute([id]).map(drop)
}

/// Query for one range of a list of locks.
#[derive(Debug, Clone)]
pub(crate) struct LockRange {
    /// Beginning of the names.
    pub(crate) prefix: String,
    /// Name after which the range begins; empty for the first range.
    pub(crate) after: String,
    /// State of the wanted locks. Rows that may be in it are returned.
    pub(crate) state: Option<LockState>,
    pub(crate) limit: u32,
}

/// Maximum number of rows that one query examines, so that other calls run in between.
const MAX_EXAMINED: u32 = 4000;
/// Number of times that the highest character, of four bytes, must follow a prefix to sort after every name
/// with this prefix: a name has at most 255 bytes.
const MAX_REST: usize = 64;

/// Returns up to `limit` records that may be in the state, by name, and the name after which the next range
/// begins; `None` if there is no next range.
pub(super) fn list(
    conn: &Connection,
    range: &LockRange,
    now: Timestamp,
) -> rusqlite::Result<(Vec<LockRecord>, Option<String>)> {
    // One bound on each side, computed here: of two conditions on the name, SQLite uses only one to find
    // the first row. No name contains a control character.
    let from = range.prefix.clone().max(format!("{}\0", range.after));
    let to = range.prefix.clone() + &"\u{10ffff}".repeat(MAX_REST);
    let mut end = None;
    if range.state.is_some() {
        let sql =
            "SELECT name FROM leasehold_locks WHERE name >= ? AND name <= ? ORDER BY name LIMIT 1 OFFSET ?";
        let mut select = conn.prepare_cached(sql)?;
        let found = select.query_row(params![from, to, MAX_EXAMINED - 1], |row| row.get::<_, String>(0));
        end = found.optional()?;
    }
    let sql = format!(
        "{COLUMNS} WHERE name >= ?1 AND name <= ?2 AND {} ORDER BY name LIMIT ?3",
        condition(range.state)
    );
    let found = rows(conn, &sql, params![from, end.as_ref().unwrap_or(&to), range.limit, micros(now)])?;
    let records: Vec<LockRecord> = found.into_iter().map(|row| row.record).collect();
    let is_full = records.len() >= range.limit as usize;
    let next = if is_full { records.last().map(|record| record.name.as_str().to_owned()) } else { end };
    Ok((records, next))
}

/// Returns a condition that holds for every row in a state. It excludes most of the others without parsing
/// their records, in which empty lists and an unknown process are omitted. If a lease has ended, `wake_at` is
/// not after now (?4).
/// All conditions use ?4, so that they have the same parameters.
const fn condition(state: Option<LockState>) -> &'static str {
    match state {
        None => "?4 >= 0",
        Some(LockState::Held | LockState::InUse) => "wake_at IS NOT NULL AND ?4 >= 0",
        Some(LockState::Stale) => {
            "wake_at IS NOT NULL AND (wake_at <= ?4 OR instr(record, '\"process\":') > 0)"
        }
        Some(LockState::Waited) => {
            "wake_at IS NOT NULL AND ?4 >= 0 \
             AND (instr(record, '\"waiters\":') > 0 OR substr(record, 1, 10) = '{\"listed\":')"
        }
        Some(LockState::Free) => "(instr(record, '\"holders\":') = 0 OR wake_at <= ?4)",
    }
}

pub(crate) type Events = Vec<(i64, Event)>;

/// Page of the history of all locks: the events after a number, oldest first, or before it, newest
/// first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventPage {
    pub(crate) from: i64,
    pub(crate) forward: bool,
    pub(crate) limit: u32,
}

impl EventPage {
    /// Converts the number of an event into a key by which the page is sorted, and such a key into
    /// the number.
    fn key(self, number: i64) -> i64 {
        if self.forward { number } else { number.saturating_neg() }
    }
}

/// Returns a page of the events table.
pub(super) fn moved_events(conn: &Connection, page: EventPage) -> rusqlite::Result<Events> {
    let sql = if page.forward {
        "SELECT seq, event FROM leasehold_events WHERE seq > ? ORDER BY seq LIMIT ?"
    } else {
        "SELECT seq, event FROM leasehold_events WHERE seq < ? ORDER BY seq DESC LIMIT ?"
    };
    events(conn, sql, params![page.from, page.limit])
}

/// Returns a page of the events table and of the inline events of all locks, without moving these.
pub(super) fn all_events(conn: &Connection, page: EventPage) -> rusqlite::Result<Events> {
    let moved = moved_events(conn, page)?.into_iter();
    let mut found: BTreeMap<i64, Event> = moved.map(|(seq, event)| (page.key(seq), event)).collect();
    let sql = "SELECT inline_events FROM leasehold_locks WHERE wake_at IS NOT NULL AND inline_events <> ''";
    let mut select = conn.prepare_cached(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        for (seq, event) in InlineEvents::new(row.get(0)?).lines() {
            let mut key = page.key(seq);
            let is_full = found.len() >= page.limit as usize;
            let is_beyond = is_full && found.last_key_value().is_none_or(|(last, _)| key > *last);
            if key <= page.key(page.from) || is_beyond {
                continue;
            }
            // Two connections assign the same number only if the clock stands still.
            while found.contains_key(&key) {
                key += 1;
            }
            found.insert(key, from_json(event, 0)?);
            if is_full {
                found.pop_last();
            }
        }
    }
    Ok(found.into_iter().map(|(key, event)| (page.key(key), event)).collect())
}

fn events(conn: &Connection, sql: &str, params: &[&dyn ToSql]) -> rusqlite::Result<Events> {
    conn.prepare_cached(sql)?.query_map(params, |row| Ok((row.get(0)?, json(row, 1)?)))?.collect()
}

fn rows(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<Vec<LockRow>> {
    let mut found =
        conn.prepare_cached(sql)?.query_map(params, LockRow::read)?.collect::<rusqlite::Result<Vec<_>>>()?;
    found.iter_mut().try_for_each(|row| row.load_tickets(conn))?;
    Ok(found)
}

/// Rows for maintenance, which must not end at one that cannot be read.
pub(crate) struct ReadableRows {
    pub(crate) rows: Vec<LockRow>,
    /// Whether there are others. Operations on their locks fail.
    pub(crate) has_unreadable: bool,
}

/// Returns up to `limit` rows of a query that can be read.
fn readable_rows(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    limit: u32,
) -> rusqlite::Result<ReadableRows> {
    let mut select = conn.prepare_cached(sql)?;
    let mut found = select.query(params)?;
    let mut readable = ReadableRows { rows: Vec::new(), has_unreadable: false };
    while readable.rows.len() < limit as usize
        && let Some(row) = found.next()?
    {
        let read = LockRow::read(row).and_then(|mut lock| lock.load_tickets(conn).map(|()| lock));
        match skip_unreadable(row.get(0)?, read)? {
            Some(lock) => readable.rows.push(lock),
            None => readable.has_unreadable = true,
        }
    }
    Ok(readable)
}

/// Returns `None` for a lock with an invalid value; fails if SQLite does.
fn skip_unreadable<T>(id: i64, read: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match read {
        Err(error) if error.sqlite_error_code().is_none() => {
            tracing::warn!(id, %error, "a lock cannot be read and is left out");
            Ok(None)
        }
        read => read.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Token, TokenFloor};
    use crate::store::sqlite::schema::{TABLES, to_json};
    use crate::store::ticket_rows::LISTED;

    fn filled(names: &[&str]) -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        for name in names {
            let record =
                LockRecord::without_record(LockName::new(*name).unwrap(), TokenFloor::at(Token::default()));
            let sql = "INSERT INTO leasehold_locks (name, record) VALUES (?, ?)";
            conn.execute(sql, params![name, to_json(&record).unwrap()]).unwrap();
        }
        conn
    }

    fn names(conn: &Connection, range: &LockRange) -> (Vec<String>, Option<String>) {
        let (found, next) = list(conn, range, Timestamp::from_micros(1)).unwrap();
        (found.into_iter().map(|record| record.name.as_str().to_owned()).collect(), next)
    }

    #[test]
    fn a_range_has_the_names_after_a_name_and_with_a_prefix() {
        let last = format!("a/{}", "\u{10ffff}".repeat(63));
        let conn = filled(&["a", "a/", "a/b", "a/b/c", "a/ü", &last, "a0", "b"]);
        let range = |prefix: &str, after: &str, limit| {
            let (prefix, after) = (prefix.to_owned(), after.to_owned());
            names(&conn, &LockRange { prefix, after, state: None, limit })
        };
        assert_eq!(range("a/", "", 9).0, ["a/", "a/b", "a/b/c", "a/ü", last.as_str()]);
        assert_eq!(range("a/", "a/b", 9).0, ["a/b/c", "a/ü", last.as_str()]);
        assert_eq!(range("a/", "a", 1), (vec!["a/".to_owned()], Some("a/".to_owned())));
        assert_eq!(range("", "a/ü", 9).0, [last.as_str(), "a0", "b"]);
        assert_eq!(range("c", "", 9), (Vec::new(), None));
        assert_eq!(range("a", "b", 9), (Vec::new(), None));
    }

    /// A record that is not parsed may contain anything.
    #[test]
    fn records_in_other_states_are_not_parsed() {
        let conn = filled(&["a", "z"]);
        let held = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
            INSERT INTO leasehold_locks (name, record, wake_at) SELECT printf('m-%05d', n), 'not JSON \"holders\":', 9 FROM n";
        conn.execute(held, []).unwrap();
        let list = |state, after: &str| {
            let (prefix, after) = (String::new(), after.to_owned());
            names(&conn, &LockRange { prefix, after, state: Some(state), limit: 50 })
        };
        let (found, next) = list(LockState::Waited, "");
        assert_eq!((found.len(), next.as_deref()), (0, Some("m-03999")), "a range ends");
        assert_eq!(list(LockState::Waited, "m-03999"), (Vec::new(), None));
        assert_eq!(list(LockState::Stale, "").0, [""; 0]);
        assert_eq!(rows_with_process(&conn).unwrap().len(), 0);
        assert_eq!(list(LockState::Free, "").0, ["a"]);
        assert_eq!(list(LockState::Free, "m-03999").0, ["z"]);
    }

    /// The events that are written between two prunings are a random number, half as many on average.
    #[test]
    fn one_pruning_deletes_twice_as_many_events_as_are_written_until_the_next() {
        let conn = filled(&[]);
        let insert = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
            INSERT INTO leasehold_events (seq, event) SELECT n, '{\"at\":9}' FROM n";
        conn.execute(insert, [2 * PRUNE_EVERY + 150]).unwrap();
        let count = || -> u32 {
            conn.query_row("SELECT count(*) FROM leasehold_events", [], |row| row.get(0)).unwrap()
        };
        let by_number = || prune(&conn, 100, Timestamp::from_micros(1)).unwrap();
        assert!(by_number(), "there may be more");
        assert_eq!(count(), 150);
        assert!(!by_number());
        assert_eq!(count(), 100);
        assert!(!by_number());
        let by_age = prune(&conn, 100, Timestamp::from_micros(10)).unwrap();
        assert_eq!((by_age, count()), (false, 1), "the newest event stays");
    }

    #[test]
    fn a_long_queue_is_recognized_by_the_first_characters_of_its_record() {
        let condition = condition(Some(LockState::Waited));
        assert!(
            condition.contains(&format!("substr(record, 1, {}) = '{LISTED}'", LISTED.len())),
            "{condition}"
        );
    }
}
