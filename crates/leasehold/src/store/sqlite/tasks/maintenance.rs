//! Recovery of expired leases, archiving and purging of finished tasks, and the effect of a restart of
//! the machine on leases.

use rusqlite::{Connection, params};

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{
    FinishedFilter, Recovered, TaskId, TaskOp, TaskState, TaskTable, Timestamp, WorkerStatus,
};
use crate::store::sqlite::schema::{micros, to_integer};

/// Operation on finished tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum RetentionOp {
    Archive,
    Purge,
}

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

    pub(super) fn expire(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut expired = self.query(sql::EXPIRED, params![micros(self.now), limit])?;
        expired.sort_unstable_by_key(|task| (task.deadline(), task.id));
        expired.truncate(limit as usize);
        for expired in expired {
            // The expiry of another task may have made this one the head of its lock.
            let Some(mut task) = self.load(&expired.id)? else { continue };
            self.change(&mut task, &TaskOp::Expire)?;
            recovered.count(task.state);
        }
        Ok(recovered)
    }

    /// Archives or purges finished tasks; returns their number.
    pub(super) fn apply_retention(
        &mut self,
        op: RetentionOp,
        filter: &FinishedFilter,
    ) -> rusqlite::Result<u64> {
        let (archived, statements): (&[bool], &[&str]) = match op {
            RetentionOp::Archive => (&[false], &[sql::ARCHIVE]),
            RetentionOp::Purge => (&[false, true], &[sql::DELETE, sql::DELETE_PAYLOAD]),
        };
        let found = self.finished(filter, archived)?;
        for task in &found {
            for sql in statements {
                self.conn.prepare_cached(sql)?.execute([codec::id(&task.id)])?;
            }
            if !task.archived {
                let queue = self.queues.name(self.conn, task.queue)?;
                self.count(&queue, task.state, -1);
            }
        }
        Ok(found.len() as u64)
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
            let values = params![codec::finished_list(*archived), before, queue, state, filter.limit];
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

/// Time in microseconds in which a runner whose deadline was written before a restart of the
/// machine must renew it.
const RUNNER_AFTER_RESTART: i64 = 60_000_000;

/// Adjusts times after a restart of the machine, which has set the clock again. The clock may have
/// jumped in either direction:
/// - workers and runners of other machines are still at work, so each lease gets the whole time of
///   its last extension from now on, and each runner a minute. Nothing shows which of them were
///   processes of this machine, and are dead: these keep their tasks for the same time;
/// - the `run_at` of tasks that could run already would be in the future, should they be returned.
pub(crate) fn rebase_times(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let statements = [
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_list \
         SET lease_expires_at = ?1 + coalesce(ttl, 0), sort = ?1 + coalesce(ttl, 0) WHERE list = 0",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_list SET run_at = ?1 WHERE list = 0 AND run_at > ?1",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_list SET run_at = ?1, tie = ?1 \
         WHERE list > 0 AND list < '' AND tie > ?1",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_list SET run_at = ?1, tie = ?1 \
         WHERE list >= '' AND list < x'' AND tie > ?1",
    ];
    statements.iter().try_for_each(|sql| conn.execute(sql, params![micros(now)]).map(drop))?;
    conn.execute(
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_runner_deadline SET runner_deadline = ?1 \
         WHERE runner_deadline IS NOT NULL AND state < 3",
        params![micros(now).saturating_add(RUNNER_AFTER_RESTART)],
    )
    .map(drop)
}

/// Whether any task has a lease, expired or not, or waits for its runner.
pub(crate) fn has_deadline(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM leasehold_tasks INDEXED BY leasehold_tasks_list WHERE list = 0) \
               OR EXISTS (SELECT 1 FROM leasehold_tasks INDEXED BY leasehold_tasks_runner_deadline \
                   WHERE runner_deadline IS NOT NULL AND state < 3)";
    conn.query_row(sql, [], |row| row.get(0))
}
