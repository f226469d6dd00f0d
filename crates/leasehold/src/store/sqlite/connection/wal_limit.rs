//! Limit of the write-ahead log while several processes write.
//!
//! SQLite writes the log from its beginning again once all of it was copied into the database. The
//! checkpoints that SQLite makes at commits do not stop other writers, so while several processes
//! write, each of them ends with a rest that was committed meanwhile: the log grows without an end.
//! So a process that finds the log too long copies it in the same way, and then the rest while it
//! holds the write lock, and empties the log.
//!
//! No commit becomes less durable: SQLite syncs the log before it copies pages, and the database
//! before the log is emptied.

use std::time::Duration;

use rusqlite::Connection;

use crate::store::BootInstant;

/// Maximum size of the log, in bytes, by default.
pub(crate) const MAX_LOG: u64 = 16 << 20;

/// Number of commits of a process between two looks at the size of the log.
pub(super) const CHECK_EVERY: u32 = 64;

/// Maximum wait for other processes while the log is emptied.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(200);

/// Maximum number of pages that may be copied under the write lock. If more are left, a reader still
/// needs the old ones, and a wait for it would only stop the writers.
const MAX_REST: i64 = 1000;

/// Number of tries, and the pause between them, while other connections copy the log.
const MAX_TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Pause after an attempt that stopped the writers and did not empty the log, as a multiple of its time.
const PAUSE_PER_ATTEMPT: u32 = 4;

/// Knowledge of this process about the size of the log.
pub(super) struct LogLimit {
    max: u64,
    is_exceeded: bool,
    next_attempt: BootInstant,
}

impl LogLimit {
    pub(super) fn new(max: u64) -> Self {
        Self { max, is_exceeded: false, next_attempt: BootInstant::now() }
    }

    /// Records the size of the log.
    pub(super) fn record(&mut self, size: u64) {
        self.is_exceeded = size > self.max && BootInstant::now() >= self.next_attempt;
    }

    /// Whether the log is to be emptied.
    pub(super) const fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    /// Records an attempt to empty the log, after which there must be a pause.
    pub(super) fn record_attempt(&mut self, pause: Duration) {
        self.is_exceeded = false;
        self.next_attempt = BootInstant::now().plus(pause);
    }
}

/// Copies the log into the database and empties it, unless other processes prevent that. Returns the
/// pause that must follow.
pub(super) fn empty_log(conn: &Connection) -> rusqlite::Result<Duration> {
    for _ in 0..MAX_TRIES {
        // Copies most pages while other processes write.
        let copied = checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)")?;
        if copied.as_ref().is_some_and(|copied| copied.rest > MAX_REST) {
            return Ok(Duration::ZERO);
        }
        let begun = BootInstant::now();
        if copied.is_some()
            && let Some(emptied) = checkpoint(conn, "PRAGMA wal_checkpoint(TRUNCATE)")?
        {
            let took = BootInstant::now().after(begun);
            return Ok(if emptied.is_busy { took * PAUSE_PER_ATTEMPT } else { Duration::ZERO });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Duration::ZERO)
}

struct Checkpoint {
    /// Whether it waited for other connections in vain.
    is_busy: bool,
    /// Number of pages that were not copied.
    rest: i64,
}

/// Copies pages of the log; returns `None` if another connection is copying them.
fn checkpoint(conn: &Connection, sql: &str) -> rusqlite::Result<Option<Checkpoint>> {
    conn.query_row(sql, [], |row| {
        let (pages, copied): (i64, i64) = (row.get("log")?, row.get("checkpointed")?);
        let done = Checkpoint { is_busy: row.get("busy")?, rest: pages - copied };
        Ok((pages >= 0).then_some(done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> Connection {
        let conn = Connection::open(path).unwrap();
        conn.pragma_update(None, "journal_mode", "WAL").unwrap();
        conn.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        conn
    }

    #[test]
    fn a_log_is_emptied_unless_a_reader_needs_much_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let (writer, reader) = (open(&path), open(&path));
        writer.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(100))").unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        let fill = || writer.execute("INSERT INTO t VALUES (zeroblob(5000000))", []).unwrap();
        let size = || std::fs::metadata(folder.path().join("a.db-wal")).unwrap().len();
        fill();
        // Would wait for the reader, if it waited at all.
        writer.busy_timeout(Duration::from_mins(10)).unwrap();
        assert_eq!(empty_log(&writer).unwrap(), Duration::ZERO);
        assert!(size() > 5_000_000);
        reader.execute_batch("COMMIT").unwrap();
        assert_eq!(empty_log(&writer).unwrap(), Duration::ZERO);
        assert_eq!(size(), 0);
        let rows: i64 = reader.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 2);
    }

    #[test]
    fn a_pause_follows_if_the_writers_were_stopped_in_vain() {
        let mut limit = LogLimit::new(100);
        limit.record(100);
        assert!(!limit.is_exceeded());
        limit.record(101);
        assert!(limit.is_exceeded());
        limit.record_attempt(Duration::from_mins(10));
        assert!(!limit.is_exceeded());
        limit.record(101);
        assert!(!limit.is_exceeded(), "the pause is not over");
        limit.record_attempt(Duration::ZERO);
        limit.record(101);
        assert!(limit.is_exceeded());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let (writer, reader) = (open(&path), open(&path));
        writer.execute_batch("CREATE TABLE t (x)").unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        writer.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        writer.busy_timeout(Duration::from_millis(10)).unwrap();
        assert!(empty_log(&writer).unwrap() >= Duration::from_millis(20));
    }
}
