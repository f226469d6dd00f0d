//! Commands for tasks, queues and workers.

mod add;
mod change;
mod dispatch;
mod lines;
mod look;
mod payload;
mod progress;
mod retention;
mod tidy;
mod update;
mod work;

pub(super) use dispatch::{queues, tasks};
pub(super) use look::workers;
pub(super) use payload::read as read_payload;
pub(super) use work::work;
