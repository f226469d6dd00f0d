//! SQLite engine, `sqlite:PATH`: one machine, many processes; the embedded default.

mod boot;
mod connection;
mod documents;
mod error;
mod file;
mod health;
mod locks;
mod options;
mod schema;
mod store;
mod tasks;

pub use options::{Durability, SqliteOptions};
/// Re-exported because [`SqliteStore::enqueue_in_transaction`] takes a transaction of this version.
pub use rusqlite;
pub use store::SqliteStore;
