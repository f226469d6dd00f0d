//! SQLite without leasehold: transactions that write one row, with one connection per client: one sets the
//! holder, one clears it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, OptionalExtension, params};

use super::Client;
use crate::sandbox::Engine;

/// Poll interval for a contended lock.
const POLL: Duration = Duration::from_millis(1);
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, holder TEXT, token INTEGER NOT NULL,
    expires_at INTEGER) WITHOUT ROWID";
const SET: &str =
    "UPDATE locks SET holder = ?2, token = token + 1, expires_at = ?3 WHERE name = ?1 AND holder IS NULL
    RETURNING token";
const CLEAR: &str = "UPDATE locks SET holder = NULL WHERE name = ?1 AND holder = ?2";

pub(crate) fn create(file: &Path, names: &[String]) -> Result<()> {
    let conn = Connection::open(file)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.execute_batch(TABLE)?;
    for name in names {
        conn.execute("INSERT OR IGNORE INTO locks (name, token) VALUES (?, 0)", [name])?;
    }
    Ok(())
}

pub(crate) struct RawSqlite {
    conn: Connection,
    name: String,
    holder: String,
}

impl RawSqlite {
    pub(crate) fn open(file: &Path, engine: Engine, name: String, number: u32) -> Result<Self> {
        let conn = Connection::open(file)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        let synchronous = if engine == Engine::Full { "FULL" } else { "NORMAL" };
        conn.pragma_update(None, "synchronous", synchronous)?;
        Ok(Self { conn, name, holder: format!("bench-{number}") })
    }

    fn set(&self) -> rusqlite::Result<Option<i64>> {
        let expires_at = 1_000_000_000_i64;
        let set = params![self.name, self.holder, expires_at];
        in_transaction(&self.conn, || {
            self.conn.prepare_cached(SET)?.query_row(set, |row| row.get(0)).optional()
        })
    }

    fn clear(&self) -> rusqlite::Result<usize> {
        let clear = params![self.name, self.holder];
        in_transaction(&self.conn, || self.conn.prepare_cached(CLEAR)?.execute(clear))
    }
}

/// Runs the work in a transaction that begins with the lock for writes.
pub(crate) fn in_transaction<T>(
    conn: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let result = work()?;
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(result)
}

/// Its transactions block, so each client has its own thread.
impl Client for RawSqlite {
    async fn acquire(&mut self) -> Result<u64> {
        loop {
            if let Some(token) = self.set()? {
                return Ok(token.unsigned_abs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.clear().map(drop)?)
    }
}
