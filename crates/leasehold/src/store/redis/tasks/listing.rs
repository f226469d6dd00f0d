//! Lists tasks by page, the newest first.

use redis::{Cmd, Value};

use super::call::{READ, Reply, wrong};
use super::record::{self, Stored};
use super::store::Tasks;
use crate::Result;
use crate::model::{Task, TaskId, TaskState};
use crate::store::lock_store::page_size;
use crate::store::protocol::TaskCall;
use crate::store::{Cursor, ListTasks, Page};

/// Number of tasks that are read at once.
const STEP: usize = 250;
/// Maximum number of tasks in a state for a lookup by state; otherwise all tasks are scanned.
const FEW: usize = 2_000;
/// Maximum number of tasks examined for one page. Then the page ends, full or not, and the next one
/// continues from there.
const LOOK_AT: usize = 50_000;

impl Tasks {
    pub(super) async fn page(&self, ask: &ListTasks) -> Result<Page<Task>> {
        let before: Option<TaskId> = ask.after.as_ref().and_then(|after| after.0.parse().ok());
        let limit = page_size(ask.limit) as usize;
        let mut page = Filling { ask, limit, items: Vec::new(), last: before };
        let few = match ask.state {
            None | Some(TaskState::Blocked) => None,
            Some(state) => self.ids_in(state, ask).await?,
        };
        let Some(mut few) = few else { return self.go_through_all(page).await };
        few.retain(|id| before.is_none_or(|before| *id < before));
        few.sort_unstable_by(|one, other| other.cmp(one));
        let mut left = few.as_slice();
        while !left.is_empty() {
            let these = |cmd: &mut Cmd| {
                cmd.arg("these");
                for id in &left[..left.len().min(STEP)] {
                    cmd.arg(id.as_uuid().as_bytes());
                }
            };
            let read = self.read(these).await?;
            if page.takes(read.stored) {
                return Ok(page.ends());
            }
            left = &left[read.looked_at.max(1)..];
        }
        Ok(Page { items: page.items, next: None })
    }

    async fn go_through_all(&self, mut page: Filling<'_>) -> Result<Page<Task>> {
        for _ in 0..LOOK_AT / STEP {
            let newest = |cmd: &mut Cmd| {
                let before = page.last.as_ref().map_or(&[][..], |before| before.as_uuid().as_bytes());
                cmd.arg("newest").arg(before).arg(STEP);
            };
            let read = self.read(newest).await?;
            let was_all = read.all && read.stored.len() < STEP;
            if page.takes(read.stored) {
                break;
            }
            if was_all {
                return Ok(Page { items: page.items, next: None });
            }
        }
        Ok(page.ends())
    }

    /// Returns the tasks in a state, unordered; `None` if there are too many.
    async fn ids_in(&self, state: TaskState, ask: &ListTasks) -> Result<Option<Vec<TaskId>>> {
        let which = |cmd: &mut Cmd| {
            let queue = ask.queue.as_ref().map_or("", |queue| queue.as_str());
            cmd.arg("ids").arg(state as u8).arg(queue).arg(u8::from(ask.archived)).arg(FEW);
        };
        let mut reply = Reply::of(self.run(TaskCall::List, &READ, which).await?)?;
        let _now = reply.time()?;
        match reply.next()? {
            Value::Array(ids) => {
                let id = |id: &Value| match id {
                    Value::BulkString(id) => record::id(id).ok_or_else(wrong),
                    _ => Err(wrong()),
                };
                ids.iter().map(id).collect::<Result<_>>().map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Page that is being filled.
struct Filling<'a> {
    ask: &'a ListTasks,
    limit: usize,
    items: Vec<Task>,
    /// Id of the last examined task.
    last: Option<TaskId>,
}

impl Filling<'_> {
    /// Adds matching tasks; returns whether the page is full.
    fn takes(&mut self, stored: Vec<Stored>) -> bool {
        for Stored { task, .. } in stored {
            self.last = Some(task.id);
            if self.ask.wants(&task) {
                self.items.push(self.ask.shown(task));
            }
            if self.items.len() == self.limit {
                return true;
            }
        }
        false
    }

    fn ends(self) -> Page<Task> {
        Page { items: self.items, next: self.last.map(|last| Cursor(last.to_string())) }
    }
}
