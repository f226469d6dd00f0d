//! History of all locks, sweeps, and the removal of old events and idle locks.

use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::apply::all_dead;
use super::queries::{self, EventPage, Events};
use crate::model::{LockName, Timestamp, TokenFloor, Ttl};
use crate::store::BootInstant;
use crate::store::sqlite::connection::Database;
use crate::store::sqlite::options::Durability;
use crate::store::sqlite::schema;

/// Maximum number of locks whose events one transaction of a sweep or of a query moves, so that other
/// calls of this process and other processes can write in between.
const MAX_MOVED_LOCKS: u32 = 1_000;
/// Maximum number of prunings by one sweep.
const MAX_PRUNINGS: u32 = 8;
/// Minimum interval between sweeps of this process that prune: counting the events takes long.
const PRUNE_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum age of an event.
const MAX_EVENT_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);
/// Minimum number of locks that one pass of `forget` examines.
const MIN_EXAMINED: u32 = 2_000;

impl Database {
    /// Returns events of all locks, without writing. A process that only reads finds the newest events in
    /// the rows of the locks; for a process that has written, returns `None` if there are such events:
    /// [`Database::query_all_events`] must move them into the events table first.
    pub(crate) fn read_all_events(&mut self, page: EventPage) -> rusqlite::Result<Option<Events>> {
        let snapshot = self.conn.transaction()?;
        if self.write_state.is_none() {
            return queries::all_events(&snapshot, page).map(Some);
        }
        // Later events have higher numbers than all events of the snapshot.
        if queries::has_inline_events(&snapshot)? {
            return Ok(None);
        }
        queries::moved_events(&snapshot, page).map(Some)
    }

    /// Returns events of all locks, without writing. Takes longer the more locks have events in their rows.
    pub(crate) fn merge_all_events(&mut self, page: EventPage) -> rusqlite::Result<Events> {
        let snapshot = self.conn.transaction()?;
        queries::all_events(&snapshot, page)
    }

    /// Moves the newest events of the locks into the events table, and returns events of all locks. Returns
    /// `None` if there were too many to move: the caller must ask again.
    pub(crate) fn query_all_events(&mut self, page: EventPage) -> rusqlite::Result<Option<Events>> {
        let (found, is_complete) = self.move_events(|conn| queries::moved_events(conn, page))?;
        Ok(is_complete.then_some(found))
    }

    /// Moves the newest events of some locks into the events table; returns whether none are left.
    pub(crate) fn move_some_events(&mut self) -> rusqlite::Result<bool> {
        self.prepare_first_write()?;
        Ok(self.move_events(|_| Ok(()))?.1)
    }

    /// Moves the newest events of up to [`MAX_MOVED_LOCKS`] locks into the events table, and reads that
    /// table in the same transaction. Returns whether the table had all events, too.
    fn move_events<T>(
        &mut self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<(T, bool)> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = self.clock.now();
        let moved = queries::move_events_of(&tx, MAX_MOVED_LOCKS, now)?;
        let found = read(&tx)?;
        tx.commit()?;
        if moved.locks > 0 {
            // The cache check detects only writes of other connections, not those of this one.
            self.cache.clear();
            self.prune_sometimes(moved.events, now)?;
        }
        Ok((found, moved.locks < MAX_MOVED_LOCKS))
    }

    /// Returns up to `limit` locks with an expired or dead lease or ticket. Also corrects rows whose
    /// `wake_at` was too early, and prunes the events from time to time.
    pub(crate) fn find_expired(&mut self, limit: u32) -> rusqlite::Result<Vec<LockName>> {
        self.prepare_first_write()?;
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let now = self.clock.now();
        let mut ended = Vec::new();
        self.cache.clear();
        for mut row in queries::due(&tx, now, limit)? {
            if row.record.next_end().is_some_and(|end| end <= now) {
                ended.push(row.record.name);
            } else {
                queries::save_and_move_events(&tx, &mut row, now)?;
            }
        }
        let live = queries::rows_with_process(&tx)?.into_iter().map(|row| row.record);
        let dead = live.filter(|record| !all_dead(record).is_empty()).map(|record| record.name);
        let found = ended.into_iter().chain(dead).take(limit as usize).collect();
        tx.commit()?;
        let moment = BootInstant::now();
        if moment >= self.prune_due && !self.prune_repeatedly(now)? {
            self.prune_due = moment.plus(PRUNE_INTERVAL);
        }
        Ok(found)
    }

    /// Removes idle locks among the next ones by name and raises the minimum above their tokens in
    /// the same transaction.
    pub(crate) fn forget(&mut self, idle: Ttl, limit: u32) -> rusqlite::Result<u32> {
        let forgotten = self.commit_work(Durability::Holders, |database, now| {
            database.forget_in_transaction(now, idle, limit)
        });
        // The cache check detects only writes of other connections, not those of this one.
        self.cache.clear();
        forgotten
    }

    fn forget_in_transaction(&mut self, now: Timestamp, idle: Ttl, limit: u32) -> rusqlite::Result<u32> {
        let before = TokenFloor::at(schema::token(&self.conn, schema::FORGOTTEN_MIN_TOKEN)?);
        let min_token = before.raised(now, idle);
        let page = queries::idle(&self.conn, &self.forget_after, limit.max(MIN_EXAMINED))?;
        self.forget_after = page.next.unwrap_or_default();
        let mut forgotten = 0;
        for (id, record) in page.locks {
            if forgotten < limit && record.is_forgettable(min_token) {
                queries::remove(&self.conn, id)?;
                forgotten += 1;
            }
        }
        if forgotten > 0 && min_token > before {
            schema::set_token(&self.conn, schema::FORGOTTEN_MIN_TOKEN, min_token.token())?;
        }
        Ok(forgotten)
    }

    /// Removes events beyond the maximum number and age, once per [`queries::PRUNE_EVERY`] moved events
    /// on average.
    pub(super) fn prune_sometimes(&self, moved: u32, now: Timestamp) -> rusqlite::Result<()> {
        if fastrand::u32(..queries::PRUNE_EVERY) < moved {
            self.prune(now)?;
        }
        Ok(())
    }

    /// Removes events beyond the maximum number and age, in transactions between which other processes can
    /// write; returns whether there may be more.
    fn prune_repeatedly(&self, now: Timestamp) -> rusqlite::Result<bool> {
        for _ in 0..MAX_PRUNINGS {
            if !self.prune(now)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes some events beyond the maximum number and age; returns whether there may be more.
    fn prune(&self, now: Timestamp) -> rusqlite::Result<bool> {
        let before = now.as_micros().saturating_sub(MAX_EVENT_AGE.as_micros());
        queries::prune(&self.conn, self.max_events, Timestamp::from_micros(before))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rusqlite::params;

    use super::*;
    use crate::model::{Acquire, Holder, LeaseId, LockOp, LockRecord, LockRequest};
    use crate::store::sqlite::options::SqliteOptions;
    use crate::store::sqlite::schema::to_json;

    /// Opens a new store that keeps 100 events, and that this process has written.
    fn open(folder: &tempfile::TempDir) -> Database {
        let mut options = SqliteOptions::new(folder.path().join("a.db"));
        options.max_events = 100;
        let mut database = Database::open(&options).unwrap().1;
        database.prepare_first_write().unwrap();
        database
    }

    fn count(conn: &Connection, what: &str) -> u32 {
        conn.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn one_call_moves_the_events_of_a_bounded_number_of_locks() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let sql = "INSERT INTO leasehold_locks (name, record, wake_at, inline_events) VALUES (?, ?, 1, ?)";
        database.conn.execute_batch("BEGIN").unwrap();
        for number in 0..=2 * MAX_MOVED_LOCKS {
            let name = LockName::new(format!("lock-{number}")).unwrap();
            let record = LockRecord::without_record(name.clone(), TokenFloor::default());
            let event = format!("{number} {{\"at\":9}}\n");
            let values = params![name.as_str(), to_json(&record).unwrap(), event];
            database.conn.prepare_cached(sql).unwrap().execute(values).unwrap();
        }
        database.conn.execute_batch("COMMIT").unwrap();
        let left = |database: &Database| count(&database.conn, "leasehold_locks WHERE inline_events <> ''");
        assert!(!database.move_some_events().unwrap());
        assert_eq!(left(&database), MAX_MOVED_LOCKS + 1);
        let page = EventPage { from: i64::MAX, forward: true, limit: 1 };
        assert!(database.query_all_events(page).unwrap().is_none(), "the history is not complete yet");
        assert_eq!(left(&database), 1);
        assert!(database.query_all_events(page).unwrap().is_some());
        assert!(database.move_some_events().unwrap());
        assert_eq!(left(&database), 0);
    }

    #[test]
    fn a_sweep_counts_the_events_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let mut events_after_sweep = |from: u32, to: u32, is_due: bool| {
            let sql = "WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2)
                INSERT INTO leasehold_events (seq, event) SELECT n, json_object('at', ?3) FROM n";
            let now = schema::micros(database.clock.now());
            database.conn.execute(sql, params![from, to, now]).unwrap();
            if is_due {
                database.prune_due = BootInstant::now();
            }
            database.find_expired(10).unwrap();
            count(&database.conn, "leasehold_events")
        };
        assert_eq!(events_after_sweep(1, 300, false), 100, "the first sweep is due");
        assert_eq!(events_after_sweep(301, 350, false), 150);
        assert_eq!(events_after_sweep(351, 400, true), 100);
    }

    #[test]
    fn a_lock_that_cannot_be_read_does_not_stop_maintenance() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let lease_id = LeaseId::from_uuid(uuid::Uuid::from_u128(1));
        let request = LockRequest::new(lease_id, Holder::new("ada").unwrap(), Ttl::from_secs(1));
        let request = Arc::new(request);
        let record =
            |name: &str| LockRecord::without_record(LockName::new(name).unwrap(), TokenFloor::default());
        let mut held = record("held");
        let acquire = LockOp::Acquire(Acquire { request, queue: None, steal_after: None });
        held.apply(&acquire, Timestamp::from_micros(1));
        let (held, unused) = (to_json(&held).unwrap(), to_json(&record("unused")).unwrap());
        let bad = "not JSON \"process\":";
        for (name, record, wake_at, inline_events) in [
            ("bad", bad, Some(1), "1 {\"at\":9}\n"),
            ("bad-unused", bad, None, ""),
            ("held", held.as_str(), Some(2), "2 {\"at\":9}\n"),
            ("unused", unused.as_str(), None, ""),
        ] {
            let sql =
                "INSERT INTO leasehold_locks (name, record, wake_at, inline_events) VALUES (?, ?, ?, ?)";
            database.conn.execute(sql, params![name, record, wake_at, inline_events]).unwrap();
        }
        assert!(database.move_some_events().unwrap());
        assert_eq!(count(&database.conn, "leasehold_events"), 1);
        assert_eq!(database.find_expired(1).unwrap(), [LockName::new("held").unwrap()]);
        assert_eq!(database.forget(Ttl::from_secs(1), 10).unwrap(), 1);
        assert_eq!(count(&database.conn, "leasehold_locks"), 3);
    }
}
