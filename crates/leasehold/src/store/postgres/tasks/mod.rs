//! Tasks. Fast-path operations are decided in SQL, for a whole batch in one statement on the server's
//! own clock; all others follow the rules in [`crate::model`], under row locks.

mod codec;
mod complete;
mod cursors;
mod enqueue;
mod insert_batcher;
mod lease;
mod maintenance;
mod notifier;
mod pool;
mod queries;
mod sql;
mod store;
mod transaction;
mod user_transaction;

pub(super) use notifier::WorkerNotifier;
pub(super) use pool::{Pool, TaskSession};
pub(super) use sql::Sql;
#[cfg(feature = "testing")]
pub use store::LeaseStatement;
pub(super) use store::PostgresTasks;
pub use user_transaction::{NotifyWorkers, PendingEnqueue};
