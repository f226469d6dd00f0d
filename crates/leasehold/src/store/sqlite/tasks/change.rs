//! Applies one operation to one task: the model decides, then the row, the counts and the lock are
//! updated.

use rusqlite::params;

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{
    HeartbeatResult, HeldTask, LockName, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp, TaskState, Ttl,
    WorkerId, WorkerInfo,
};
use crate::store::sqlite::tables::to_json;

impl Shelf<'_> {
    /// Loads a task without its payload.
    pub(super) fn load(&mut self, id: &TaskId) -> rusqlite::Result<Option<Task>> {
        self.one(sql::LOAD, params![rows::id(id)])
    }

    /// Loads a task with its payload.
    pub(super) fn load_whole(&mut self, id: &TaskId) -> rusqlite::Result<Option<Task>> {
        self.one(sql::LOAD_WHOLE, params![rows::id(id)])
    }

    fn one(&mut self, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<Option<Task>> {
        Ok(self.many(sql, params)?.pop())
    }

    /// Returns the tasks that a statement finds.
    pub(super) fn many(&mut self, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<Vec<Task>> {
        let mut select = self.conn.prepare_cached(sql)?;
        let (mut rows, mut found) = (select.query(params)?, Vec::new());
        while let Some(row) = rows.next()? {
            found.push(rows::read(row, self.conn, self.queues)?);
        }
        Ok(found)
    }

    /// Applies an operation to a loaded task and saves the result. Operations of operators need a
    /// task that was loaded with its payload.
    pub(super) fn change(&mut self, task: &mut Task, op: &TaskOp) -> rusqlite::Result<TaskAnswer> {
        let answer = self.step(task, op)?;
        // These two operations never move a task before another.
        if task.lock.is_some() && !matches!(op, TaskOp::Lease { .. } | TaskOp::Beat(..)) {
            self.elect(task)?;
        }
        Ok(answer)
    }

    /// Applies an operation without regard to the other tasks with the same lock.
    fn step(&mut self, task: &mut Task, op: &TaskOp) -> rusqlite::Result<TaskAnswer> {
        let (before, was_archived) = (task.state, task.archived);
        let answer = task.apply(op, self.now);
        if !changes(&answer, before) {
            return Ok(answer);
        }
        self.wait_for_lock(task)?;
        match op {
            TaskOp::Lease { ttl, .. } => rows::save_lease(self.conn, task, *ttl)?,
            TaskOp::Beat(_, ttl) => rows::save_beat(self.conn, task, *ttl)?,
            TaskOp::Settle(_)
            | TaskOp::Expire
            | TaskOp::Promote
            | TaskOp::Unblock
            | TaskOp::Block
            | TaskOp::Want(_)
            | TaskOp::Cancel(_) => rows::save_step(self.conn, task)?,
            TaskOp::Retry(_) | TaskOp::Update(_) => {
                rows::save_step(self.conn, task)?;
                rows::save_by_hand(self.conn, task)?;
            }
        }
        if (before, was_archived) != (task.state, task.archived) {
            if !was_archived {
                self.count(&task.queue, before, -1);
            }
            if !task.archived {
                self.count(&task.queue, task.state, 1);
            }
            self.tell(task);
        } else if matches!(op, TaskOp::Update(_)) {
            self.tell(task);
        }
        Ok(answer)
    }

    /// Blocks a pending task whose lock has another head in its queue.
    pub(super) fn wait_for_lock(&mut self, task: &mut Task) -> rusqlite::Result<()> {
        if task.state == TaskState::Pending
            && let Some(lock) = &task.lock
            && let Some(queue) = self.queues.number(self.conn, &task.queue)?
            && self.conn.prepare_cached(sql::HAS_HEAD)?.exists(params![
                lock.as_str(),
                queue,
                rows::id(&task.id)
            ])?
        {
            task.state = TaskState::Blocked;
        }
        Ok(())
    }

    /// Returns the head of a lock in a queue.
    pub(super) fn head(&mut self, lock: &LockName, queue: i64) -> rusqlite::Result<Option<Task>> {
        self.one(sql::HEAD, params![lock.as_str(), queue])
    }

    /// Ensures that the lock of this task has a head in its queue, and that no blocked task
    /// precedes a head that does not run yet. Keeps the state of the given task equal to the stored
    /// one.
    pub(super) fn elect(&mut self, task: &mut Task) -> rusqlite::Result<()> {
        let Some(lock) = task.lock.clone() else { return Ok(()) };
        let Some(queue) = self.queues.number(self.conn, &task.queue)? else { return Ok(()) };
        let Some(mut first) = self.one(sql::FIRST_BLOCKED, params![lock.as_str(), queue])? else {
            return Ok(());
        };
        if let Some(mut head) = self.head(&lock, queue)? {
            if head.state == TaskState::Running || head.order() < first.order() {
                return Ok(());
            }
            self.step(&mut head, &TaskOp::Block)?;
            if head.id == task.id {
                task.state = head.state;
            }
        }
        self.step(&mut first, &TaskOp::Unblock)?;
        if first.id == task.id {
            task.state = first.state;
        }
        Ok(())
    }

    /// Ends attempts.
    pub(super) fn settle(&mut self, settle: &[Settle]) -> rusqlite::Result<Vec<Settled>> {
        let mut settled = Vec::with_capacity(settle.len());
        for settle in settle {
            let answer = match self.load(&settle.id)? {
                Some(mut task) => Some(self.change(&mut task, &TaskOp::Settle(settle.clone()))?),
                None => None,
            };
            settled.push(match answer {
                Some(TaskAnswer::Settled(settled)) => settled,
                _ => Settled::Lost,
            });
        }
        Ok(settled)
    }

    /// Records a worker's heartbeat and extends the leases of its tasks.
    pub(super) fn heartbeat(
        &mut self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> rusqlite::Result<Vec<HeartbeatResult>> {
        let id = &worker.id.as_uuid().as_bytes()[..];
        if worker.says_nothing() {
            self.conn.prepare_cached(sql::HEAR_OF)?.execute(params![id, rows::micros(self.now)])?;
        } else {
            let values = params![id, to_json(worker)?, rows::micros(self.now)];
            self.conn.prepare_cached(sql::HEAR)?.execute(values)?;
        }
        let mut beats = Vec::with_capacity(held.len());
        for held in held {
            let answer = match self.load(&held.id)? {
                Some(mut task) => Some(self.change(&mut task, &TaskOp::Beat(held.clone(), ttl))?),
                None => None,
            };
            beats.push(match answer {
                Some(TaskAnswer::Beat(beat)) => beat,
                _ => HeartbeatResult::Lost,
            });
        }
        Ok(beats)
    }

    /// Deregisters a worker.
    pub(super) fn leave(&mut self, worker: WorkerId) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql::LEAVE)?.execute([&worker.as_uuid().as_bytes()[..]]).map(drop)
    }

    /// Applies an operation of an operator.
    pub(super) fn change_by_hand(
        &mut self,
        id: &TaskId,
        op: &TaskOp,
    ) -> rusqlite::Result<Option<(TaskAnswer, Task)>> {
        let Some(mut task) = self.load_whole(id)? else { return Ok(None) };
        let answer = self.change(&mut task, op)?;
        Ok(Some((answer, task)))
    }
}

/// Whether an answer means that the task has changed.
fn changes(answer: &TaskAnswer, before: TaskState) -> bool {
    match answer {
        TaskAnswer::Done | TaskAnswer::Beat(HeartbeatResult::Extended(_)) => true,
        // A repeated settle of a task that is already settled changes nothing.
        TaskAnswer::Settled(Settled::Now(_)) => before == TaskState::Running,
        TaskAnswer::Settled(Settled::Lost | Settled::Busy)
        | TaskAnswer::Beat(HeartbeatResult::Lost)
        | TaskAnswer::Refused(_)
        | TaskAnswer::VersionConflict(_) => false,
    }
}
