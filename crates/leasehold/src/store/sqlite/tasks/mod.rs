//! Tasks in the file: the rules are those of leasehold-model; the lists they need are partial
//! indexes.

mod change_poller;
mod codec;
mod enqueue;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod lease;
mod maintenance;
mod queries;
mod sql;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod update;

pub(super) use maintenance::{has_leased_task, rebase_times};
pub(super) use store::SqliteTasks;
pub(super) use transaction::{PendingWakeups, QueueIds, TaskTransaction};
