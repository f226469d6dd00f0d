//! Commands for tasks, queues and workers.

pub(super) mod add;
pub(super) mod logs;
pub(super) mod queries;
pub(super) mod update;
pub(super) mod wait;
pub(super) mod work;
