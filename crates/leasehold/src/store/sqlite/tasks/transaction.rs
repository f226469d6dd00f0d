//! Task state of one transaction: the ids of queues, the changes of counts and the workers to
//! notify; and the tasks that this process has leased, with the numbers of their rows.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::sql;
use crate::model::{QueueName, Task, TaskId, TaskState, Timestamp};
use crate::store::sqlite::schema::unreadable;
use crate::store::wake::QueueNotifier;

pub(crate) struct TaskTransaction<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: Timestamp,
    pub(super) queues: &'a mut QueueIds,
    /// Changes of the counts. They are written once, at the end.
    counts: HashMap<QueueName, [i64; TaskState::ALL.len()]>,
    wakeups: PendingWakeups,
    pub(super) statements: Statements<'a>,
    /// Tasks that this process has leased; `None` if they may not be up to date.
    pub(super) leased: Option<&'a mut LeasedTasks>,
}

/// Statements that run once per task of a call, taken from the cache of the connection once per
/// transaction: each lookup there hashes the text of the statement twice.
pub(super) struct Statements<'a> {
    conn: &'a Connection,
    load: Option<CachedStatement<'a>>,
    save_lease: Option<CachedStatement<'a>>,
    save_transition: Option<CachedStatement<'a>>,
}

impl<'a> Statements<'a> {
    pub(super) const fn new(conn: &'a Connection) -> Self {
        Self { conn, load: None, save_lease: None, save_transition: None }
    }

    pub(super) fn load(&mut self) -> rusqlite::Result<&mut CachedStatement<'a>> {
        cached(&mut self.load, self.conn, sql::LOAD)
    }

    pub(super) fn save_lease(&mut self) -> rusqlite::Result<&mut CachedStatement<'a>> {
        cached(&mut self.save_lease, self.conn, sql::SAVE_LEASE)
    }

    pub(super) fn save_transition(&mut self) -> rusqlite::Result<&mut CachedStatement<'a>> {
        cached(&mut self.save_transition, self.conn, sql::SAVE_TRANSITION)
    }
}

fn cached<'s, 'a>(
    statement: &'s mut Option<CachedStatement<'a>>,
    conn: &'a Connection,
    sql: &str,
) -> rusqlite::Result<&'s mut CachedStatement<'a>> {
    match statement {
        Some(statement) => Ok(statement),
        None => Ok(statement.insert(conn.prepare_cached(sql)?)),
    }
}

/// Queues whose workers are notified once the transaction is committed.
#[derive(Debug, Default)]
pub(crate) struct PendingWakeups {
    tasks: HashMap<QueueName, HashSet<TaskId>>,
    all_queues: bool,
}

impl PendingWakeups {
    pub(crate) fn send(self, notifier: &QueueNotifier) {
        if self.all_queues {
            return notifier.notify_all();
        }
        for (queue, tasks) in self.tasks {
            notifier.notify(&queue, tasks.len());
        }
    }
}

impl<'a> TaskTransaction<'a> {
    pub(crate) fn new(conn: &'a Connection, queues: &'a mut QueueIds, now: Timestamp) -> Self {
        let (counts, wakeups) = (HashMap::new(), PendingWakeups::default());
        Self { conn, now, queues, counts, wakeups, statements: Statements::new(conn), leased: None }
    }

    /// Uses the tasks that this process has leased.
    pub(crate) fn with_leased(self, leased: &'a mut LeasedTasks) -> Self {
        Self { leased: Some(leased), ..self }
    }

    pub(crate) fn parts(&self) -> (&'a Connection, Timestamp) {
        (self.conn, self.now)
    }

    /// Writes the counts. Must be called last.
    pub(crate) fn finish(self) -> rusqlite::Result<PendingWakeups> {
        let Self { conn, queues, counts, wakeups, .. } = self;
        for (queue, changes) in counts {
            if changes == [0; TaskState::ALL.len()] {
                continue;
            }
            let [scheduled, blocked, pending, running, succeeded, failed, aborted] = changes;
            let id = queues.id_or_create(conn, &queue)?;
            conn.prepare_cached(sql::ADD_COUNTS)?
                .execute(params![id, scheduled, blocked, pending, running, succeeded, failed, aborted])?;
        }
        Ok(wakeups)
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
    pub(super) fn notify(&mut self, task: &Task) {
        if matches!(task.state, TaskState::Pending | TaskState::Scheduled) {
            match self.wakeups.tasks.get_mut(&task.queue) {
                Some(tasks) => _ = tasks.insert(task.id),
                None => _ = self.wakeups.tasks.insert(task.queue.clone(), HashSet::from([task.id])),
            }
        }
    }

    /// Withdraws the notification for a task that was leased in the same transaction, if there was one.
    pub(super) fn cancel_notification(&mut self, task: &Task) {
        if let Some(tasks) = self.wakeups.tasks.get_mut(&task.queue) {
            tasks.remove(&task.id);
        }
    }

    pub(super) fn notify_all_queues(&mut self) {
        self.wakeups.all_queues = true;
    }
}

/// Cache of queue ids. The ids never change; the cache is cleared after a rollback because it may
/// contain queues of that transaction.
#[derive(Debug, Default)]
pub(crate) struct QueueIds {
    ids: HashMap<QueueName, i64>,
    names: HashMap<i64, QueueName>,
}

/// Maximum number of cached queues.
const MAX_QUEUES: usize = 4096;

impl QueueIds {
    pub(super) fn id(&mut self, conn: &Connection, name: &QueueName) -> rusqlite::Result<Option<i64>> {
        if let Some(id) = self.ids.get(name) {
            return Ok(Some(*id));
        }
        let mut select = conn.prepare_cached(sql::QUEUE_ID)?;
        let found: Option<i64> = select.query_row([name.as_str()], |row| row.get(0)).optional()?;
        if let Some(id) = found {
            self.insert(id, name.clone());
        }
        Ok(found)
    }

    /// Returns the id of a queue, which is created if missing.
    pub(super) fn id_or_create(&mut self, conn: &Connection, name: &QueueName) -> rusqlite::Result<i64> {
        if let Some(id) = self.id(conn, name)? {
            return Ok(id);
        }
        conn.prepare_cached(sql::NEW_QUEUE)?.execute([name.as_str()])?;
        let id = conn.last_insert_rowid();
        self.insert(id, name.clone());
        Ok(id)
    }

    pub(super) fn name(&mut self, conn: &Connection, id: i64) -> rusqlite::Result<QueueName> {
        if let Some(name) = self.names.get(&id) {
            return Ok(name.clone());
        }
        let name: String = conn.prepare_cached(sql::QUEUE_NAME)?.query_row([id], |row| row.get(0))?;
        let name = QueueName::new(name).map_err(|error| unreadable(0, error))?;
        self.insert(id, name.clone());
        Ok(name)
    }

    fn insert(&mut self, id: i64, name: QueueName) {
        if self.ids.len() >= MAX_QUEUES {
            self.clear();
        }
        self.names.insert(id, name.clone());
        self.ids.insert(name, id);
    }

    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.names.clear();
    }
}

/// Task with the numbers of its row and its queue. The number of a row changes only when the whole
/// file is rewritten.
#[derive(Debug, Clone)]
pub(super) struct StoredTask {
    pub(super) rowid: i64,
    pub(super) queue_id: i64,
    pub(super) task: Task,
}

impl Deref for StoredTask {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.task
    }
}

impl DerefMut for StoredTask {
    fn deref_mut(&mut self) -> &mut Task {
        &mut self.task
    }
}

/// Maximum number of leased tasks in memory.
const MAX_LEASED: usize = 1024;

/// Tasks that this process has leased, as they are stored: settling them needs no read. Every save
/// of a task removes it from here, and a write of another connection removes all.
#[derive(Debug, Default)]
pub(crate) struct LeasedTasks {
    data_version: i64,
    tasks: HashMap<TaskId, StoredTask>,
}

impl LeasedTasks {
    /// Forgets the tasks if another connection has written. Must be called in a write transaction.
    pub(crate) fn check(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.data_version {
            self.tasks.clear();
            self.data_version = version;
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, task: StoredTask) {
        if self.tasks.len() < MAX_LEASED {
            self.tasks.insert(task.id, task);
        }
    }

    pub(super) fn remove(&mut self, id: &TaskId) -> Option<StoredTask> {
        self.tasks.remove(id)
    }

    pub(crate) fn clear(&mut self) {
        self.tasks.clear();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::{LeaseTasks, NewTask, Payload, Ttl, WorkerId};
    use crate::store::sqlite::schema::{ONE_INDEX, TABLES};

    #[test]
    fn a_lease_withdraws_only_the_notifications_of_its_own_tasks() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(&[TABLES, ONE_INDEX].concat()).unwrap();
        let queue = QueueName::new("q").unwrap();
        let ids = [1, 2].map(|number| TaskId::from_uuid(Uuid::from_u128(number)));
        let [older, newer] = ids.map(|id| NewTask::new(id, queue.clone(), Payload::of("1").unwrap()));
        let worker = WorkerId::from_uuid(Uuid::from_u128(7));
        let mut queues = QueueIds::default();
        // Returns the leased tasks and those for which a worker is notified.
        let mut run = |time: u64, new: &[NewTask], max: u32| {
            let mut tx = TaskTransaction::new(&conn, &mut queues, Timestamp::from_micros(time));
            tx.enqueue(new).unwrap();
            let request = LeaseTasks::new(worker, vec![queue.clone()], max, Ttl::from_secs(30));
            let leased: Vec<TaskId> = tx.lease(&request).unwrap().tasks.iter().map(|task| task.id).collect();
            let notified = tx.finish().unwrap().tasks.remove(&queue).unwrap_or_default();
            (leased, notified.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(run(1, &[older], 0), (vec![], vec![ids[0]]));
        // A worker that waits may lease the newer one.
        assert_eq!(run(2, &[newer], 1), (vec![ids[0]], vec![ids[1]]));
        assert_eq!(run(3, &[], 1), (vec![ids[1]], vec![]));
    }
}
