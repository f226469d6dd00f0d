//! Tasks in the file: the rules are those of leasehold-model; the lists they need are one index.

mod change_poller;
mod codec;
mod enqueue;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod lease;
mod maintenance;
mod purge_cursors;
mod queries;
mod sql;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod update;

pub(super) use maintenance::{has_deadline, rebase_times};
pub(super) use store::SqliteTasks;
pub(super) use transaction::{LeasedTasks, PendingWakeups, QueueIds, TaskTransaction};
