//! Who is next, whose time has come, whose lease has run out.

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
    /// Gives a worker what is next, and says when something is due if that was not enough.
    pub(super) fn lease(&mut self, ask: &LeaseTasks) -> rusqlite::Result<Leased> {
        let open = self.open(&ask.queues)?;
        self.promote(&open)?;
        let mut tasks = Vec::new();
        for queue in &open {
            tasks.extend(self.many(sql::READY, params![queue, ask.max])?);
        }
        if open.len() > 1 {
            tasks.sort_unstable_by_key(Task::order);
            tasks.truncate(ask.max as usize);
        }
        let op = TaskOp::Lease(ask.worker, ask.ttl);
        for task in &mut tasks {
            self.change(task, &op)?;
            self.untell(task);
        }
        let short = tasks.len() < ask.max as usize;
        let next_due = if short { self.next_due(&open)? } else { None };
        Ok(Leased { tasks, next_due: next_due.map(|due| (due, self.now)) })
    }

    /// The numbers of the queues that there are and that are not paused.
    fn open(&self, queues: &[QueueName]) -> rusqlite::Result<Vec<i64>> {
        let mut select = self.conn.prepare_cached(sql::QUEUE_ID)?;
        let mut open = Vec::with_capacity(queues.len());
        for queue in queues {
            // Looked up each time: another process may have paused it.
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

    /// Puts in line what is due; says how many.
    fn promote(&mut self, queues: &[i64]) -> rusqlite::Result<u32> {
        let mut due = Vec::new();
        for queue in queues {
            due.extend(self.many(sql::DUE, params![queue, rows::micros(self.now), TaskTable::PROMOTE])?);
        }
        if queues.len() > 1 {
            due.sort_unstable_by_key(|task| (task.run_at, task.id));
            due.truncate(TaskTable::PROMOTE as usize);
        }
        for task in &mut due {
            self.change(task, &TaskOp::Promote)?;
        }
        Ok(u32::try_from(due.len()).unwrap_or(u32::MAX))
    }

    /// Ends leases that have run out, and puts in line whatever is due.
    pub(super) fn recover(&mut self, limit: u32) -> rusqlite::Result<Recovered> {
        let mut recovered = Recovered::default();
        let now = rows::micros(self.now);
        for mut task in self.many(sql::EXPIRED, params![now, limit])? {
            self.change(&mut task, &TaskOp::Expire)?;
            match task.state {
                TaskState::Failed => recovered.failed += 1,
                TaskState::Aborted => recovered.aborted += 1,
                _ => recovered.returned += 1,
            }
        }
        let queues = self.all_queues()?;
        recovered.promoted = self.promote(&queues)?;
        let forgotten =
            now.saturating_sub(i64::try_from(WorkerStatus::REMEMBERED.as_micros()).unwrap_or(i64::MAX));
        self.conn.prepare_cached(sql::FORGET_WORKERS)?.execute([forgotten])?;
        Ok(recovered)
    }

    /// The numbers of all queues.
    pub(super) fn all_queues(&self) -> rusqlite::Result<Vec<i64>> {
        self.conn.prepare_cached(sql::QUEUE_IDS)?.query_map([], |row| row.get(0))?.collect()
    }

    /// Pauses a queue or lets it go on; says whether there is such a queue.
    pub(super) fn pause(&mut self, queue: &QueueName, pause: Option<&Pause>) -> rusqlite::Result<bool> {
        let pause = pause.map(to_json).transpose()?;
        let known = self.conn.prepare_cached(sql::PAUSE)?.execute(params![queue.as_str(), pause])? > 0;
        self.tell_all();
        Ok(known)
    }
}
