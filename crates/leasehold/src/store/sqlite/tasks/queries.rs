//! Queries of tasks, queues and workers.

use rusqlite::{OptionalExtension, params};

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{
    Counts, LockName, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, WorkerStatus,
};
use crate::store::ListTasks;
use crate::store::sqlite::schema::{from_json, timestamp, unreadable};

/// Maximum number of tasks that one query examines, so that other calls run in between.
const MAX_EXAMINED: u32 = 4000;

/// Result of a query over a range of tasks.
pub(super) struct TaskRange {
    pub(super) tasks: Vec<Task>,
    /// Start of the next range, if there is one.
    pub(super) next: Option<TaskId>,
}

/// Bounds of a query.
struct IdBounds {
    before: Vec<u8>,
    until: Vec<u8>,
    limit: u32,
}

impl TaskTransaction<'_> {
    /// Returns the task that has this key.
    pub(super) fn get_by_key(&mut self, queue: &QueueName, key: &TaskKey) -> rusqlite::Result<Option<Task>> {
        let Some(queue) = self.queues.id(self.conn, queue)? else { return Ok(None) };
        Ok(self.query(sql::KEYED, params![queue, key.as_str()])?.pop())
    }

    /// Returns up to `limit` matching tasks before an id, the newest first.
    pub(super) fn list_range(
        &mut self,
        query: &ListTasks,
        before: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<TaskRange> {
        let queues = match &query.queue {
            None => self.all_queues()?,
            Some(queue) => self.queues.id(self.conn, queue)?.into_iter().collect(),
        };
        let queue = query.queue.as_ref().and(queues.first().copied());
        let mut range = TaskRange { tasks: Vec::new(), next: None };
        if queues.is_empty() {
            return Ok(range);
        }
        // Longer than any id, so it sorts after all of them.
        let before = before.map_or_else(|| vec![0xff; 17], |before| codec::id(&before).to_vec());
        let mut bounds = IdBounds { before, until: Vec::new(), limit };
        let mut ids = Vec::new();
        match query.state {
            _ if query.lock.is_some() => ids = self.ids(sql::LIST_LOCK, query, queue, &bounds)?,
            Some(state) if state.is_terminal() => {
                for queue in queues {
                    ids.extend(self.ids(sql::LIST_FINISHED, query, Some(queue), &bounds)?);
                    if query.archived {
                        ids.extend(self.ids(sql::LIST_ARCHIVED, query, Some(queue), &bounds)?);
                    }
                }
            }
            Some(state) if self.fit_in_one_range(query.queue.as_ref(), state)? => {
                ids = self.ids(sql::LIST_FEW[state as usize], query, queue, &bounds)?;
            }
            _ => {
                let mut select = self.conn.prepare_cached(sql::RANGE_END)?;
                let end =
                    select.query_row(params![bounds.before, MAX_EXAMINED - 1], |row| codec::uuid(row, 0));
                range.next = end.optional()?.map(TaskId::from_uuid);
                bounds.until = range.next.map(|end| codec::id(&end).to_vec()).unwrap_or_default();
                ids = self.ids(sql::LIST, query, queue, &bounds)?;
            }
        }
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.truncate(limit as usize);
        for id in &ids {
            range.tasks.extend(if query.brief { self.load(id)? } else { self.load_with_payload(id)? });
        }
        Ok(range)
    }

    /// Returns the ids of all queues.
    fn all_queues(&self) -> rusqlite::Result<Vec<i64>> {
        self.conn.prepare_cached(sql::QUEUE_IDS)?.query_map([], |row| row.get(0))?.collect()
    }

    fn ids(
        &self,
        sql: &str,
        query: &ListTasks,
        queue: Option<i64>,
        bounds: &IdBounds,
    ) -> rusqlite::Result<Vec<TaskId>> {
        let values = params![
            bounds.before,
            bounds.until,
            queue,
            query.state.map(|state| state as i64),
            query.lock.as_ref().map(LockName::as_str),
            query.worker.as_ref().map(|worker| &worker.as_uuid().as_bytes()[..]),
            query.archived,
            bounds.limit,
        ];
        let mut select = self.conn.prepare_cached(sql)?;
        let ids = select.query_map(values, |row| codec::uuid(row, 0).map(TaskId::from_uuid))?;
        ids.collect()
    }

    /// Whether all tasks in a state are fewer than one range of tasks.
    fn fit_in_one_range(&self, queue: Option<&QueueName>, state: TaskState) -> rusqlite::Result<bool> {
        let status = self.status()?;
        let of = status.iter().filter(|status| queue.is_none_or(|queue| status.queue == *queue));
        Ok(of.map(|status| status.counts.get(state)).sum::<u64>() <= u64::from(MAX_EXAMINED))
    }

    /// Returns the queues with their counts.
    pub(super) fn status(&self) -> rusqlite::Result<Vec<QueueStatus>> {
        let mut select = self.conn.prepare_cached(sql::QUEUES)?;
        let found = select.query_map([], |row| {
            let mut counts = Counts::default();
            for (index, state) in TaskState::ALL.into_iter().enumerate() {
                counts.set(state, u64::try_from(row.get::<_, i64>(index + 2)?).unwrap_or(0));
            }
            let name = QueueName::new(row.get_ref(0)?.as_str()?).map_err(|error| unreadable(0, error))?;
            let paused = row.get_ref(1)?.as_str_or_null()?.map(|json| from_json(json, 1)).transpose()?;
            Ok(QueueStatus { queue: name, counts, paused })
        })?;
        found.collect()
    }

    /// Returns the workers, oldest first.
    pub(super) fn workers(&self) -> rusqlite::Result<Vec<WorkerStatus>> {
        let mut select = self.conn.prepare_cached(sql::WORKERS)?;
        let found = select.query_map([], |row| {
            Ok(WorkerStatus {
                info: from_json(row.get_ref(0)?.as_str()?, 0)?,
                started_at: timestamp(row.get(1)?),
                seen_at: timestamp(row.get(2)?),
            })
        })?;
        found.collect()
    }
}
