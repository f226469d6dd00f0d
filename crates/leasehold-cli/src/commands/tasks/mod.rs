//! Commands for tasks, queues and workers.

mod add;
mod dispatch;
mod maintenance;
mod payload;
mod queries;
mod update;
mod work;

pub(super) use dispatch::{queues, tasks};
pub(super) use payload::read as read_payload;
pub(super) use queries::workers;
pub(super) use work::work;
