//! Rows as this connection last wrote them, so that a lock that is used again need not be read and parsed again.

use std::collections::HashMap;

use rusqlite::Connection;

use super::tables::LockRow;
use crate::model::LockName;

/// More locks than this are not remembered.
const MOST: usize = 1024;

/// Rows as they are in the database. Only to be used inside a transaction that holds the write lock.
#[derive(Default)]
pub(super) struct Cache {
    rows: HashMap<LockName, LockRow>,
    /// Changes when any other connection, in this process or another, has written.
    data_version: i64,
}

impl Cache {
    /// Forgets everything if somebody else has written since. To be called first in each transaction.
    pub(super) fn check(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.data_version {
            self.rows.clear();
            self.data_version = version;
        }
        Ok(())
    }

    /// Whether a row is remembered.
    pub(super) fn has(&self, name: &LockName) -> bool {
        self.rows.contains_key(name)
    }

    /// Takes a row out: whoever changes it puts it back once the change is committed, or not at all.
    pub(super) fn take(&mut self, name: &LockName) -> Option<LockRow> {
        self.rows.remove(name)
    }

    /// Remembers a row that is as it is in the database.
    pub(super) fn put(&mut self, row: LockRow) {
        if row.is_stored() {
            if self.rows.len() >= MOST {
                self.rows.clear();
            }
            self.rows.insert(row.record.name.clone(), row);
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }
}
