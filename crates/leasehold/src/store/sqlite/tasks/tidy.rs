//! Archiving and purging of finished tasks.

use rusqlite::params;

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{FinishedFilter, TaskId, TaskState};

/// Operation on finished tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tidy {
    /// Archive the tasks.
    Archive,
    /// Delete the tasks.
    Purge,
}

/// Finished task.
struct Over {
    id: TaskId,
    queue: i64,
    state: TaskState,
    archived: bool,
}

impl Shelf<'_> {
    /// Archives or purges finished tasks; returns their number.
    pub(super) fn tidy(&mut self, how: Tidy, which: &FinishedFilter) -> rusqlite::Result<u64> {
        match how {
            Tidy::Archive => self.archive(which),
            Tidy::Purge => self.purge(which),
        }
    }

    /// Archives finished tasks; returns their number.
    fn archive(&mut self, which: &FinishedFilter) -> rusqlite::Result<u64> {
        let found = self.finished(which, &[false])?;
        for over in &found {
            self.conn.prepare_cached(sql::ARCHIVE)?.execute([rows::id(&over.id)])?;
            self.uncount(over)?;
        }
        Ok(found.len() as u64)
    }

    /// Deletes finished tasks; returns their number.
    fn purge(&mut self, which: &FinishedFilter) -> rusqlite::Result<u64> {
        let found = self.finished(which, &[false, true])?;
        for over in &found {
            self.conn.prepare_cached(sql::DELETE)?.execute([rows::id(&over.id)])?;
            self.conn.prepare_cached(sql::DELETE_PAYLOAD)?.execute([rows::id(&over.id)])?;
            if !over.archived {
                self.uncount(over)?;
            }
        }
        Ok(found.len() as u64)
    }

    fn uncount(&mut self, over: &Over) -> rusqlite::Result<()> {
        let queue = self.queues.name(self.conn, over.queue)?;
        self.count(&queue, over.state, -1);
        Ok(())
    }

    /// Returns the oldest matching tasks. The cost depends neither on the number of queues nor on
    /// tasks that finished later.
    fn finished(&mut self, which: &FinishedFilter, archived: &[bool]) -> rusqlite::Result<Vec<Over>> {
        let queue = match &which.queue {
            Some(queue) => match self.queues.number(self.conn, queue)? {
                None => return Ok(Vec::new()),
                known => known,
            },
            None => None,
        };
        let (before, state) = (rows::micros(which.before), which.state.map(|state| state as i64));
        let mut select = self.conn.prepare_cached(sql::OVER)?;
        let mut found = Vec::new();
        for archived in archived {
            let values = params![archived, before, queue, state, which.limit];
            let over = select.query_map(values, |row| {
                let id = TaskId::from_uuid(rows::uuid(row, 0)?);
                let (queue, state) = (row.get(1)?, rows::state(row.get(2)?)?);
                Ok((row.get::<_, i64>(3)?, Over { id, queue, state, archived: *archived }))
            })?;
            found.extend(over.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        found.sort_unstable_by_key(|(finished_at, over)| (*finished_at, over.id));
        found.truncate(which.limit as usize);
        Ok(found.into_iter().map(|(_, over)| over).collect())
    }
}
