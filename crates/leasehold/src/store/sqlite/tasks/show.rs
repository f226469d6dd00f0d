//! Queries of tasks, queues and workers.

use rusqlite::{OptionalExtension, params};

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{
    Counts, LockName, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, WorkerStatus,
};
use crate::store::ListTasks;
use crate::store::sqlite::tables::from_json;

/// Maximum number of tasks that one query examines, so that other calls run in between.
const STRETCH: u32 = 4000;

/// Result of a query over a range of tasks.
pub(super) struct Stretch {
    pub(super) found: Vec<Task>,
    /// Start of the next range, if there is one.
    pub(super) next: Option<TaskId>,
}

/// Bounds of a query.
struct Between {
    before: Vec<u8>,
    until: Vec<u8>,
    limit: u32,
}

impl Shelf<'_> {
    /// Returns the task that has this key.
    pub(super) fn keyed(&mut self, queue: &QueueName, key: &TaskKey) -> rusqlite::Result<Option<Task>> {
        let Some(queue) = self.queues.number(self.conn, queue)? else { return Ok(None) };
        Ok(self.many(sql::KEYED, params![queue, key.as_str()])?.pop())
    }

    /// Returns up to `limit` matching tasks before an id, the newest first.
    pub(super) fn stretch(
        &mut self,
        ask: &ListTasks,
        before: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<Stretch> {
        let queues = match &ask.queue {
            None => self.all_queues()?,
            Some(queue) => self.queues.number(self.conn, queue)?.into_iter().collect(),
        };
        let queue = ask.queue.as_ref().and(queues.first().copied());
        let mut stretch = Stretch { found: Vec::new(), next: None };
        if queues.is_empty() {
            return Ok(stretch);
        }
        // Longer than any id, so it sorts after all of them.
        let before = before.map_or_else(|| vec![0xff; 17], |before| rows::id(&before).to_vec());
        let mut between = Between { before, until: Vec::new(), limit };
        let mut ids = Vec::new();
        match ask.state {
            _ if ask.lock.is_some() => ids = self.ids(sql::LIST_LOCK, ask, queue, &between)?,
            Some(state) if state.is_terminal() => {
                for queue in queues {
                    ids.extend(self.ids(sql::LIST_OVER, ask, Some(queue), &between)?);
                    if ask.archived {
                        ids.extend(self.ids(sql::LIST_ARCHIVED, ask, Some(queue), &between)?);
                    }
                }
            }
            Some(state) if self.are_few(ask.queue.as_ref(), state)? => {
                ids = self.ids(sql::LIST_FEW[state as usize], ask, queue, &between)?;
            }
            _ => {
                let mut select = self.conn.prepare_cached(sql::STRETCH_END)?;
                let end = select.query_row(params![between.before, STRETCH - 1], |row| rows::uuid(row, 0));
                stretch.next = end.optional()?.map(TaskId::from_uuid);
                between.until = stretch.next.map(|end| rows::id(&end).to_vec()).unwrap_or_default();
                ids = self.ids(sql::LIST, ask, queue, &between)?;
            }
        }
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.truncate(limit as usize);
        for id in &ids {
            stretch.found.extend(if ask.brief { self.load(id)? } else { self.load_whole(id)? });
        }
        Ok(stretch)
    }

    fn ids(
        &self,
        sql: &str,
        ask: &ListTasks,
        queue: Option<i64>,
        between: &Between,
    ) -> rusqlite::Result<Vec<TaskId>> {
        let values = params![
            between.before,
            between.until,
            queue,
            ask.state.map(|state| state as i64),
            ask.lock.as_ref().map(LockName::as_str),
            ask.worker.as_ref().map(|worker| &worker.as_uuid().as_bytes()[..]),
            ask.archived,
            between.limit,
        ];
        let mut select = self.conn.prepare_cached(sql)?;
        let ids = select.query_map(values, |row| rows::uuid(row, 0).map(TaskId::from_uuid))?;
        ids.collect()
    }

    /// Whether all tasks in a state are fewer than one range of tasks.
    fn are_few(&self, queue: Option<&QueueName>, state: TaskState) -> rusqlite::Result<bool> {
        let status = self.status()?;
        let of = status.iter().filter(|status| queue.is_none_or(|queue| status.queue == *queue));
        Ok(of.map(|status| status.counts.get(state)).sum::<u64>() <= u64::from(STRETCH))
    }

    /// Returns the queues with their counts.
    pub(super) fn status(&self) -> rusqlite::Result<Vec<QueueStatus>> {
        let mut select = self.conn.prepare_cached(sql::QUEUES)?;
        let found = select.query_map([], |row| {
            let mut counts = Counts::default();
            for (place, state) in TaskState::ALL.into_iter().enumerate() {
                counts.set(state, u64::try_from(row.get::<_, i64>(place + 2)?).unwrap_or(0));
            }
            let name = QueueName::new(row.get_ref(0)?.as_str()?).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
            })?;
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
                started_at: rows::timestamp(row.get(1)?),
                seen_at: rows::timestamp(row.get(2)?),
            })
        })?;
        found.collect()
    }
}
