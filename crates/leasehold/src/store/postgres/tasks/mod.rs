//! Tasks in PostgreSQL. Fast-path operations are decided in SQL, for a whole batch in one statement
//! on the server's own clock; all others follow the rules in [`crate::model`], under row locks.

mod add;
mod bench;
mod columns;
mod cursors;
mod inbox;
mod lease;
mod link;
mod pool;
mod reads;
mod rows;
mod schema;
mod settle;
mod sql;
mod sql_rules;
mod store;
mod text;
mod theirs;
mod upkeep;
mod wakes;

pub(super) use link::Link;
pub(super) use pool::Pool;
pub(super) use schema::{BEGUN, HEADS_PER_QUEUE, ONE_ROW, SCHEMA};
pub(super) use sql::Sql;
#[cfg(feature = "testing")]
pub use store::LeaseStatement;
pub(super) use store::PostgresTasks;
pub use theirs::{NotifyWorkers, PendingEnqueue};
pub(super) use wakes::Wakes;
