//! `sqlite:PATH`: one machine, many processes; the embedded default.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | from the URL to a path and its settings |
//! | `file.rs` | the file itself: made with care, refused where it could not be safe |
//! | `schema.rs` | tables, their versions, and what a restart of the machine does to them |
//! | `tables.rs` | the SQL: records and events in and out |
//! | `tail.rs` | the newest events of a lock, in its own row |
//! | `batch.rs`, `cache.rs` | many operations, one transaction; what it need not read again |
//! | `connection.rs` | opening the connection, waiting for other writers |
//! | `writer.rs` | the one connection of this process, and how operations get to it |
//! | `store.rs` | the engine as a whole |
//! | `tasks/`, `docs.rs` | tasks and documents, in tables of their own |
//! | `examine.rs` | what the file finds out about itself |
//! | `trouble.rs` | what SQLite says, in our words |

mod batch;
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
mod trouble;
mod writer;

pub use options::{Durability, SqliteOptions};
/// As this engine uses it: a connection of this version is what [`SqliteStore::enqueue_in`] takes.
pub use rusqlite;
pub use store::SqliteStore;
