//! Tasks by page, the newest first.

use redis::Cmd;

use super::record::Stored;
use super::tasks::Tasks;
use crate::Result;
use crate::model::TaskId;
use crate::store::lock_store::page_size;
use crate::store::{Cursor, ListTasks, Page};

/// So many are read at once.
const STEP: usize = 250;

impl Tasks {
    pub(super) async fn page(&self, ask: &ListTasks) -> Result<Page<crate::model::Task>> {
        let limit = page_size(ask.limit) as usize;
        let mut before: Option<TaskId> = ask.after.as_ref().and_then(|after| after.0.parse().ok());
        let mut items = Vec::new();
        loop {
            let step = STEP.min(limit.max(50));
            let which = |cmd: &mut Cmd| {
                cmd.arg("newest");
                cmd.arg(before.as_ref().map_or(&[][..], |before| before.as_uuid().as_bytes()));
                cmd.arg(step);
            };
            let (_, stored) = self.read(which).await?;
            let last = stored.len() < step;
            for Stored { task, .. } in stored {
                before = Some(task.id);
                if ask.wants(&task) {
                    items.push(task);
                }
                if items.len() == limit {
                    let next = before.map(|last| Cursor(last.to_string()));
                    return Ok(Page { items, next });
                }
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }
}
