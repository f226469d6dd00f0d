//! What can be seen of tasks, queues and workers.

use rusqlite::{OptionalExtension, params};

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{Counts, QueueName, QueueStatus, Task, TaskId, TaskKey, TaskState, WorkerStatus};
use crate::store::ListTasks;
use crate::store::sqlite::tables::from_json;

/// So many tasks are looked at before others get their turn.
const STRETCH: u32 = 4000;

/// What a look at a stretch of tasks has found.
pub(super) struct Stretch {
    pub(super) found: Vec<Task>,
    /// Where the next one begins, if there is one.
    pub(super) next: Option<TaskId>,
}

impl Shelf<'_> {
    /// The task that has this key.
    pub(super) fn keyed(&mut self, queue: &QueueName, key: &TaskKey) -> rusqlite::Result<Option<Task>> {
        let Some(queue) = self.queues.number(self.conn, queue)? else { return Ok(None) };
        Ok(self.many(sql::KEYED, params![queue, key.as_str()])?.pop())
    }

    /// Up to `limit` tasks that are asked for among those before an id, the newest first.
    pub(super) fn stretch(
        &mut self,
        ask: &ListTasks,
        before: Option<TaskId>,
        limit: u32,
    ) -> rusqlite::Result<Stretch> {
        let queue = match &ask.queue {
            None => None,
            Some(queue) => match self.queues.number(self.conn, queue)? {
                Some(queue) => Some(queue),
                None => return Ok(Stretch { found: Vec::new(), next: None }),
            },
        };
        // Longer than any id: after all of them.
        let before = before.map_or_else(|| vec![0xff; 17], |before| rows::id(&before).to_vec());
        let end: Option<Vec<u8>> = self
            .conn
            .prepare_cached(sql::STRETCH_END)?
            .query_row(params![before, STRETCH - 1], |row| row.get(0))
            .optional()?;
        let values = params![
            before,
            end.as_deref().unwrap_or_default(),
            queue,
            ask.state.map(|state| state as i64),
            ask.lock.as_ref().map(|lock| lock.as_str()),
            ask.worker.as_ref().map(|worker| &worker.as_uuid().as_bytes()[..]),
            ask.archived,
            limit,
        ];
        let found = self.many(sql::STRETCH, values)?;
        let next = end.and_then(|end| uuid::Uuid::from_slice(&end).ok()).map(TaskId::from_uuid);
        Ok(Stretch { found, next })
    }

    /// The queues with their counts.
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

    /// The workers, oldest first.
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
