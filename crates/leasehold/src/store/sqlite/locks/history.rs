//! History of one lock, read in parts: its inline events, and then the chain of its events.

use std::collections::VecDeque;

use rusqlite::{Connection, OptionalExtension, params};

use super::queries::{self, EventPage, Events};
use crate::model::{Event, LockName};
use crate::store::sqlite::schema::json;

/// Maximum number of events of the chain that one part reads, so that other calls run in between.
const MAX_CHAIN: u32 = 1000;
/// Maximum number of events of all locks that one part examines.
const MAX_EXAMINED: u32 = 4000;

const EVENT: &str = "SELECT previous, event FROM leasehold_events WHERE seq = ?";
/// Finds the event before an event of the lock.
const PREVIOUS: &str =
    "SELECT previous FROM leasehold_events WHERE seq = ? AND json_extract(event, '$.lock') = ?";
const NEWER: &str = "SELECT seq, json_extract(event, '$.lock') IS ?2, event FROM leasehold_events \
                     WHERE seq > ?1 ORDER BY seq LIMIT ?3";
const OLDER: &str = "SELECT seq, json_extract(event, '$.lock') IS ?2, event FROM leasehold_events \
                     WHERE seq < ?1 ORDER BY seq DESC LIMIT ?3";

/// Search for a page of the history of one lock.
pub(crate) struct LockHistory {
    lock: LockName,
    page: EventPage,
    next: Step,
    /// Events in the order of the page. A chain is read from its newest event: if the page goes forward,
    /// these are the oldest so far.
    found: VecDeque<(i64, Event)>,
}

/// Next step of a search.
enum Step {
    /// Read the row of the lock.
    Row,
    /// Read the chain from this event on.
    Chain(i64),
    /// Examine the events of all locks after this one, in the direction of the page: a lock without a
    /// row has no chain.
    All(i64),
    /// All events of the page were found.
    End,
}

impl LockHistory {
    pub(crate) fn new(lock: LockName, page: EventPage) -> Self {
        Self { lock, page, next: Step::Row, found: VecDeque::new() }
    }

    pub(crate) const fn is_complete(&self) -> bool {
        matches!(self.next, Step::End)
    }

    pub(crate) fn into_events(self) -> Events {
        self.found.into()
    }

    /// Continues the search, with a bounded amount of work.
    pub(crate) fn advance(mut self, conn: &Connection) -> rusqlite::Result<Self> {
        if matches!(self.next, Step::Row) {
            self.next = self.read_row(conn)?;
        }
        self.next = match self.next {
            Step::Chain(newest) => self.read_chain(conn, newest)?,
            Step::All(after) => self.examine(conn, after)?,
            Step::Row | Step::End => Step::End,
        };
        Ok(self)
    }

    /// Reads the inline events.
    fn read_row(&mut self, conn: &Connection) -> rusqlite::Result<Step> {
        let Some(row) = queries::load(conn, &self.lock)? else {
            return Ok(Step::All(self.page.from));
        };
        if !self.page.forward {
            // The next page of a long chain does not begin with its newest event.
            let values = params![self.page.from, self.lock.as_str()];
            let found = conn.prepare_cached(PREVIOUS)?.query_row(values, |row| row.get(0)).optional()?;
            if let Some(previous) = found {
                return Ok(chain(previous));
            }
        }
        for (seq, event) in row.inline_events.events()? {
            if !self.take(seq, event) {
                return Ok(Step::End);
            }
        }
        Ok(chain(row.last_event))
    }

    fn read_chain(&mut self, conn: &Connection, newest: i64) -> rusqlite::Result<Step> {
        let mut select = conn.prepare_cached(EVENT)?;
        let mut next = Some(newest);
        for _ in 0..MAX_CHAIN {
            let Some(seq) = next else { return Ok(Step::End) };
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, json(row, 1)?));
            // The oldest events were deleted.
            let Some((previous, event)) = select.query_row([seq], read).optional()? else {
                return Ok(Step::End);
            };
            if !self.take(seq, event) {
                return Ok(Step::End);
            }
            next = previous;
        }
        Ok(chain(next))
    }

    /// Takes the next event from the newest on, if it belongs to the page; returns whether an older one may
    /// belong to it.
    fn take(&mut self, seq: i64, event: Event) -> bool {
        let EventPage { from, forward, limit } = self.page;
        if forward {
            if seq <= from {
                return false;
            }
            self.found.push_front((seq, event));
            self.found.truncate(limit as usize);
            return true;
        }
        if seq < from {
            self.found.push_back((seq, event));
        }
        self.found.len() < limit as usize
    }

    fn examine(&mut self, conn: &Connection, after: i64) -> rusqlite::Result<Step> {
        let mut select = conn.prepare_cached(if self.page.forward { NEWER } else { OLDER })?;
        let mut rows = select.query(params![after, self.lock.as_str(), MAX_EXAMINED])?;
        let (mut examined, mut last) = (0, after);
        while let Some(row) = rows.next()? {
            last = row.get(0)?;
            examined += 1;
            if row.get::<_, bool>(1)? {
                self.found.push_back((last, json(row, 2)?));
                if self.found.len() >= self.page.limit as usize {
                    return Ok(Step::End);
                }
            }
        }
        Ok(if examined < MAX_EXAMINED { Step::End } else { Step::All(last) })
    }
}

/// Returns the step that reads a chain, if it has an event.
fn chain(newest: Option<i64>) -> Step {
    newest.map_or(Step::End, Step::Chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventKind, Holder, LeaseId, LockRecord, Mode, Slots, Timestamp, Token, TokenFloor};
    use crate::store::sqlite::schema::{TABLES, to_json};

    const PAGE: u32 = 100;

    fn event(lock: &LockName) -> Event {
        Event {
            at: Timestamp::from_micros(9),
            lock: lock.clone(),
            kind: EventKind::Acquired,
            token: Token::default(),
            lease_id: LeaseId::from_uuid(uuid::Uuid::nil()),
            holder: Holder::new("ada").unwrap(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            after_micros: 0,
            renewals: 0,
            until: None,
            by: None,
            reason: None,
        }
    }

    /// Returns tables with events of two locks by turns, the first of which has a row if `has_row` is set.
    fn filled(events: i64, has_row: bool) -> (Connection, LockName) {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        let (lock, other) = (LockName::new("lock").unwrap(), LockName::new("other").unwrap());
        let sql = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
            INSERT INTO leasehold_events (seq, previous, event)
            SELECT n, iif(n > 2, n - 2, NULL), iif(n % 2 = 1, ?2, ?3) FROM n";
        let texts = [&lock, &other].map(|lock| to_json(&event(lock)).unwrap());
        conn.execute(sql, params![events, texts[0], texts[1]]).unwrap();
        if has_row {
            let record = to_json(&LockRecord::without_record(lock.clone(), TokenFloor::default())).unwrap();
            let newest = events - 1 + events % 2;
            let inline = format!("{} {}\n", newest + 2, texts[0]);
            let sql = "INSERT INTO leasehold_locks (name, record, wake_at, last_event, inline_events) \
                       VALUES (?, ?, 1, ?, ?)";
            conn.execute(sql, params![lock.as_str(), record, newest, inline]).unwrap();
        }
        (conn, lock)
    }

    /// Reads a page; returns the numbers of its events and of the parts.
    fn read(conn: &Connection, lock: &LockName, from: i64, forward: bool) -> (Vec<i64>, u32) {
        let mut search = LockHistory::new(lock.clone(), EventPage { from, forward, limit: PAGE });
        let mut parts = 0;
        while !search.is_complete() {
            search = search.advance(conn).unwrap();
            parts += 1;
        }
        (search.into_events().into_iter().map(|(seq, _)| seq).collect(), parts)
    }

    /// Reads all pages in one direction.
    fn read_all(conn: &Connection, lock: &LockName, forward: bool) -> Vec<i64> {
        let (mut all, mut from) = (Vec::new(), if forward { 0 } else { i64::MAX });
        loop {
            let (page, _) = read(conn, lock, from, forward);
            let Some(last) = page.last() else { return all };
            from = *last;
            all.extend(page);
        }
    }

    #[test]
    fn the_pages_of_both_directions_have_all_events_of_the_lock() {
        for (has_row, newest) in [(false, 1001), (true, 1003)] {
            let (conn, lock) = filled(1001, has_row);
            let expected: Vec<i64> = (1..=newest).step_by(2).collect();
            assert_eq!(read_all(&conn, &lock, true), expected);
            let mut backward = read_all(&conn, &lock, false);
            backward.reverse();
            assert_eq!(backward, expected);
        }
    }

    #[test]
    fn a_part_examines_a_bounded_number_of_events() {
        let (conn, lock) = filled(20_000, false);
        assert_eq!(read(&conn, &lock, i64::MAX, false).1, 1);
        let absent = LockName::new("absent").unwrap();
        for (from, forward) in [(i64::MAX, false), (0, true)] {
            let (found, parts) = read(&conn, &absent, from, forward);
            assert_eq!((found.len(), parts), (0, 6));
        }
        let (conn, lock) = filled(20_000, true);
        let (found, parts) = read(&conn, &lock, 0, true);
        assert_eq!((found[0], found.len(), parts), (1, 100, 10));
        // A page in the middle of the chain begins there.
        assert_eq!(read(&conn, &lock, 5001, false), ((0..100).map(|number| 4999 - 2 * number).collect(), 1));
        assert_eq!(read(&conn, &lock, 19_901, true).1, 1);
    }
}
