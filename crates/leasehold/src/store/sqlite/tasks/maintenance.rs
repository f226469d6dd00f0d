//! Recovery of expired leases, and archiving and purging of finished tasks.

use rusqlite::params;

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{FinishedFilter, Recovered, TaskId, TaskOp, TaskState, TaskTable, WorkerStatus};
use crate::store::sqlite::codec::{micros, to_integer};

/// Operation on finished tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum RetentionOp {
    /// Archive the tasks.
    Archive,
    /// Delete the tasks.
    Purge,
}

/// Finished task.
struct FinishedTask {
    id: TaskId,
    queue: i64,
    state: TaskState,
    archived: bool,
}

impl TaskTransaction<'_> {
    /// Expires overdue leases, and makes due tasks of all queues ready.
    pub(super) fn recover(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = self.expire(limit)?;
        let now = micros(self.now);
        let due = self.query(sql::ALL_DUE, params![now, TaskTable::PROMOTE])?;
        recovered.promoted = self.make_ready(due)?;
        let dead = now.saturating_sub(to_integer(WorkerStatus::REMEMBERED.as_micros()));
        self.conn.prepare_cached(sql::DELETE_DEAD_WORKERS)?.execute([dead])?;
        Ok(recovered)
    }

    /// Expires up to `limit` overdue leases.
    pub(super) fn expire(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut expired = self.query(sql::EXPIRED, params![micros(self.now), limit])?;
        expired.sort_unstable_by_key(|task| (task.deadline(), task.id));
        expired.truncate(limit as usize);
        for expired in expired {
            // The expiry of another task may have made this one the head of its lock.
            let Some(mut task) = self.load(&expired.id)? else { continue };
            self.change(&mut task, &TaskOp::Expire)?;
            match task.state {
                TaskState::Failed => recovered.failed += 1,
                TaskState::Aborted => recovered.aborted += 1,
                _ => recovered.returned += 1,
            }
        }
        Ok(recovered)
    }

    /// Archives or purges finished tasks; returns their number.
    pub(super) fn apply_retention(
        &mut self,
        op: RetentionOp,
        filter: &FinishedFilter,
    ) -> rusqlite::Result<u64> {
        match op {
            RetentionOp::Archive => self.archive(filter),
            RetentionOp::Purge => self.purge(filter),
        }
    }

    /// Archives finished tasks; returns their number.
    fn archive(&mut self, filter: &FinishedFilter) -> rusqlite::Result<u64> {
        let found = self.finished(filter, &[false])?;
        for task in &found {
            self.conn.prepare_cached(sql::ARCHIVE)?.execute([codec::id(&task.id)])?;
            self.decrement_count(task)?;
        }
        Ok(found.len() as u64)
    }

    /// Deletes finished tasks; returns their number.
    fn purge(&mut self, filter: &FinishedFilter) -> rusqlite::Result<u64> {
        let found = self.finished(filter, &[false, true])?;
        for task in &found {
            self.conn.prepare_cached(sql::DELETE)?.execute([codec::id(&task.id)])?;
            self.conn.prepare_cached(sql::DELETE_PAYLOAD)?.execute([codec::id(&task.id)])?;
            if !task.archived {
                self.decrement_count(task)?;
            }
        }
        Ok(found.len() as u64)
    }

    fn decrement_count(&mut self, task: &FinishedTask) -> rusqlite::Result<()> {
        let queue = self.queues.name(self.conn, task.queue)?;
        self.count(&queue, task.state, -1);
        Ok(())
    }

    /// Returns the oldest matching tasks. The cost depends neither on the number of queues nor on
    /// tasks that finished later.
    fn finished(
        &mut self,
        filter: &FinishedFilter,
        archived: &[bool],
    ) -> rusqlite::Result<Vec<FinishedTask>> {
        let queue = match &filter.queue {
            Some(queue) => match self.queues.id(self.conn, queue)? {
                None => return Ok(Vec::new()),
                known => known,
            },
            None => None,
        };
        let (before, state) = (micros(filter.before), filter.state.map(|state| state as i64));
        let mut select = self.conn.prepare_cached(sql::OLDEST_FINISHED)?;
        let mut found = Vec::new();
        for archived in archived {
            let values = params![archived, before, queue, state, filter.limit];
            let tasks = select.query_map(values, |row| {
                let id = TaskId::from_uuid(codec::uuid(row, 0)?);
                let (queue, state) = (row.get(1)?, codec::state(row.get(2)?)?);
                Ok((row.get::<_, i64>(3)?, FinishedTask { id, queue, state, archived: *archived }))
            })?;
            found.extend(tasks.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        found.sort_unstable_by_key(|(finished_at, task)| (*finished_at, task.id));
        found.truncate(filter.limit as usize);
        Ok(found.into_iter().map(|(_, task)| task).collect())
    }
}
