//! Recovery of expired leases, archiving and purging of finished tasks, and the effect of a restart of
//! the machine on leases.

use std::collections::VecDeque;

use rusqlite::{Connection, params};
use uuid::Uuid;

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{
    FinishedFilter, Recovered, TaskId, TaskOp, TaskState, TaskTable, Timestamp, WorkerStatus,
};
use crate::store::sqlite::schema::{micros, to_integer};

/// Maximum number of finished tasks that one query examines, so that other calls run in between.
pub(super) const MAX_EXAMINED: u32 = 4000;

/// Operation on finished tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum RetentionOp {
    Archive,
    Purge,
}

/// Finished task, as it was found in a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinishedTask {
    finished_at: i64,
    id: TaskId,
    queue: i64,
    state: TaskState,
    archived: bool,
}

/// Search of one list of finished tasks, from the oldest on.
#[derive(Debug, Clone)]
pub(super) struct FinishedSearch {
    archived: bool,
    /// Last entry that was examined; `None` at the end of the list.
    after: Option<(i64, TaskId)>,
    /// Matching tasks that were found and not taken yet, the oldest first.
    found: VecDeque<FinishedTask>,
}

impl FinishedSearch {
    /// Returns the searches for an operation, among the tasks that did not finish before `since`.
    pub(super) fn of(op: RetentionOp, since: i64) -> Vec<Self> {
        let lists: &[bool] = match op {
            RetentionOp::Archive => &[false],
            RetentionOp::Purge => &[false, true],
        };
        let start = Some((since, TaskId::from_uuid(Uuid::nil())));
        let search = |archived: &bool| Self { archived: *archived, after: start, found: VecDeque::new() };
        lists.iter().map(search).collect()
    }

    /// Whether the search must continue before the oldest `wanted` tasks are known.
    pub(super) fn needs_more(&self, wanted: usize) -> bool {
        self.after.is_some() && self.found.len() < wanted
    }

    /// Takes the oldest of all found tasks, up to `wanted`.
    pub(super) fn take(searches: &mut [Self], wanted: usize) -> Vec<FinishedTask> {
        let mut taken = Vec::new();
        while taken.len() < wanted {
            let nonempty = searches.iter_mut().filter(|search| !search.found.is_empty());
            let first = |search: &&mut Self| search.found.front().map(|task| (task.finished_at, task.id));
            let Some(oldest) = nonempty.min_by_key(first) else { break };
            taken.extend(oldest.found.pop_front());
        }
        taken
    }
}

impl TaskTransaction<'_> {
    /// Expires overdue leases, and makes due tasks of all queues ready.
    pub(super) fn recover(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = self.expire(limit)?;
        let now = micros(self.now);
        let due = self.query(sql::ALL_DUE, params![now, TaskTable::MAX_PROMOTED])?;
        recovered.promoted = self.make_ready(due)?;
        let dead = now.saturating_sub(to_integer(WorkerStatus::LISTED_FOR.as_micros()));
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

    /// Continues a search, up to `wanted` found tasks. Examines at most [`MAX_EXAMINED`] tasks: the list has
    /// the tasks of all queues.
    pub(super) fn search_finished(
        &mut self,
        filter: &FinishedFilter,
        mut search: FinishedSearch,
        wanted: usize,
    ) -> rusqlite::Result<FinishedSearch> {
        let Some((after, after_id)) = search.after.take() else { return Ok(search) };
        let queue = match &filter.queue {
            Some(queue) => match self.queues.id(self.conn, queue)? {
                None => return Ok(search),
                known => known,
            },
            None => None,
        };
        let is_wanted = |id: i64, state: TaskState| {
            queue.is_none_or(|queue| queue == id) && filter.state.is_none_or(|wanted| wanted == state)
        };
        let mut select = self.conn.prepare_cached(sql::FINISHED)?;
        let list = codec::finished_list(search.archived);
        let before = micros(filter.before);
        let mut rows = select.query(params![list, before, after, codec::id(&after_id), MAX_EXAMINED])?;
        let mut examined = 0;
        while let Some(row) = rows.next()? {
            let (id, finished_at) = (TaskId::from_uuid(codec::uuid(row, 0)?), row.get(3)?);
            let (queue, state) = (row.get(1)?, codec::state(row.get(2)?)?);
            if is_wanted(queue, state) {
                let archived = search.archived;
                search.found.push_back(FinishedTask { finished_at, id, queue, state, archived });
            }
            examined += 1;
            if examined == MAX_EXAMINED || search.found.len() >= wanted {
                search.after = Some((finished_at, id));
                break;
            }
        }
        Ok(search)
    }

    /// Archives or purges tasks, except those that have changed since they were found; returns their number.
    pub(super) fn apply_retention(
        &mut self,
        op: RetentionOp,
        found: &[FinishedTask],
    ) -> rusqlite::Result<u64> {
        let sql = match op {
            RetentionOp::Archive => sql::ARCHIVE,
            RetentionOp::Purge => sql::DELETE,
        };
        let conn = self.conn;
        let (mut change, mut done) = (conn.prepare_cached(sql)?, 0);
        for task in found {
            let list = codec::finished_list(task.archived);
            let values = params![codec::id(&task.id), list, task.finished_at, task.state as i64];
            if change.execute(values)? == 0 {
                continue;
            }
            done += 1;
            if matches!(op, RetentionOp::Purge) {
                conn.prepare_cached(sql::DELETE_PAYLOAD)?.execute([codec::id(&task.id)])?;
            }
            if !task.archived {
                let queue = self.queues.name(conn, task.queue)?;
                self.count(&queue, task.state, -1);
            }
        }
        Ok(done)
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
