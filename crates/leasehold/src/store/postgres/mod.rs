//! `postgres://…`: store for many machines, on an existing PostgreSQL database.
//!
//! Fast-path operations are decided in SQL, in one statement on the server's own clock; all others
//! take the slow path: they follow the rules in [`crate::model`], under a row lock.

mod columns;
mod connection;
mod documents;
mod error;
mod health;
mod locks;
mod options;
mod schema;
mod sql;
mod store;
mod tasks;

pub use options::{Pooler, PostgresOptions, SslMode};
pub use store::PostgresStore;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use tasks::LeaseStatement;
pub use tasks::{NotifyWorkers, PendingEnqueue};
/// PostgreSQL driver, for callers that add tasks in transactions of their own.
pub use tokio_postgres;
