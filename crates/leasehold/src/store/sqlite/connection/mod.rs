//! Connection of this process to the file: its state, the turns of the processes that write, the writer
//! thread, and the write-ahead log.

mod database;
mod turn;
pub(super) mod wal_check;
mod wal_limit;
mod wal_sync;
mod write_request;
mod writer;

pub(super) use database::Database;
pub(super) use wal_limit::MAX_LOG;
pub(super) use write_request::WriteOptions;
pub(super) use writer::{SharedConnection, Writer};
