//! SQLite engine, `sqlite:PATH`: one machine, many processes; the embedded default.

mod boot;
mod database;
mod documents;
mod error;
mod file;
mod health;
mod locks;
mod options;
mod schema;
mod store;
mod tasks;
mod turn;
mod wal_check;
mod wal_limit;
mod wal_sync;
mod write_request;
mod writer;

pub use options::{Durability, SqliteOptions};
/// Re-exported because [`SqliteStore::enqueue_in_transaction`] takes a transaction of this version.
pub use rusqlite;
pub use store::SqliteStore;
