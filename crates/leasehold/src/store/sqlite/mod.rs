//! SQLite engine, `sqlite:PATH`: one machine, many processes; the embedded default.

mod batch;
mod boot;
mod cache;
mod connection;
mod docs;
mod file;
mod health;
mod options;
mod schema;
mod store;
mod tables;
mod tail;
mod tasks;
mod tickets;
mod trouble;
mod wal;
mod writer;

pub use options::{Durability, SqliteOptions};
/// Re-exported because [`SqliteStore::enqueue_in`] takes a transaction of this version.
pub use rusqlite;
pub use store::SqliteStore;
