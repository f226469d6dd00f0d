//! Queries of tasks, queues and workers.

use rusqlite::{OptionalExtension, params};

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{
    Counts, LockName, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, WorkerStatus,
};
use crate::store::ListTasks;
use crate::store::lock_store::page_size;
use crate::store::sqlite::schema::{json, maybe_json, timestamp, unreadable};

/// Maximum number of tasks that one query examines, so that other calls run in between.
const MAX_EXAMINED: u32 = 4000;

impl TaskTransaction<'_> {
    pub(super) fn get_by_key(&mut self, queue: &QueueName, key: &TaskKey) -> rusqlite::Result<Option<Task>> {
        let Some(queue) = self.queues.id(self.conn, queue)? else { return Ok(None) };
        Ok(self.query(sql::KEYED, params![queue, key.as_str()])?.pop().map(|found| found.task))
    }

    /// Returns up to `limit` matching tasks before an id, the newest first, and the start of the next
    /// range, if there is one.
    pub(super) fn list_range(
        &mut self,
        query: &ListTasks,
        before: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<(Vec<Task>, Option<TaskId>)> {
        let queues = match &query.queue {
            None => {
                let mut select = self.conn.prepare_cached(sql::QUEUE_IDS)?;
                select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?
            }
            Some(queue) => self.queues.id(self.conn, queue)?.into_iter().collect(),
        };
        let queue = query.queue.as_ref().and(queues.first().copied());
        let (mut tasks, mut next) = (Vec::new(), None);
        if queues.is_empty() {
            return Ok((tasks, next));
        }
        // Longer than any id, so it sorts after all of them.
        let before = before.map_or_else(|| vec![0xff; 17], |before| codec::id(&before).to_vec());
        let find = |sql: &str, queue: Option<i64>, state: Option<TaskState>, until: Option<&TaskId>| {
            let until = until.map(codec::id).unwrap_or_default();
            let lock = query.lock.as_ref().map(LockName::as_str);
            let worker = query.worker.as_ref().map(|worker| &worker.as_uuid().as_bytes()[..]);
            let state = state.map(|state| state as i64);
            let values = params![before, until, queue, state, lock, worker, query.archived, limit];
            let mut select = self.conn.prepare_cached(sql)?;
            let ids = select.query_map(values, |row| codec::uuid(row, 0).map(TaskId::from_uuid))?;
            ids.collect::<rusqlite::Result<Vec<_>>>()
        };
        let mut ids = Vec::new();
        match query.state {
            _ if query.lock.is_some() => ids = find(sql::LIST_LOCK, queue, query.state, None)?,
            Some(TaskState::Failed | TaskState::Aborted) => {
                for queue in queues {
                    ids.extend(find(sql::LIST_UNSUCCESSFUL, Some(queue), query.state, None)?);
                    if query.archived {
                        ids.extend(find(sql::LIST_ARCHIVED, Some(queue), query.state, None)?);
                    }
                }
            }
            Some(TaskState::Succeeded) if !query.archived && self.has_none(query.queue.as_ref())? => {}
            Some(state) if !state.is_terminal() && self.fit_in_one_range(query.queue.as_ref(), state)? => {
                let lists = if queue.is_some() { sql::LIST_FEW_OF_QUEUE } else { sql::LIST_FEW };
                ids = find(lists[state as usize], queue, query.state, None)?;
            }
            None if queue.is_some() && !query.archived && self.is_small_queue(query.queue.as_ref())? => {
                for state in TaskState::ALL {
                    let sql = match state {
                        // There is none.
                        TaskState::Succeeded => continue,
                        TaskState::Failed | TaskState::Aborted => sql::LIST_UNSUCCESSFUL,
                        state => sql::LIST_FEW_OF_QUEUE[state as usize],
                    };
                    ids.extend(find(sql, queue, Some(state), None)?);
                }
            }
            _ => {
                let mut select = self.conn.prepare_cached(sql::RANGE_END)?;
                let end = select.query_row(params![before, MAX_EXAMINED - 1], |row| codec::uuid(row, 0));
                next = end.optional()?.map(TaskId::from_uuid);
                ids = find(sql::LIST, queue, query.state, next.as_ref())?;
                // All tasks of a queue with few of them may be among the newest of the store.
                let found = u64::from(page_size(query.limit) - limit) + ids.len() as u64;
                if self.count_matching(query)?.is_some_and(|count| found >= count) {
                    next = None;
                }
            }
        }
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.truncate(limit as usize);
        for id in &ids {
            let found = if query.brief { self.load(id)? } else { self.load_with_payload(id)? };
            tasks.extend(found.map(|found| found.task));
        }
        Ok((tasks, next))
    }

    /// Whether all tasks in a state are fewer than one range of tasks.
    fn fit_in_one_range(&self, queue: Option<&QueueName>, state: TaskState) -> rusqlite::Result<bool> {
        Ok(self.count_of(queue, state)? <= u64::from(MAX_EXAMINED))
    }

    /// Whether a queue has few tasks in each state, and none that has succeeded: those are in no index by
    /// queue.
    fn is_small_queue(&self, queue: Option<&QueueName>) -> rusqlite::Result<bool> {
        let status = self.status()?;
        let counts = status.iter().filter(|status| queue == Some(&status.queue)).map(|status| &status.counts);
        let is_small = |counts: &Counts| {
            let open = TaskState::ALL.into_iter().filter(|state| !state.is_terminal());
            counts.get(TaskState::Succeeded) == 0
                && open.into_iter().all(|state| counts.get(state) <= u64::from(MAX_EXAMINED))
        };
        Ok(counts.into_iter().all(is_small))
    }

    /// Returns the number of tasks that a query from the newest task on finds, if it is known.
    fn count_matching(&self, query: &ListTasks) -> rusqlite::Result<Option<u64>> {
        let is_known = query.after.is_none() && query.worker.is_none() && !query.archived;
        if !is_known || query.lock.is_some() {
            return Ok(None);
        }
        let states =
            TaskState::ALL.into_iter().filter(|state| query.state.is_none_or(|wanted| wanted == *state));
        let mut count = 0;
        for state in states {
            count += self.count_of(query.queue.as_ref(), state)?;
        }
        Ok(Some(count))
    }

    /// Whether no task has succeeded, apart from archived ones.
    fn has_none(&self, queue: Option<&QueueName>) -> rusqlite::Result<bool> {
        Ok(self.count_of(queue, TaskState::Succeeded)? == 0)
    }

    fn count_of(&self, queue: Option<&QueueName>, state: TaskState) -> rusqlite::Result<u64> {
        let status = self.status()?;
        let of = status.iter().filter(|status| queue.is_none_or(|queue| status.queue == *queue));
        Ok(of.map(|status| status.counts.get(state)).sum())
    }

    pub(super) fn status(&self) -> rusqlite::Result<Vec<QueueStatus>> {
        let mut select = self.conn.prepare_cached(sql::QUEUES)?;
        let found = select.query_map([], |row| {
            let mut counts = Counts::default();
            for (index, state) in TaskState::ALL.into_iter().enumerate() {
                counts.set(state, u64::try_from(row.get::<_, i64>(index + 2)?).unwrap_or(0));
            }
            let name = QueueName::new(row.get_ref(0)?.as_str()?).map_err(|error| unreadable(0, error))?;
            Ok(QueueStatus { queue: name, counts, paused: maybe_json(row, 1)? })
        })?;
        found.collect()
    }

    pub(super) fn workers(&self) -> rusqlite::Result<Vec<WorkerStatus>> {
        let mut select = self.conn.prepare_cached(sql::WORKERS)?;
        let found = select.query_map([], |row| {
            Ok(WorkerStatus {
                info: json(row, 0)?,
                started_at: timestamp(row.get(1)?),
                seen_at: timestamp(row.get(2)?),
            })
        })?;
        found.collect()
    }
}
