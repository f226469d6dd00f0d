//! Cache of rows as this connection last wrote them, which saves reading and parsing a lock again.

use std::collections::HashMap;

use rusqlite::Connection;

use super::queries::LockRow;
use crate::model::LockName;

/// Maximum number of cached locks.
const MAX_LOCKS: usize = 1024;

/// Rows as stored in the database. Must be used only inside a transaction that holds the write
/// lock.
#[derive(Default)]
pub(in crate::store::sqlite) struct RowCache {
    rows: HashMap<LockName, LockRow>,
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

    /// Whether the row of `name` is cached.
    pub(super) fn contains(&self, name: &LockName) -> bool {
        self.rows.contains_key(name)
    }

    /// Removes and returns a row. A caller that changes the row puts it back once the change is
    /// committed, or not at all.
    pub(super) fn take(&mut self, name: &LockName) -> Option<LockRow> {
        self.rows.remove(name)
    }

    /// Caches a row that equals the one in the database.
    pub(super) fn put(&mut self, row: LockRow) {
        if row.is_stored() {
            if self.rows.len() >= MAX_LOCKS {
                self.rows.clear();
            }
            self.rows.insert(row.record.name.clone(), row);
        }
    }

    pub(in crate::store::sqlite) fn clear(&mut self) {
        self.rows.clear();
    }
}
