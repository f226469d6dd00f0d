//! Tasks with the numbers of their rows, and those that this process has leased.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use rusqlite::Connection;

use crate::model::{Task, TaskId};

/// Task with the numbers of its row and its queue. The number of a row changes only when the whole
/// file is rewritten.
#[derive(Debug, Clone)]
pub(super) struct StoredTask {
    pub(super) rowid: i64,
    pub(super) queue_id: i64,
    pub(super) task: Task,
}

impl Deref for StoredTask {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.task
    }
}

impl DerefMut for StoredTask {
    fn deref_mut(&mut self) -> &mut Task {
        &mut self.task
    }
}

/// Maximum number of leased tasks in memory.
const MAX_LEASED: usize = 1024;

/// Tasks that this process has leased, as they are stored: settling them needs no read. Every save
/// of a task removes it from here, and a write of another connection removes all.
#[derive(Debug, Default)]
pub(crate) struct LeasedTasks {
    data_version: i64,
    tasks: HashMap<TaskId, StoredTask>,
}

impl LeasedTasks {
    /// Forgets the tasks if another connection has written. Must be called in a write transaction.
    pub(crate) fn check(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.data_version {
            self.tasks.clear();
            self.data_version = version;
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, task: StoredTask) {
        if self.tasks.len() < MAX_LEASED {
            self.tasks.insert(task.id, task);
        }
    }

    pub(super) fn remove(&mut self, id: &TaskId) -> Option<StoredTask> {
        self.tasks.remove(id)
    }

    pub(crate) fn clear(&mut self) {
        self.tasks.clear();
    }
}
