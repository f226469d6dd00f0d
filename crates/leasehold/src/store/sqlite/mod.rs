//! `sqlite:PATH`: one machine, many processes; the embedded default.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | from the URL to a path and its settings |
//! | `file.rs` | the file itself: made with care, refused where it could not be safe |
//! | `schema.rs` | tables and their versions |
//! | `boot.rs` | telling a restart of the machine from what only looks like one |
//! | `tables.rs` | the SQL: records and events in and out |
//! | `tail.rs` | the newest events of a lock, in its own row |
//! | `tickets.rs` | a long queue: one row per ticket, refreshed one at a time |
//! | `batch.rs`, `cache.rs` | many operations, one transaction; what it need not read again |
//! | `connection.rs` | opening the connection, waiting for other writers |
//! | `writer.rs` | the one connection of this process, and how operations get to it |
//! | `store.rs` | the engine as a whole |
//! | `tasks/`, `docs.rs` | tasks and documents, in tables of their own |
//! | `examine.rs`, `wal.rs` | what the file finds out about itself; reading the log for it |
//! | `trouble.rs` | what SQLite says, in our words |

mod batch;
mod boot;
mod cache;
mod connection;
mod docs;
mod examine;
mod file;
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
/// As this engine uses it: a connection of this version is what [`SqliteStore::enqueue_in`] takes.
pub use rusqlite;
pub use store::SqliteStore;
