//! `postgres://…`: store for many machines, on an existing PostgreSQL database.
//!
//! Fast-path operations are decided in SQL, in one statement on the server's own clock; all others
//! follow the rules in [`crate::model`], under a row lock.

mod abandoned;
mod aside;
mod deadline;
mod docs;
mod gate;
mod general;
mod health;
mod idle;
mod lane;
mod listener;
mod native;
mod near;
mod options;
mod queue;
mod reads;
mod rows;
mod schema;
mod session;
mod sql;
mod store;
mod switchboard;
mod tasks;
mod tickets;
mod tls;
mod trouble;
mod upkeep;

pub use options::{Pooler, PostgresOptions, SslMode};
pub use store::PostgresStore;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use tasks::LeaseStatement;
pub use tasks::{NotifyWorkers, PendingEnqueue};
/// PostgreSQL driver, for callers that add tasks in transactions of their own.
pub use tokio_postgres;
