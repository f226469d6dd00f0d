//! Task state of one transaction: the numbers of queues, the changes of counts and the workers to
//! notify.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::sql;
use crate::model::{QueueName, Task, TaskState, Timestamp};
use crate::store::wake::Doorbell;

/// Tables of tasks, inside a transaction that holds the write lock.
pub(in crate::store::sqlite) struct Shelf<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: Timestamp,
    pub(super) queues: &'a mut Queues,
    /// Changes of the counts. They are written once, at the end.
    counts: HashMap<QueueName, [i64; TaskState::ALL.len()]>,
    news: News,
}

/// Queues whose workers are notified once the transaction is committed.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct News {
    tasks: HashMap<QueueName, usize>,
    anywhere: bool,
}

impl News {
    /// Notifies the workers.
    pub(in crate::store::sqlite) fn ring(self, door: &Doorbell) {
        if self.anywhere {
            return door.ring_all();
        }
        for (queue, tasks) in self.tasks {
            door.ring(&queue, tasks);
        }
    }
}

impl<'a> Shelf<'a> {
    pub(in crate::store::sqlite) fn new(
        conn: &'a Connection,
        queues: &'a mut Queues,
        now: Timestamp,
    ) -> Self {
        Self { conn, now, queues, counts: HashMap::new(), news: News::default() }
    }

    /// Returns the connection and the time.
    pub(in crate::store::sqlite) fn parts(&self) -> (&'a Connection, Timestamp) {
        (self.conn, self.now)
    }

    /// Writes the counts. Must be called last.
    pub(in crate::store::sqlite) fn close(self) -> rusqlite::Result<News> {
        let Self { conn, queues, counts, news, .. } = self;
        for (queue, [scheduled, blocked, pending, running, succeeded, failed, aborted]) in counts {
            let changed = [scheduled, blocked, pending, running, succeeded, failed, aborted];
            if changed == [0; TaskState::ALL.len()] {
                continue;
            }
            let id = queues.number_of_new(conn, &queue)?;
            conn.prepare_cached(sql::COUNT)?
                .execute(params![id, scheduled, blocked, pending, running, succeeded, failed, aborted])?;
        }
        Ok(news)
    }

    /// Adds `by` to the count of tasks in this state.
    pub(super) fn count(&mut self, queue: &QueueName, state: TaskState, by: i64) {
        match self.counts.get_mut(queue) {
            Some(counts) => counts[state as usize] += by,
            None => {
                let mut counts = [0; TaskState::ALL.len()];
                counts[state as usize] = by;
                self.counts.insert(queue.clone(), counts);
            }
        }
    }

    /// Records a notification: a worker may lease this task or must learn when it is due.
    pub(super) fn tell(&mut self, task: &Task) {
        if matches!(task.state, TaskState::Pending | TaskState::Scheduled) {
            match self.news.tasks.get_mut(&task.queue) {
                Some(tasks) => *tasks += 1,
                None => _ = self.news.tasks.insert(task.queue.clone(), 1),
            }
        }
    }

    /// Withdraws a notification for a task that was leased in the same transaction.
    pub(super) fn untell(&mut self, task: &Task) {
        if let Some(tasks) = self.news.tasks.get_mut(&task.queue) {
            *tasks = tasks.saturating_sub(1);
        }
    }

    /// Records a notification for the workers of all queues.
    pub(super) fn tell_all(&mut self) {
        self.news.anywhere = true;
    }
}

/// Cache of queue numbers. The numbers never change; the cache is cleared after a rollback because
/// it may contain queues of that transaction.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Queues {
    numbers: HashMap<QueueName, i64>,
    names: HashMap<i64, QueueName>,
}

/// Maximum number of cached queues.
const MOST: usize = 4096;

impl Queues {
    /// Returns the number of an existing queue.
    pub(super) fn number(&mut self, conn: &Connection, name: &QueueName) -> rusqlite::Result<Option<i64>> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(Some(*number));
        }
        let mut select = conn.prepare_cached(sql::QUEUE_ID)?;
        let found: Option<i64> = select.query_row([name.as_str()], |row| row.get(0)).optional()?;
        if let Some(number) = found {
            self.remember(number, name.clone());
        }
        Ok(found)
    }

    /// Returns the number of a queue, which is created if missing.
    pub(super) fn number_of_new(&mut self, conn: &Connection, name: &QueueName) -> rusqlite::Result<i64> {
        if let Some(number) = self.number(conn, name)? {
            return Ok(number);
        }
        conn.prepare_cached(sql::NEW_QUEUE)?.execute([name.as_str()])?;
        let number = conn.last_insert_rowid();
        self.remember(number, name.clone());
        Ok(number)
    }

    /// Returns the name of a queue.
    pub(super) fn name(&mut self, conn: &Connection, number: i64) -> rusqlite::Result<QueueName> {
        if let Some(name) = self.names.get(&number) {
            return Ok(name.clone());
        }
        let name: String = conn.prepare_cached(sql::QUEUE_NAME)?.query_row([number], |row| row.get(0))?;
        let name = QueueName::new(name).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
        })?;
        self.remember(number, name.clone());
        Ok(name)
    }

    fn remember(&mut self, number: i64, name: QueueName) {
        if self.numbers.len() >= MOST {
            self.forget();
        }
        self.names.insert(number, name.clone());
        self.numbers.insert(name, number);
    }

    /// Clears the cache.
    pub(in crate::store::sqlite) fn forget(&mut self) {
        self.numbers.clear();
        self.names.clear();
    }
}
