//! Row of a lock, with its newest events inline, and the cache of rows.

use std::collections::HashMap;
use std::fmt::Write;

use rusqlite::{Connection, Row};

use super::tickets;
use crate::model::{Event, LockName, LockRecord, Timestamp, TokenFloor};
use crate::store::sqlite::schema::{from_json, json, micros, to_json};
use crate::store::ticket_rows::{LONG_QUEUE, Layout, Listed, TicketRows, is_listed};

pub(crate) struct LockRow {
    /// Id of a lock that is in the database.
    pub(super) id: Option<i64>,
    pub(crate) record: LockRecord,
    pub(super) wake_at: Option<i64>,
    /// Number of the newest event that has moved to the events table.
    pub(super) last_event: Option<i64>,
    pub(super) inline_events: InlineEvents,
    /// Tickets as stored, if they are rows of their own.
    tickets: Option<TicketRows>,
    /// Maximum number of tickets that are stored inside the record; longer queues are stored as
    /// rows.
    pub(super) long_queue: usize,
}

impl LockRow {
    /// Returns the row of a lock that is not stored.
    pub(super) fn new(name: LockName, min_token: TokenFloor) -> Self {
        let record = LockRecord::without_record(name, min_token);
        Self {
            id: None,
            record,
            wake_at: None,
            last_event: None,
            inline_events: InlineEvents::default(),
            tickets: None,
            long_queue: LONG_QUEUE,
        }
    }

    /// Loads the tickets, if they are rows of their own.
    pub(super) fn load_tickets(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if let (Some(id), Some(rows)) = (self.id, &mut self.tickets) {
            *rows = tickets::load(conn, id, &mut self.record)?;
        }
        Ok(())
    }

    /// Writes the changed tickets, if they are or become rows; returns the record in the form of
    /// its column.
    pub(super) fn store_tickets(&mut self, conn: &Connection) -> rusqlite::Result<String> {
        // A lock that is not stored yet has no id for rows to refer to.
        let Some(id) = self.id else { return to_json(&self.record) };
        match Layout::choose(&self.record, self.tickets.as_ref(), self.long_queue) {
            Layout::Inline => {
                if self.tickets.take().is_some() {
                    tickets::remove_all(conn, id)?;
                }
                to_json(&self.record)
            }
            Layout::Rows(change) => {
                tickets::save(conn, id, &self.record, &change)?;
                let record = to_json(&change.listed(&self.record))?;
                self.tickets = Some(change.rows);
                Ok(record)
            }
        }
    }

    /// Appends events to the history of the lock. They are written with the row.
    pub(crate) fn append_events(
        &mut self,
        events: &[Event],
        now: Timestamp,
        numbers: &mut EventNumbers,
    ) -> rusqlite::Result<()> {
        for event in events {
            let newest = self.inline_events.last().or(self.last_event);
            self.inline_events.push(numbers.next(now, newest), event)?;
        }
        Ok(())
    }

    /// Reads a row. If its tickets are rows of their own, `LockRow::load_tickets` must be called next.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (record, is_listed) = read_record(row, 1)?;
        Ok(Self {
            id: row.get(0)?,
            record,
            tickets: is_listed.then(TicketRows::default),
            long_queue: LONG_QUEUE,
            wake_at: row.get(2)?,
            last_event: row.get(3)?,
            inline_events: InlineEvents::new(row.get(4)?),
        })
    }
}

/// Reads a record column; returns the record and whether its tickets are rows.
pub(super) fn read_record(row: &Row<'_>, column: usize) -> rusqlite::Result<(LockRecord, bool)> {
    if is_listed(row.get_ref(column)?.as_str()?) {
        return Ok((json::<Listed>(row, column)?.record, true));
    }
    Ok((json(row, column)?, false))
}

/// Size in bytes above which the inline events move to the events table. With this size they
/// and their record stay within one page of the file.
const MAX_INLINE_BYTES: usize = 2600;

/// Newest events of a lock: one line per event, with its number and the event as JSON.
#[derive(Default)]
pub(super) struct InlineEvents {
    text: String,
    /// Number of the newest of these events.
    last: Option<i64>,
}

impl InlineEvents {
    pub(super) fn new(text: String) -> Self {
        let last = text.lines().next_back().and_then(split).map(|(seq, _)| seq);
        Self { text, last }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn is_long(&self) -> bool {
        self.text.len() > MAX_INLINE_BYTES
    }

    pub(super) fn push(&mut self, seq: i64, event: &Event) -> rusqlite::Result<()> {
        let event = to_json(event)?;
        let _ = write!(self.text, "{seq} "); // Writing to a string cannot fail.
        self.text.push_str(&event);
        self.text.push('\n');
        self.last = Some(seq);
        Ok(())
    }

    pub(super) fn last(&self) -> Option<i64> {
        self.last
    }

    /// Returns numbers and events as stored, oldest first.
    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = (i64, &str)> {
        self.text.lines().filter_map(split)
    }

    /// Returns numbers and events, newest first.
    pub(super) fn events(&self) -> rusqlite::Result<Vec<(i64, Event)>> {
        self.lines().rev().map(|(seq, event)| Ok((seq, from_json(event, 0)?))).collect()
    }
}

fn split(line: &str) -> Option<(i64, &str)> {
    let (seq, event) = line.split_once(' ')?;
    Some((seq.parse().ok()?, event))
}

/// Assigns numbers to the events of one connection: in the order in which they happen, also across
/// connections.
///
/// A number is the engine's time in microseconds times `PER_MICRO`. A writer reads that time while
/// holding the write lock, so its time is later than that of every earlier writer.
pub(crate) struct EventNumbers {
    last: i64,
}

/// Number of event numbers per microsecond.
const PER_MICRO: i64 = 1024;

impl EventNumbers {
    /// Continues after `last`. After a restart of the machine the clock may be behind the events.
    pub(crate) fn after(last: i64) -> Self {
        Self { last }
    }

    /// Returns the next number for a lock whose newest event has the number `newest`.
    pub(super) fn next(&mut self, now: Timestamp, newest: Option<i64>) -> i64 {
        let now = micros(now).saturating_mul(PER_MICRO);
        self.last = now.max(self.last + 1).max(newest.map_or(0, |newest| newest + 1));
        self.last
    }
}

/// Maximum number of cached locks.
const MAX_CACHED_LOCKS: usize = 1024;

/// Rows as stored in the database. Must be used only inside a transaction that holds the write
/// lock.
#[derive(Default)]
pub(crate) struct RowCache {
    /// A caller that changes a row removes it first, and puts it back once the change is committed.
    pub(super) rows: HashMap<LockName, LockRow>,
    /// SQLite's data version: changes when any other connection, in this process or another, has
    /// written.
    data_version: i64,
}

impl RowCache {
    /// Clears the cache if another connection has written since. Must be called first in each
    /// transaction.
    pub(super) fn check(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.data_version {
            self.rows.clear();
            self.data_version = version;
        }
        Ok(())
    }

    /// Caches a row that equals the one in the database.
    pub(super) fn put(&mut self, row: LockRow) {
        if row.id.is_some() {
            if self.rows.len() >= MAX_CACHED_LOCKS {
                self.rows.clear();
            }
            self.rows.insert(row.record.name.clone(), row);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_whatever_the_clock_does() {
        let mut numbers = EventNumbers::after(5);
        let at = Timestamp::from_micros;
        let given = [
            numbers.next(at(0), None),
            numbers.next(at(1), None),
            numbers.next(at(1), Some(9_000)),
            numbers.next(at(0), None),
        ];
        assert_eq!(given, [6, 1024, 9_001, 9_002]);
    }
}
