//! Leasing, promotion of due tasks, and expiry of leases.

use rusqlite::{OptionalExtension, params};

use super::rows;
use super::shelf::Shelf;
use super::sql;
use crate::model::{
    LeaseTasks, Leased, Pause, QueueName, Recovered, Task, TaskOp, TaskState, TaskTable, Timestamp,
    WorkerStatus,
};
use crate::store::sqlite::tables::to_json;

impl Shelf<'_> {
    /// Leases the next tasks to a worker. If these are fewer than requested, also returns the next
    /// due time.
    pub(super) fn lease(&mut self, ask: &LeaseTasks) -> rusqlite::Result<Leased> {
        let open = self.open(&ask.queues)?;
        let expired = self.expire(TaskTable::RECOVER)?.expired();
        self.promote(&open)?;
        let mut ready = Vec::new();
        for queue in &open {
            ready.extend(self.until_full(sql::READY, params![queue, ask.max])?);
        }
        if open.len() > 1 {
            ready.sort_unstable_by_key(Task::order);
            ready.truncate(ask.max as usize);
            truncate_when_full(&mut ready);
        }
        let (mut tasks, mut alone, mut more) = (Vec::new(), false, false);
        for mut task in ready {
            let Some(begun) = ask.gives(&task, tasks.len()).filter(|_| !alone) else {
                more = true;
                break;
            };
            alone = task.runs_alone();
            self.change(&mut task, &TaskOp::Lease { worker: ask.worker, ttl: ask.ttl, begun })?;
            self.untell(&task);
            tasks.push(task);
        }
        let short = !ask.is_full(&tasks);
        let next_due = if short { self.next_due(&open)? } else { None };
        Ok(Leased { tasks, next_due: next_due.map(|due| (due, self.now)), more, expired })
    }

    /// Returns the tasks that a statement finds, until they [fill an answer](LeaseTasks::FULL).
    fn until_full(&mut self, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<Vec<Task>> {
        let mut select = self.conn.prepare_cached(sql)?;
        let (mut rows, mut found, mut bytes) = (select.query(params)?, Vec::new(), 0);
        while bytes < LeaseTasks::FULL
            && let Some(row) = rows.next()?
        {
            let task = rows::read(row, self.conn, self.queues)?;
            bytes += task.bytes();
            found.push(task);
        }
        Ok(found)
    }

    /// Returns the numbers of the existing queues that are not paused.
    fn open(&self, queues: &[QueueName]) -> rusqlite::Result<Vec<i64>> {
        let mut select = self.conn.prepare_cached(sql::QUEUE_ID)?;
        let mut open = Vec::with_capacity(queues.len());
        for queue in queues {
            // Queried each time: another process may have paused the queue.
            let found =
                select.query_row([queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            if let Some((number, false)) = found
                && !open.contains(&number)
            {
                open.push(number);
            }
        }
        Ok(open)
    }

    fn next_due(&self, queues: &[i64]) -> rusqlite::Result<Option<Timestamp>> {
        let mut select = self.conn.prepare_cached(sql::NEXT_DUE)?;
        let mut next = None;
        for queue in queues {
            let due: Option<i64> = select.query_row([queue], |row| row.get(0)).optional()?;
            next = next.into_iter().chain(due).min();
        }
        Ok(next.map(rows::timestamp))
    }

    /// Makes due tasks of these queues ready; returns their number.
    fn promote(&mut self, queues: &[i64]) -> rusqlite::Result<u32> {
        let mut due = Vec::new();
        for queue in queues {
            due.extend(self.many(sql::DUE, params![queue, rows::micros(self.now), TaskTable::PROMOTE])?);
        }
        if queues.len() > 1 {
            due.sort_unstable_by_key(|task| (task.run_at, task.id));
            due.truncate(TaskTable::PROMOTE as usize);
        }
        self.make_ready(due)
    }

    fn make_ready(&mut self, mut due: Vec<Task>) -> rusqlite::Result<u32> {
        for task in &mut due {
            self.change(task, &TaskOp::Promote)?;
        }
        Ok(u32::try_from(due.len()).unwrap_or(u32::MAX))
    }

    /// Expires overdue leases, and makes due tasks of all queues ready.
    pub(super) fn recover(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = self.expire(limit)?;
        let now = rows::micros(self.now);
        let due = self.many(sql::ALL_DUE, params![now, TaskTable::PROMOTE])?;
        recovered.promoted = self.make_ready(due)?;
        let forgotten =
            now.saturating_sub(i64::try_from(WorkerStatus::REMEMBERED.as_micros()).unwrap_or(i64::MAX));
        self.conn.prepare_cached(sql::FORGET_WORKERS)?.execute([forgotten])?;
        Ok(recovered)
    }

    /// Expires up to `limit` overdue leases.
    fn expire(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut expired = self.many(sql::EXPIRED, params![rows::micros(self.now), limit])?;
        expired.sort_unstable_by_key(|task| (task.deadline(), task.id));
        expired.truncate(limit as usize);
        for expired in expired {
            // The expiry of another task may have made this one the head of its lock.
            let Some(mut task) = self.load(&expired.id)? else { continue };
            self.change(&mut task, &TaskOp::Expire)?;
            match task.state {
                TaskState::Failed => recovered.failed += 1,
                TaskState::Aborted => recovered.aborted += 1,
                _ => recovered.returned += 1,
            }
        }
        Ok(recovered)
    }

    /// Returns the numbers of all queues.
    pub(super) fn all_queues(&self) -> rusqlite::Result<Vec<i64>> {
        self.conn.prepare_cached(sql::QUEUE_IDS)?.query_map([], |row| row.get(0))?.collect()
    }

    /// Pauses or resumes a queue; returns whether the queue exists.
    pub(super) fn pause(&mut self, queue: &QueueName, pause: Option<&Pause>) -> rusqlite::Result<bool> {
        let pause = pause.map(to_json).transpose()?;
        let known = self.conn.prepare_cached(sql::PAUSE)?.execute(params![queue.as_str(), pause])? > 0;
        self.tell_all();
        Ok(known)
    }
}

/// Truncates the tasks after the one that fills an answer.
fn truncate_when_full(tasks: &mut Vec<Task>) {
    let mut bytes = 0;
    let full = tasks.iter().position(|task| {
        bytes += task.bytes();
        bytes >= LeaseTasks::FULL
    });
    tasks.truncate(full.map_or(tasks.len(), |last| last + 1));
}
