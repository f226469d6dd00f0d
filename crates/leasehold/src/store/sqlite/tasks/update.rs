//! Operations on one task: the model decides, then the row, the counts and the lock are updated.

use rusqlite::params;

use super::codec;
use super::sql;
use super::transaction::{StoredTask, TaskTransaction};
use crate::model::{
    HeartbeatResult, HeldTask, LockName, Pause, QueueName, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp,
    TaskState, Ttl, WorkerId, WorkerInfo,
};
use crate::store::sqlite::schema::{micros, to_json};

impl TaskTransaction<'_> {
    pub(super) fn load(&mut self, id: &TaskId) -> rusqlite::Result<Option<StoredTask>> {
        let mut rows = self.statements.load()?.query([codec::id(id)])?;
        rows.next()?.map(|row| codec::decode(row, self.conn, self.queues)).transpose()
    }

    pub(super) fn load_with_payload(&mut self, id: &TaskId) -> rusqlite::Result<Option<StoredTask>> {
        self.query_one(sql::LOAD_WITH_PAYLOAD, params![codec::id(id)])
    }

    fn query_one(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<Option<StoredTask>> {
        Ok(self.query(sql, params)?.pop())
    }

    pub(super) fn query(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<Vec<StoredTask>> {
        let mut select = self.conn.prepare_cached(sql)?;
        let (mut rows, mut found) = (select.query(params)?, Vec::new());
        while let Some(row) = rows.next()? {
            found.push(codec::decode(row, self.conn, self.queues)?);
        }
        Ok(found)
    }

    /// Applies an operation to a loaded task and saves the result. Operations of operators need a
    /// task that was loaded with its payload.
    pub(super) fn change(&mut self, task: &mut StoredTask, op: &TaskOp) -> rusqlite::Result<TaskAnswer> {
        let before = task.chain_place();
        let answer = self.apply_op(task, op)?;
        if task.may_change_head(before) {
            self.ensure_head(task)?;
        }
        Ok(answer)
    }

    /// Applies an operation without regard to the other tasks with the same lock.
    fn apply_op(&mut self, task: &mut StoredTask, op: &TaskOp) -> rusqlite::Result<TaskAnswer> {
        let (before, was_archived) = (task.state, task.archived);
        let answer = task.apply(op, self.now);
        if !is_change(&answer, before) {
            return Ok(answer);
        }
        if let Some(leased) = &mut self.leased {
            leased.remove(&task.id);
        }
        self.block_if_lock_is_taken(task)?;
        match op {
            TaskOp::Lease { ttl, .. } => codec::save_lease(&mut self.statements, task, *ttl)?,
            TaskOp::Heartbeat(_, ttl) => codec::save_heartbeat(self.conn, task, *ttl)?,
            TaskOp::Settle(_)
            | TaskOp::Expire
            | TaskOp::Promote
            | TaskOp::Unblock
            | TaskOp::Block
            | TaskOp::RenewRunner(_)
            | TaskOp::Cancel(_) => codec::save_transition(&mut self.statements, task)?,
            TaskOp::Retry(_) | TaskOp::Update(_) => {
                codec::save_transition(&mut self.statements, task)?;
                codec::save_admin_fields(self.conn, task)?;
            }
        }
        if (before, was_archived) != (task.state, task.archived) {
            if !was_archived {
                self.count(&task.queue, before, -1);
            }
            if !task.archived {
                self.count(&task.queue, task.state, 1);
            }
            self.notify(task);
        } else if matches!(op, TaskOp::Update(_)) {
            self.notify(task);
        }
        Ok(answer)
    }

    /// Blocks a pending task whose lock has another head in its queue.
    pub(super) fn block_if_lock_is_taken(&mut self, task: &mut Task) -> rusqlite::Result<()> {
        if task.is_ready_for_lock()
            && let Some(lock) = &task.lock
            && let Some(queue) = self.queues.id(self.conn, &task.queue)?
            && self.conn.prepare_cached(sql::HAS_HEAD)?.exists(params![
                lock.as_str(),
                queue,
                codec::id(&task.id)
            ])?
        {
            task.state = TaskState::Blocked;
        }
        Ok(())
    }

    pub(super) fn head(&mut self, lock: &LockName, queue: i64) -> rusqlite::Result<Option<StoredTask>> {
        self.query_one(sql::HEAD, params![lock.as_str(), queue])
    }

    /// Ensures that the lock of this task has a head in its queue, and that no blocked task
    /// precedes a head that does not run yet. Keeps the state of the given task equal to the stored
    /// one.
    pub(super) fn ensure_head(&mut self, task: &mut Task) -> rusqlite::Result<()> {
        let Some(lock) = task.lock.clone() else { return Ok(()) };
        let Some(queue) = self.queues.id(self.conn, &task.queue)? else { return Ok(()) };
        let Some(mut first) = self.query_one(sql::FIRST_BLOCKED, [codec::blocked_list(queue, &lock)])? else {
            return Ok(());
        };
        let head = self.head(&lock, queue)?;
        if !first.replaces(head.as_deref()) {
            return Ok(());
        }
        if let Some(mut head) = head {
            self.apply_op(&mut head, &TaskOp::Block)?;
            if head.id == task.id {
                task.state = head.state;
            }
        }
        self.apply_op(&mut first, &TaskOp::Unblock)?;
        if first.id == task.id {
            task.state = first.state;
        }
        Ok(())
    }

    pub(super) fn settle(&mut self, settle: &[Settle]) -> rusqlite::Result<Vec<Settled>> {
        let settle_one = |settle: &Settle| {
            let leased = self.leased.as_mut().and_then(|leased| leased.remove(&settle.id));
            let op = TaskOp::Settle(settle.clone());
            let answer = match leased {
                Some(mut task) => Some(self.change(&mut task, &op)?),
                None => self.change_if_exists(&settle.id, &op)?,
            };
            Ok(match answer {
                Some(TaskAnswer::Settled(settled)) => settled,
                _ => Settled::Lost,
            })
        };
        settle.iter().map(settle_one).collect()
    }

    /// Records a worker's heartbeat and extends the leases of its tasks.
    pub(super) fn heartbeat(
        &mut self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> rusqlite::Result<Vec<HeartbeatResult>> {
        let id = &worker.id.as_uuid().as_bytes()[..];
        if worker.is_id_only() {
            self.conn.prepare_cached(sql::TOUCH_WORKER)?.execute(params![id, micros(self.now)])?;
        } else {
            let values = params![id, to_json(worker)?, micros(self.now)];
            self.conn.prepare_cached(sql::UPSERT_WORKER)?.execute(values)?;
        }
        let beat = |held: &HeldTask| {
            Ok(match self.change_if_exists(&held.id, &TaskOp::Heartbeat(held.clone(), ttl))? {
                Some(TaskAnswer::Heartbeat(result)) => result,
                _ => HeartbeatResult::Lost,
            })
        };
        held.iter().map(beat).collect()
    }

    fn change_if_exists(&mut self, id: &TaskId, op: &TaskOp) -> rusqlite::Result<Option<TaskAnswer>> {
        self.load(id)?.map(|mut task| self.change(&mut task, op)).transpose()
    }

    pub(super) fn deregister(&mut self, worker: WorkerId) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql::DELETE_WORKER)?.execute([&worker.as_uuid().as_bytes()[..]]).map(drop)
    }

    /// Applies an operation of an operator.
    pub(super) fn change_by_id(
        &mut self,
        id: &TaskId,
        op: &TaskOp,
    ) -> rusqlite::Result<Option<(TaskAnswer, Task)>> {
        let Some(mut task) = self.load_with_payload(id)? else { return Ok(None) };
        self.change(&mut task, op).map(|answer| Some((answer, task.task)))
    }

    /// Pauses or resumes a queue; returns whether the queue exists.
    pub(super) fn pause(&mut self, queue: &QueueName, pause: Option<&Pause>) -> rusqlite::Result<bool> {
        let pause = pause.map(to_json).transpose()?;
        let known = self.conn.prepare_cached(sql::PAUSE)?.execute(params![queue.as_str(), pause])? > 0;
        self.notify_all_queues();
        Ok(known)
    }
}

/// Whether an answer means that the task has changed.
fn is_change(answer: &TaskAnswer, before: TaskState) -> bool {
    match answer {
        TaskAnswer::Done | TaskAnswer::Heartbeat(HeartbeatResult::Extended(_)) => true,
        // A repeated settle of a task that is already settled changes nothing.
        TaskAnswer::Settled(Settled::Now(_)) => before == TaskState::Running,
        TaskAnswer::Settled(Settled::Lost | Settled::Busy)
        | TaskAnswer::Heartbeat(HeartbeatResult::Lost | HeartbeatResult::Busy)
        | TaskAnswer::Refused(_)
        | TaskAnswer::VersionConflict(_) => false,
    }
}
