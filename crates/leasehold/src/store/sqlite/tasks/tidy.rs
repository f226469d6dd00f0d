//! Putting finished tasks away, and forgetting them.

use rusqlite::params;

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{Finished, TaskId, TaskState};

/// What to do with finished tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tidy {
    /// Put them away.
    Archive,
    /// Forget them.
    Purge,
}

/// A task that is over.
struct Over {
    id: TaskId,
    queue: i64,
    state: TaskState,
    archived: bool,
}

impl Shelf<'_> {
    /// Does that; says to how many.
    pub(super) fn tidy(&mut self, how: Tidy, which: &Finished) -> rusqlite::Result<u64> {
        match how {
            Tidy::Archive => self.archive(which),
            Tidy::Purge => self.purge(which),
        }
    }

    /// Puts finished tasks away; says how many.
    fn archive(&mut self, which: &Finished) -> rusqlite::Result<u64> {
        let found = self.finished(which, &[false])?;
        for over in &found {
            self.conn.prepare_cached(sql::ARCHIVE)?.execute([rows::id(&over.id)])?;
            self.uncount(over)?;
        }
        Ok(found.len() as u64)
    }

    /// Forgets finished tasks; says how many.
    fn purge(&mut self, which: &Finished) -> rusqlite::Result<u64> {
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

    /// The oldest of those that are meant.
    fn finished(&mut self, which: &Finished, archived: &[bool]) -> rusqlite::Result<Vec<Over>> {
        let queues = match &which.queue {
            Some(queue) => self.queues.number(self.conn, queue)?.into_iter().collect(),
            None => self.all_queues()?,
        };
        let terminal = TaskState::ALL.into_iter().filter(|state| state.is_terminal());
        let states: Vec<TaskState> =
            terminal.filter(|state| which.state.is_none_or(|wanted| wanted == *state)).collect();
        let mut select = self.conn.prepare_cached(sql::OVER)?;
        let mut found = Vec::new();
        for (queue, state, archived) in queues.iter().flat_map(|queue| {
            states
                .iter()
                .flat_map(move |state| archived.iter().map(move |archived| (*queue, *state, *archived)))
        }) {
            let values = params![archived, queue, state as i64, rows::micros(which.before), which.limit];
            let over = select.query_map(values, |row| {
                Ok(Over { id: TaskId::from_uuid(rows::uuid(row, 0)?), queue, state, archived })
            })?;
            found.extend(over.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        found.sort_unstable_by_key(|over| over.id);
        found.truncate(which.limit as usize);
        Ok(found)
    }
}
