//! Enqueueing of tasks.

use rusqlite::{OptionalExtension, params};

use super::codec;
use super::sql;
use super::transaction::TaskTransaction;
use crate::model::{
    Admission, Enqueued, Fingerprint, KeyOwner, LockName, LockQueue, NewTask, Task, TaskId, TaskState,
};

impl TaskTransaction<'_> {
    /// Adds tasks independently: a task whose key conflicts does not keep the others out.
    pub(super) fn enqueue(&mut self, new: &[NewTask]) -> rusqlite::Result<Vec<Enqueued>> {
        let mut answers = Vec::with_capacity(new.len());
        for some in new.chunks(sql::MANY) {
            if some.len() == sql::MANY && self.enqueue_many(some)? {
                answers.extend(some.iter().map(|new| Enqueued::Added(new.id)));
                continue;
            }
            for new in some {
                answers.push(self.enqueue_one(new)?);
            }
        }
        Ok(answers)
    }

    /// Adds [`sql::MANY`] tasks with one statement. Returns `false`, without any change, if one of
    /// them needs a query or was added before.
    fn enqueue_many(&mut self, new: &[NewTask]) -> rusqlite::Result<bool> {
        let mut tasks = Vec::with_capacity(new.len());
        for new in new {
            match self.queues.id(self.conn, &new.queue)? {
                Some(queue) if is_plain(new) => tasks.push((queue, Task::new(new, self.now))),
                _ => return Ok(false),
            }
        }
        if !codec::insert_many(self.conn, &tasks)? {
            return Ok(false);
        }
        for (_, task) in &tasks {
            self.count(&task.queue, task.state, 1);
            self.notify(task);
        }
        Ok(true)
    }

    fn enqueue_one(&mut self, new: &NewTask) -> rusqlite::Result<Enqueued> {
        let known = self.queues.id(self.conn, &new.queue)?;
        let plain = known.is_some() && is_plain(new);
        if !plain && self.conn.prepare_cached(sql::EXISTS)?.exists([codec::id(&new.id)])? {
            return Ok(Enqueued::Added(new.id));
        }
        let owner = self.key_owner(known, new)?;
        match new.admit(owner, |(lock, _), limit| self.lock_queue(known, lock, limit))? {
            Admission::Refuse(answer) => return Ok(answer),
            Admission::Add { key_from: Some(earlier) } => {
                self.conn.prepare_cached(sql::CLEAR_KEY)?.execute([codec::id(&earlier)])?;
            }
            Admission::Add { key_from: None } => {}
        }
        let queue = self.queues.id_or_create(self.conn, &new.queue)?;
        let mut task = Task::new(new, self.now);
        self.block_if_lock_is_taken(&mut task)?;
        if codec::insert(self.conn, queue, &task)? {
            self.count(&task.queue, task.state, 1);
            self.notify(&task);
            if task.state == TaskState::Blocked {
                self.ensure_head(&mut task)?;
            }
        }
        Ok(Enqueued::Added(new.id))
    }

    /// Returns the tasks that hold or await a lock in a queue, up to one more than `limit`.
    fn lock_queue(
        &mut self,
        queue: Option<i64>,
        lock: &LockName,
        limit: u32,
    ) -> rusqlite::Result<Option<LockQueue>> {
        let Some(queue) = queue else { return Ok(None) };
        let Some(head) = self.head(lock, queue)? else { return Ok(None) };
        let mut count = self.conn.prepare_cached(sql::COUNT_BLOCKED)?;
        let values = params![codec::blocked_list(queue, lock), limit];
        let blocked: u32 = count.query_row(values, |row| row.get(0))?;
        Ok(Some(LockQueue { head: head.id, tasks: 1 + blocked as usize }))
    }

    fn key_owner(&self, queue: Option<i64>, new: &NewTask) -> rusqlite::Result<Option<KeyOwner>> {
        let (Some(queue), Some(key)) = (queue, &new.key) else { return Ok(None) };
        let mut select = self.conn.prepare_cached(sql::KEY_OWNER)?;
        let owner = select.query_row(params![queue, key.as_str()], |row| {
            Ok(KeyOwner {
                id: TaskId::from_uuid(codec::uuid(row, 0)?),
                fingerprint: Fingerprint::from_u64(row.get::<_, i64>(1)?.cast_unsigned()),
                state: codec::state(row.get(2)?)?,
            })
        });
        owner.optional()
    }
}

/// Whether the id alone decides if the task is added to an existing queue.
const fn is_plain(new: &NewTask) -> bool {
    new.key.is_none() && new.lock.is_none()
}
