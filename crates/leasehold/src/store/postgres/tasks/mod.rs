//! Tasks. Fast-path operations are decided in SQL, for a whole batch in one statement on the server's
//! own clock; all others follow the rules in [`crate::model`], under row locks.

pub(super) mod codec;
pub(super) mod complete;
mod cursors;
pub(super) mod enqueue;
mod inline_connection;
mod insert_batcher;
pub(super) mod lease;
pub(super) mod lease_plain;
pub(super) mod maintenance;
pub(super) mod notifier;
mod pool;
pub(super) mod queries;
mod store;
pub(super) mod transaction;
mod user_transaction;

pub(super) use notifier::WorkerNotifier;
pub(super) use pool::Pool;
#[cfg(feature = "testing")]
pub use store::LeaseStatement;
pub(super) use store::PostgresTasks;
pub use user_transaction::{NotifyWorkers, PendingEnqueue};
