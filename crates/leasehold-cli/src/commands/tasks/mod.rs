//! Commands for tasks, queues and workers.

mod add;
mod dispatch;
mod queries;
mod update;
mod work;

pub(super) use add::read as read_payload;
pub(super) use dispatch::{queues, tasks};
pub(super) use queries::workers;
pub(super) use work::work;
