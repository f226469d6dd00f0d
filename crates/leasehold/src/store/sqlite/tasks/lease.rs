//! Leasing of tasks, and promotion of due tasks.

use rusqlite::{OptionalExtension, params};

use super::codec;
use super::sql;
use super::transaction::{StoredTask, TaskTransaction};
use crate::model::{LeaseTasks, Leased, QueueName, TaskOp, TaskTable, Timestamp};
use crate::store::sqlite::schema::{micros, timestamp};

impl TaskTransaction<'_> {
    /// Leases the next tasks to a worker. If these are fewer than requested, also returns the next
    /// due time.
    pub(super) fn lease(&mut self, request: &LeaseTasks) -> rusqlite::Result<Leased> {
        let open = self.open_queues(&request.queues)?;
        let expired = self.expire(TaskTable::MAX_EXPIRED)?.expired();
        self.promote(&open)?;
        let mut ready = Vec::new();
        for queue in &open {
            ready.extend(self.query_until_full(sql::READY, params![queue, request.max])?);
        }
        if open.len() > 1 {
            ready.sort_unstable_by_key(|task| task.order());
            ready.truncate(request.max as usize);
            truncate_when_full(&mut ready);
        }
        let (mut tasks, mut alone, mut more) = (Vec::new(), false, false);
        for mut task in ready {
            let Some(begun) = request.includes_next(&task, tasks.len()).filter(|_| !alone) else {
                more = true;
                break;
            };
            alone = task.runs_alone();
            self.change(&mut task, &TaskOp::Lease { worker: request.worker, ttl: request.ttl, begun })?;
            self.cancel_notification(&task);
            if let Some(leased) = &mut self.leased {
                leased.insert(task.clone());
            }
            tasks.push(task.task);
        }
        let short = !request.is_full(&tasks);
        let next_due = if short { self.next_due(&open)? } else { None };
        Ok(Leased { tasks, next_due: next_due.map(|due| (due, self.now)), more, expired })
    }

    /// Returns the tasks that a statement finds, until they [fill an answer](LeaseTasks::MAX_BYTES).
    fn query_until_full(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<Vec<StoredTask>> {
        let mut select = self.conn.prepare_cached(sql)?;
        let (mut rows, mut found, mut bytes) = (select.query(params)?, Vec::new(), 0);
        while bytes < LeaseTasks::MAX_BYTES
            && let Some(row) = rows.next()?
        {
            let task = codec::decode(row, self.conn, self.queues)?;
            bytes += task.bytes();
            found.push(task);
        }
        Ok(found)
    }

    /// Returns the ids of the existing queues that are not paused.
    fn open_queues(&self, queues: &[QueueName]) -> rusqlite::Result<Vec<i64>> {
        let mut select = self.conn.prepare_cached(sql::QUEUE_ID)?;
        let mut open = Vec::with_capacity(queues.len());
        for queue in queues {
            // Queried each time: another process may have paused the queue.
            let found =
                select.query_row([queue.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
            if let Some((id, false)) = found
                && !open.contains(&id)
            {
                open.push(id);
            }
        }
        Ok(open)
    }

    fn next_due(&self, queues: &[i64]) -> rusqlite::Result<Option<Timestamp>> {
        let mut select = self.conn.prepare_cached(sql::NEXT_DUE)?;
        let mut next = None;
        for queue in queues {
            let due: Option<i64> =
                select.query_row([codec::scheduled_list(*queue)], |row| row.get(0)).optional()?;
            next = next.into_iter().chain(due).min();
        }
        Ok(next.map(timestamp))
    }

    /// Makes due tasks of these queues ready; returns their number.
    fn promote(&mut self, queues: &[i64]) -> rusqlite::Result<u32> {
        let mut due = Vec::new();
        for queue in queues {
            let values = params![codec::scheduled_list(*queue), micros(self.now), TaskTable::MAX_PROMOTED];
            due.extend(self.query(sql::DUE, values)?);
        }
        if queues.len() > 1 {
            due.sort_unstable_by_key(|task| (task.run_at, task.id));
            due.truncate(TaskTable::MAX_PROMOTED as usize);
        }
        self.make_ready(due)
    }

    /// Makes due tasks ready; returns their number.
    pub(super) fn make_ready(&mut self, mut due: Vec<StoredTask>) -> rusqlite::Result<u32> {
        for task in &mut due {
            self.change(task, &TaskOp::Promote)?;
        }
        Ok(u32::try_from(due.len()).unwrap_or(u32::MAX))
    }
}

/// Truncates the tasks after the one that fills an answer.
fn truncate_when_full(tasks: &mut Vec<StoredTask>) {
    let mut bytes = 0;
    let full = tasks.iter().position(|task| {
        bytes += task.bytes();
        bytes >= LeaseTasks::MAX_BYTES
    });
    tasks.truncate(full.map_or(tasks.len(), |last| last + 1));
}
