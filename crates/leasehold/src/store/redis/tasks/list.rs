//! Lists of tasks, the newest first.
//!
//! The index of all tasks has them in this order. The index of a state does not: its ids are read first, a
//! limited number at a time, and then the tasks of the page.

use redis::{Cmd, Value};

use super::call::{Position, READ, Reply, Tasks, flag, unexpected_reply};
use super::codec::{self, Stored};
use crate::Result;
use crate::model::{LockName, QueueName, Task, TaskId, TaskState};
use crate::store::lock_store::page_size;
use crate::store::protocol::TaskCall;
use crate::store::{Cursor, ListTasks, Page};

/// Number of tasks that are read at once.
const READ_SIZE: usize = 250;
/// Maximum number of tasks in a state, other than running, for a lookup by state; otherwise all tasks are
/// scanned.
const MAX_BY_STATE: usize = 2_000;
/// Number of running tasks that one script searches.
const RUNNING_SIZE: usize = 500;
/// Maximum number of tasks examined for one page. Then the page ends, full or not, and the next one
/// continues from there.
const MAX_SCANNED: usize = 50_000;

impl Tasks {
    pub(super) async fn list_tasks(&self, query: &ListTasks) -> Result<Page<Task>> {
        let before: Option<TaskId> = query.after.as_ref().and_then(|after| after.0.parse().ok());
        let limit = page_size(query.limit) as usize;
        let mut page = PageBuilder { query, limit, items: Vec::new(), last: before };
        let ids = match query.state {
            None | Some(TaskState::Blocked) => None,
            Some(TaskState::Running) => Some(self.running_ids(query).await?),
            Some(state) => self.ids_by_state(state, query).await?,
        };
        let Some(mut ids) = ids else { return self.scan_all(page).await };
        ids.retain(|id| before.is_none_or(|before| *id < before));
        ids.sort_unstable_by(|one, other| other.cmp(one));
        ids.dedup();
        let mut left = ids.as_slice();
        while !left.is_empty() {
            let by_id = |cmd: &mut Cmd| {
                cmd.arg("by_id").arg(flag(query.brief));
                for id in &left[..left.len().min(READ_SIZE)] {
                    cmd.arg(id.as_uuid().as_bytes());
                }
            };
            let read = self.read(by_id).await?;
            if page.add(read.stored) {
                return Ok(page.finish());
            }
            left = &left[read.examined.max(1)..];
        }
        Ok(Page { items: page.items, next: None })
    }

    async fn scan_all(&self, mut page: PageBuilder<'_>) -> Result<Page<Task>> {
        for _ in 0..MAX_SCANNED / READ_SIZE {
            let newest = |cmd: &mut Cmd| {
                let before = page.last.as_ref().map_or(&[][..], |before| before.as_uuid().as_bytes());
                cmd.arg("newest").arg(flag(page.query.brief)).arg(before).arg(READ_SIZE);
            };
            let read = self.read(newest).await?;
            // The server may have lost some of the records. Without any of them there is no position to go on from.
            let is_last = read.all && (read.examined < READ_SIZE || read.stored.is_empty());
            if page.add(read.stored) {
                break;
            }
            if is_last {
                return Ok(Page { items: page.items, next: None });
            }
        }
        Ok(page.finish())
    }

    /// Returns the tasks in a state, unordered; `None` if there are too many.
    async fn ids_by_state(&self, state: TaskState, query: &ListTasks) -> Result<Option<Vec<TaskId>>> {
        let arguments = |cmd: &mut Cmd| {
            let queue = query.queue.as_ref().map_or("", QueueName::as_str);
            cmd.arg("ids_by_state")
                .arg(state as u8)
                .arg(queue)
                .arg(u8::from(query.archived))
                .arg(MAX_BY_STATE);
        };
        let mut reply = Reply::of(self.run(TaskCall::List, &READ, arguments).await?)?;
        let _now = reply.time()?;
        match reply.next()? {
            ids @ Value::Array(_) => Reply::of(ids)?.ids().map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the running tasks of the worker, the queue and the lock of the query, unordered, some of them
    /// twice. Reads the records of all running tasks: their index is in the order of their deadlines.
    async fn running_ids(&self, query: &ListTasks) -> Result<Vec<TaskId>> {
        let mut ids = Vec::new();
        let mut position = Position::start();
        loop {
            let arguments = |cmd: &mut Cmd| {
                cmd.arg("running_ids");
                position.write(cmd);
                let worker = query.worker.as_ref().map_or(&[][..], |worker| worker.as_uuid().as_bytes());
                let queue = query.queue.as_ref().map_or("", QueueName::as_str);
                let lock = query.lock.as_ref().map_or("", LockName::as_str);
                cmd.arg(RUNNING_SIZE).arg(worker).arg(queue).arg(lock);
            };
            let mut reply = Reply::of(self.run(TaskCall::List, &READ, arguments).await?)?;
            let _now = reply.time()?;
            ids.extend(reply.list()?.ids()?);
            let Some(next) = reply.position()? else { return Ok(ids) };
            position = next;
        }
    }
}

impl Reply {
    /// Reads the rest as ids.
    fn ids(mut self) -> Result<Vec<TaskId>> {
        let mut ids = Vec::new();
        while !self.is_empty() {
            ids.push(codec::id(&self.bytes()?).ok_or_else(unexpected_reply)?);
        }
        Ok(ids)
    }
}

struct PageBuilder<'a> {
    query: &'a ListTasks,
    limit: usize,
    items: Vec<Task>,
    /// Id of the last examined task.
    last: Option<TaskId>,
}

impl PageBuilder<'_> {
    /// Adds matching tasks; returns whether the page is full.
    fn add(&mut self, stored: Vec<Stored>) -> bool {
        for Stored { task, .. } in stored {
            self.last = Some(task.id);
            if self.query.wants(&task) {
                self.items.push(self.query.shown(task));
            }
            if self.items.len() == self.limit {
                return true;
            }
        }
        false
    }

    fn finish(self) -> Page<Task> {
        Page { items: self.items, next: self.last.map(|last| Cursor(last.to_string())) }
    }
}
