//! HTML of each page.

pub(super) mod executions;
pub(super) mod lists;
pub(super) mod lock;
pub(super) mod locks;
pub(super) mod overview;
pub(super) mod queues;
pub(super) mod task;
pub(super) mod tasks;
